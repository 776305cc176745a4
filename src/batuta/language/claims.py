"""Compares the claims of an answer with their cited sources, by words and numbers. Pure.

No model is asked, so a claim that paraphrases a source may count as unsupported, and a claim that
distorts the words of a source may count as supported. Under a `grounded` policy a model checks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from batuta.language.grounding import Source, split_statements
from batuta.language.step_reading import find_addresses

MAX_ANSWER = 200_000
"""Maximum number of characters of an answer that are read."""
MAX_SOURCE = 50_000
"""Maximum number of characters of a source that are searched."""
PASSAGE = 320
"""Maximum number of characters of a passage."""
HELD_SHARE = 0.5
"""Minimum share of a claim's words that a source must contain to support the claim, besides all of
its numbers."""
_MIN_WORD_LETTERS = 4
_NUMBER = re.compile(r"\[(\d{1,3})\](?![(:])")
_WORD = re.compile(r"\w+(?:[.,]\d+)*")
_ADDRESS = re.compile(r"https?://\S+")
_MARKS = re.compile(r"[#>*_`|~-]+")


class Support(StrEnum):
    """Whether a source supports a claim."""

    HELD = "held"
    """The source contains enough of the claim's words, and all of its numbers."""
    UNHELD = "unheld"
    """The source lacks a number or too many of the words, or the claim has no words to compare."""
    UNREAD = "unread"
    """The source is cited but was neither given nor fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedSource:
    """A citation of a claim."""

    label: str
    """The address, or the number in brackets."""
    support: Support
    url: str = ""
    """The address of the source; empty if it has none or is not known."""
    passage: str = ""
    """The passage of the source with most of the claim's words; empty if the source is unread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of an answer with its citations."""

    text: str
    cited: tuple[CitedSource, ...] = ()

    @property
    def is_held(self) -> bool:
        """True if one of the cited sources supports the claim and none of them is unread."""
        supports = {each.support for each in self.cited}
        return Support.HELD in supports and Support.UNREAD not in supports


def find_claims(answer: str, sources: Sequence[Source]) -> list[Claim]:
    """Return the sentences of an answer with their citations.

    Headings, and pieces without letters, are left out; citations in a piece without letters count
    for the claim before it, except in lists and tables. In a long answer a claim has several
    sentences.

    Args:
        answer: Markdown; at most `MAX_ANSWER` characters are read.
        sources: the texts that were given or fetched.
    """
    known = _SourceIndex(sources)
    claims: list[Claim] = []
    for statement in split_statements(answer[:MAX_ANSWER]):
        text = statement.strip()
        bare = _MARKS.sub(" ", _ADDRESS.sub(" ", _NUMBER.sub(" ", text)))
        if text.startswith("#") or not text:
            continue
        if any(sign.isalpha() for sign in bare):
            claims.append(Claim(text=text, cited=known.cite(text, bare)))
        elif claims and not text.startswith(("-", "*", "|")):  # citations after the sentence's end
            more = known.cite(text, claims[-1].text)
            claims[-1] = replace(claims[-1], cited=(*claims[-1].cited, *more))
    return claims


class _SourceIndex:
    """Sources by URL and by number, with the positions of their words."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._by_url = defaultdict[str, list[str]](list)
        self._by_number = defaultdict[int, list[Source]](list)
        self._positions: dict[str, dict[str, list[int]]] = {}
        for source in sources:
            if source.url:
                self._by_url[source.url].append(source.text[:MAX_SOURCE])
            if source.number is not None:
                self._by_number[source.number].append(source)

    def cite(self, text: str, claim: str) -> tuple[CitedSource, ...]:
        """Return the citations of a sentence, each once."""
        citations = [self._by_address(url, claim) for url in find_addresses(text)]
        citations += [self._by_mark(int(mark[1]), claim) for mark in _NUMBER.finditer(text)]
        return tuple(dict.fromkeys(citations))

    def _by_address(self, url: str, claim: str) -> CitedSource:
        texts = self._by_url.get(url)
        if not texts:
            return CitedSource(label=url, url=url, support=Support.UNREAD)
        return self._compare(url, url, texts, claim)

    def _by_mark(self, number: int, claim: str) -> CitedSource:
        label = f"[{number}]"
        sources = self._by_number.get(number)
        if not sources:
            return CitedSource(label=label, support=Support.UNREAD)
        texts = [source.text[:MAX_SOURCE] for source in sources]
        return self._compare(label, sources[-1].url, texts, claim)

    def _compare(self, label: str, url: str, texts: Sequence[str], claim: str) -> CitedSource:
        words = _key_words(claim)
        share, text = max(((self._share(text, words), text) for text in texts), key=lambda t: t[0])
        support = Support.HELD if share >= HELD_SHARE else Support.UNHELD
        passage = self._passage(text, words)
        return CitedSource(label=label, url=url, support=support, passage=passage)

    def _share(self, text: str, words: set[str]) -> float:
        """Return the share of the words that the text contains; 0 if a number is missing."""
        positions = self._positions_of(text)
        if any(word[0].isdigit() and word not in positions for word in words):
            return 0.0
        return sum(word in positions for word in words) / len(words) if words else 0.0

    def _passage(self, text: str, words: set[str]) -> str:
        """Return the passage of the text that contains most of the words."""
        positions = self._positions_of(text)
        at = sorted(position for word in words for position in positions.get(word, ()))
        best, count, first = 0, 0, 0
        for last, position in enumerate(at):
            while position - at[first] > PASSAGE // 2:
                first += 1
            if last - first + 1 > count:
                best, count = at[first], last - first + 1
        start = max(text.rfind(" ", 0, max(best - PASSAGE // 4, 0)) + 1, 0)
        piece = text[start : start + PASSAGE].strip()
        return f"{'…' if start else ''}{piece}{'…' if start + PASSAGE < len(text) else ''}"

    def _positions_of(self, text: str) -> dict[str, list[int]]:
        positions = self._positions.get(text)
        if positions is None:
            positions = defaultdict[str, list[int]](list)
            for word in _WORD.finditer(text):
                positions[word[0].casefold()].append(word.start())
            self._positions[text] = positions
        return positions


def _key_words(claim: str) -> set[str]:
    """Return the words by which a claim is compared: numbers, and words of four letters or more."""
    bare = _ADDRESS.sub(" ", _NUMBER.sub(" ", claim))
    words = (word[0].casefold() for word in _WORD.finditer(bare))
    return {word for word in words if word[0].isdigit() or len(word) >= _MIN_WORD_LETTERS}
