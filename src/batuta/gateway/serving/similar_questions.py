"""Decides whether two questions are the same in other words; if in doubt, they are different.

An encoder alone cannot decide: it places "Is 7 bigger than 3?" and "Is 3 bigger than 7?", or a
sentence and its negation, nearer to each other than most rephrasings. So the core of the question
must be equal, letter by letter. Only the phrasing may differ: courtesies, a few equivalent forms
of a question, the case of the first letter, the kind of apostrophe and the punctuation at the end.
For such pairs the encoder decides whether the phrasings mean the same.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from dataclasses import replace
from functools import partial
from typing import Protocol, final

import anyio
import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from batuta.core import Question, Role, Text
from batuta.encoder import ENCODER_NAME

_LOG = logging.getLogger(__name__)
MAX_CHARACTERS = 1000
"""Maximum number of characters of a question that is compared."""
_SECONDS = 1.0
"""Timeout of a comparison by the encoder, after which the questions count as different."""
_BEFORE = re.compile(
    r"(?:hello|hi|hey|good (?:morning|afternoon|evening|day))[,!.] "
    r"|(?:please|kindly),? "
    r"|(?:can|could|would|will) you (?=(?:please |kindly )?(?:tell|give|explain|show) me )"
    r"|(?:can|could|would|will) you please "
    r"|(?:i would|i'd) like to know (?=(?:what|who|when|where|why|how|which) )"
    r"|(?:do you know|tell me) (?=(?:what|who|when|where|why|how|which) )",
    re.IGNORECASE,
)
"""Courtesies at the beginning of a question."""
_AFTER = re.compile(
    r"(?:,? please|[,.!?] (?:thanks|thank you|thanks in advance))[.!?]*+$|(?<![.!?])[.!?]++$",
    re.IGNORECASE,
)
"""Courtesies and punctuation at the end of a question."""
_FORMS = (
    (re.compile(r"what(?:'s| is| are) (?P<of>.+)", re.IGNORECASE), "what is {}"),
    (re.compile(r"what (?P<of>.+) (?:is|are)", re.IGNORECASE), "what is {}"),
    (re.compile(r"(?:tell|give) me (?P<of>the .+)", re.IGNORECASE), "what is {}"),
    (re.compile(r"how (?:do|can) (?:i|we|one) (?P<of>.+)", re.IGNORECASE), "how to {}"),
    (re.compile(r"how to (?P<of>.+)", re.IGNORECASE), "how to {}"),
)
"""Equivalent forms of a question, each with its normal form."""


def question_core(text: str) -> str | None:
    """Return the core of a question: its text without the phrasing.

    Return None if the text is empty, too long or nothing but phrasing, or has several lines, double
    spaces or invisible characters, which may matter; then only an equal question matches.
    """
    text = text.strip(" ").replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if not 0 < len(text) <= MAX_CHARACTERS or "  " in text or not _is_plain(text):
        return None
    while (found := _BEFORE.match(text)) is not None:
        text = text[found.end() :]
    while (shorter := _AFTER.sub("", text).rstrip(" ")) != text:
        text = shorter
    for form, template in _FORMS:
        if (found := form.fullmatch(text)) is not None:
            return template.format(found["of"])
    return text[:1].lower() + text[1:] if text else None


def _is_plain(text: str) -> bool:
    """Return True if every character is visible or an ordinary space."""
    return all(char == " " or unicodedata.category(char)[0] not in "CZ" for char in text)


def comparable_question(question: Question) -> tuple[Question, str] | None:
    """Return the question with its last message replaced by its core, and that message's text.

    The encoder's name precedes the core. Return None if the message has no core or is not one text
    of the user, or the question has tools, a response format or attachments.
    """
    last = question.messages[-1]
    part = last.parts[0] if len(last.parts) == 1 else None
    if not isinstance(part, Text) or part.tokens or last.role is not Role.USER:
        return None
    if question.tools or question.response_format or question.needed_tags:
        return None
    core = question_core(part.text)
    if core is None:
        return None
    shortened = replace(last, parts=(replace(part, text=f"{ENCODER_NAME}\n{core}"),))
    return replace(question, messages=(*question.messages[:-1], shortened)), part.text


class TextEncoder(Protocol):
    """Encodes texts as unit vectors."""

    def encode_whole(self, text: str) -> NDArray[np.float32] | None:
        """Return the text's unit vector; None if the text exceeds the encoder's input length."""
        ...


@final
class SimilarQuestions:
    """Compares two questions by an encoder, one pair at a time, in a thread."""

    def __init__(self, encoder: TextEncoder, threshold: float) -> None:
        """Set the encoder, and the minimum cosine of similar questions."""
        self._encoder = encoder
        self._threshold = threshold
        self._limiter = anyio.CapacityLimiter(1)

    async def are_similar(self, one: str, other: str) -> bool:
        """Return True if the texts mean the same; False if the encoder fails or is too slow."""
        compare = partial(self._cosine, one, other)
        cosine = -1.0
        try:
            with anyio.move_on_after(_SECONDS):
                cosine = await to_thread.run_sync(
                    compare, limiter=self._limiter, abandon_on_cancel=True
                )
        except Exception as error:  # noqa: BLE001 - on any failure the question is answered anew
            _LOG.warning("the encoder failed: %s", type(error).__name__)
        return cosine >= self._threshold

    def _cosine(self, one: str, other: str) -> float:
        if one == other:
            return 1.0
        vectors = [self._encoder.encode_whole(text) for text in (one, other)]
        known = [vector for vector in vectors if vector is not None]
        return float(np.dot(*known)) if len(known) == len(vectors) else -1.0
