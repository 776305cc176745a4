"""Multiple choice: the one letter that an answer commits itself to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import final

from batuta.core import Grade
from batuta.tasks.graders import extract

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

SENTENCE = 500
"""Characters of a sentence that are looked at."""

_MARKS = re.compile(
    r"\\(?:text(?:bf|rm|it)?|math(?:bf|rm)|bf|rm)(?![a-z])\s*|\\[()\[\]]|[*`${}\x00]"
)
_CONTRACTED = re.compile(r"(?<=[a-z])n['’]t\b")
_STATED = re.compile(
    r"\b(?:answers?|choices?|selection|options?(?!\s+\(?[A-Z]\b)|(?:correct|right)\s+[a-z]+)\b"
    r"[^.:\n]{0,60}?(?::|=|\b(?:is|are|be)\b)",
    re.IGNORECASE,
)
_DECLARED = re.compile(
    r"(\b[A-Z]\b)\)?\s+is\s+(not\s+|in)?(?:the\s+)?(?:correct|right|best)\b(?!\s+to\b)"
)
_DOUBTED = re.compile(r"\b(?:if|unless|whether|suppose|assuming|not|never)\b", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[.,;:!?\n]")
_NEGATED = re.compile(r"\s*not\b", re.IGNORECASE)
_LEADING = re.compile(r"^[.,:;)\]–—-]+(?=\s)\s*")
_HEAD = re.compile(r"\W*(?:the\s+)?(?:(?:option|choice|letter)\s+)?(\()?([A-Z])\b(?!['’])(?(1)\))")
_SMALL = re.compile(r"\W*([a-z])\W*")
_ANOTHER = re.compile(
    r"\)?\s*(?:,|/|&|or\b|and\b)\s*(?:(?:and|or)\b)?\s*\(?([A-Z])\b(?!(?<=I)\s+[a-z])"
)
_GOES_ON = re.compile(
    r"\s*(?:[.,;:!?)\]–—-]|\(|$|\n)|\s+(?:because|since|as|which|where|and|but|by|for|due)\b"
)


@final
class Choice:
    """Judges the letter in the box, in `<answer>`, in the last "the answer is", or alone.

    Two letters, a negation, a letter beside another option's text and a letter that nothing
    marks are no answer: none is guessed. 1 or 0.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        """Learns the options' texts in the order of their letters; without them letters count."""
        self._options = tuple(map(_normal, options))
        self._letters = LETTERS[: len(options)] if options else LETTERS

    async def grade(self, answer: str, target: str) -> Grade:
        """The grade of `answer`; the target is a letter."""
        chosen = self.chosen(answer)
        if chosen is None:
            return Grade(0.0, None, "no single option is given as the answer")
        right = chosen == target.strip(" ().").upper()
        return Grade(float(right), chosen, "right" if right else f"expected {target}")

    def chosen(self, text: str) -> str | None:
        """The letter that `text` commits itself to; None if to none, or to several."""
        shown = extract.visible(text)
        for marked in (extract.boxed(shown), extract.tagged(shown), extract.hashed(shown)):
            if marked and (letters := self._read(_unmarked(marked))):
                return _only(letters)
        plain = _unmarked(shown)
        statements = [letters for _, letters in sorted(self._statements(plain))]
        last = extract.last_line(plain) or ""
        return _only(statements[-1] if statements else self._alone(last))

    def _statements(self, text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Where an answer is stated and which letters it has; none where it is denied."""
        read_to = 0
        for found in _STATED.finditer(text):
            said, _, below = text[found.end() : found.end() + SENTENCE].partition("\n")
            letters = self._read(said) if said.strip(" :") else self._alone(below)
            if letters and not _doubted(text, found.start()):
                read_to = found.end() + len(said)
                yield found.start(), letters
            elif _NEGATED.match(said):
                yield found.start(), ()
        for found in _DECLARED.finditer(text, read_to):
            if found[1] in self._letters and not _doubted(text, found.start()):
                yield found.start(), () if found[2] else (found[1],)

    def _read(self, text: str) -> tuple[str, ...]:
        """The letters that `text` begins with, or that of the option it repeats."""
        repeated = self._repeated(text)
        if (small := _SMALL.fullmatch(text)) and small[1].upper() in self._letters:
            return tuple({small[1].upper(), *repeated})
        head = _HEAD.match(text)
        if head is None or head[2] not in self._letters:
            return repeated
        letter, rest = head[2], text[head.end() :]
        if repeated and _normal(text) != letter.casefold():
            return repeated
        if another := _ANOTHER.match(rest):
            return (letter, another[1])
        if beside := self._repeated(rest):
            return tuple(sorted({letter, *beside}))
        return (letter,) if head[1] or _GOES_ON.match(rest) else ()

    def _repeated(self, text: str) -> tuple[str, ...]:
        """The letter of the option whose text this is."""
        said = _normal(text)
        same = [
            letter for letter, option in zip(LETTERS, self._options, strict=False) if option == said
        ]
        return tuple(same) if said and len(same) == 1 else ()

    def _alone(self, text: str) -> tuple[str, ...]:
        """The letters of the first line of `text`, if it holds nothing but an option."""
        line = text.lstrip().partition("\n")[0]
        letters, head = self._read(line), _HEAD.match(line)
        rest = line[head.end() :].strip(" .)]") if head else line
        return letters if not rest or self._repeated(line) or self._repeated(rest) else ()


def _only(letters: tuple[str, ...]) -> str | None:
    return letters[0] if len(letters) == 1 else None


def _unmarked(text: str) -> str:
    """`text` without the marks of Markdown and TeX, and with its negations written out."""
    return _CONTRACTED.sub(" not", _MARKS.sub("", text))


def _doubted(text: str, at: int) -> bool:
    """Whether the clause before a statement makes it a condition or denies it."""
    clause = _CLAUSE_END.split(text[max(0, at - SENTENCE) : at])[-1]
    return _DOUBTED.search(clause) is not None


def _normal(text: str) -> str:
    """A text that is compared: signs that belong to it, as in `-1` and `.5`, stay."""
    spaced = _LEADING.sub("", " ".join(_unmarked(text).split()))
    return spaced.lstrip(" \"'“").rstrip(".,:; \"'”").casefold()
