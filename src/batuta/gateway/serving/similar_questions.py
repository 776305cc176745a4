"""Tells whether two questions are the same in other words; when in doubt they are two.

An encoder alone cannot tell: it puts "Is 7 bigger than 3?" and "Is 3 bigger than 7?", or a sentence
and its negation, nearer to each other than most rephrasings are. So the words that say what is
asked must be the same, in the same order and letter by letter; what may differ is how one asks:
courtesies, a few forms of a question that mean the same, the first letter's case and the mark at
the end. Of two such questions the encoder says whether their forms mean the same here.
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
"""Most characters of a question that is compared; a longer one says more than its words."""
_SECONDS = 1.0
"""Seconds for which a question waits for the encoder; after them it is a new one."""
_BEFORE = re.compile(
    r"(?:hello|hi|hey|good (?:morning|afternoon|evening|day))[,!.] "
    r"|(?:please|kindly),? "
    r"|(?:can|could|would|will) you (?=(?:please |kindly )?(?:tell|give|explain|show) me )"
    r"|(?:can|could|would|will) you please "
    r"|(?:i would|i'd) like to know (?=(?:what|who|when|where|why|how|which) )"
    r"|(?:do you know|tell me) (?=(?:what|who|when|where|why|how|which) )",
    re.IGNORECASE,
)
"""Courtesies at the beginning, which say nothing of what is asked."""
_AFTER = re.compile(
    r"(?:,? please|[,.!?] (?:thanks|thank you|thanks in advance))[.!?]*+$|(?<![.!?])[.!?]++$",
    re.IGNORECASE,
)
_FORMS = (
    (re.compile(r"what(?:'s| is| are) (?P<of>.+)", re.IGNORECASE), "what is {}"),
    (re.compile(r"what (?P<of>.+) (?:is|are)", re.IGNORECASE), "what is {}"),
    (re.compile(r"(?:tell|give) me (?P<of>the .+)", re.IGNORECASE), "what is {}"),
    (re.compile(r"how (?:do|can) (?:i|we|one) (?P<of>.+)", re.IGNORECASE), "how to {}"),
    (re.compile(r"how to (?P<of>.+)", re.IGNORECASE), "how to {}"),
)
"""Forms of a question that mean the same, each with the one they are counted as."""


def question_core(text: str) -> str | None:
    """Return what a question asks without its phrasing.

    None if it must be taken letter by letter.

    That is so for a text that is long, has several lines or spaces that may count, or letters that
    cannot be seen.
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
    """Return True if every character can be seen, and every space is the usual one."""
    return all(char == " " or unicodedata.category(char)[0] not in "CZ" for char in text)


def comparable_question(question: Question) -> tuple[Question, str] | None:
    """Return the question with its last message cut to its core, and that message.

    None means that it has no core.

    Tools, forms of the answer and attachments make a question one that only the same repeats.
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
    asked = replace(last, parts=(replace(part, text=f"{ENCODER_NAME}\n{core}"),))
    return replace(question, messages=(*question.messages[:-1], asked)), part.text


class TextEncoder(Protocol):
    """Gives a text's unit vector, or None if it does not read it to its end."""

    def encode_whole(self, text: str) -> NDArray[np.float32] | None:
        """Return the vector."""
        ...


@final
class SimilarQuestions:
    """Compares two questions by an encoder, one pair at a time and off the event loop."""

    def __init__(self, encoder: TextEncoder, threshold: float) -> None:
        """Take the encoder and the cosine from which two questions are one."""
        self._encoder = encoder
        self._threshold = threshold
        self._turn = anyio.CapacityLimiter(1)

    async def are_similar(self, one: str, other: str) -> bool:
        """Return True if they mean the same; False also if the encoder has no time for them."""
        compare = partial(self._cosine, one, other)
        cosine = -1.0
        try:
            with anyio.move_on_after(_SECONDS):
                cosine = await to_thread.run_sync(
                    compare, limiter=self._turn, abandon_on_cancel=True
                )
        except Exception as error:  # noqa: BLE001 - whatever the runtime raises, it is asked anew
            _LOG.warning("the encoder failed: %s", type(error).__name__)
        return cosine >= self._threshold

    def _cosine(self, one: str, other: str) -> float:
        if one == other:
            return 1.0
        vectors = [self._encoder.encode_whole(text) for text in (one, other)]
        known = [vector for vector in vectors if vector is not None]
        return float(np.dot(*known)) if len(known) == len(vectors) else -1.0
