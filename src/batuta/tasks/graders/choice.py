"""Multiple choice: the one letter that an answer commits itself to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import final

from batuta.core import Grade
from batuta.tasks.graders import extract, statements
from batuta.tasks.graders.latex import plain
from batuta.tasks.graders.letters import as_latin
from batuta.tasks.graders.numbers import number
from batuta.tasks.graders.structured import NOTHING, as_text, structured_answer

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

SENTENCE = 500
"""Characters of a sentence that are looked at."""

LABELLED = 100
"""Characters of a line that may be an option's letter and text, where the texts are not known."""

UNCLEAR = ("?", "??")
"""Read instead of letters where something is said, but no one option is chosen."""

_MARKS = re.compile(
    r"\\(?:text(?:bf|rm|it)?|math(?:bf|rm)|bf|rm)(?![a-z])\s*|\\[()\[\]]|[*`${}\x00]"
    r"|</?(?:b|strong|i|em|p|u|code)>"
)
_CONTRACTED = re.compile(r"(?<=[a-z])n['’]t\b|(?<=can)not\b")
_CLAUSE_END = re.compile(r"[.,;:!?\n]")
_NEGATED = re.compile(r"\s*not\b", re.IGNORECASE)
_LEADING = re.compile(r"^[.,:;)\]–—-]+(?=\s)\s*")
_HEAD = re.compile(
    r"[^\w°]*(?:clearly\s+|definitely\s+|obviously\s+|certainly\s+|therefore\s+|thus\s+|indeed\s+|simply\s+)?"
    r"(?:the\s+|that\s+)?(?:(?:option|choice|letter|answer)\s+)?(\()?"
    r"([A-Z])(?![\w+#°]|['’-]\w)(?(1)\)?)",
    re.IGNORECASE,
)
_SMALL = re.compile(r"\W*(?:(?:option|choice)\s+)?\(?([a-z])\W*")
_GOES_ON = re.compile(
    r"\s*(?:[.,;:!)\]>\"'”]|[–—-](?=\s)|\(|\||$|\n)"
    r"|\s+(?:because|since|as|which|where|and|but|by|for|due|rather|instead|or|is|then|\W)(?!\w)"
)
_ALONE = re.compile(statements.LETTER)
_LABEL = re.compile(r"^[^\w\n]*(?:option\s+)?\(?([A-Z])[.):](?=\s)", re.MULTILINE | re.IGNORECASE)
_MARK = re.compile(r"\s*(?:[.):]|[–—-]\s|\)[.:]|\s–)\s*(?=\S)")
_BECAUSE = re.compile(r"[,;\s–—-]*(?:because|since|as)\s", re.IGNORECASE)
_CLOSING = " .)]!}>*\"'”’,;:|\t`"
_WORD_BEHIND = re.compile(r"\s+(?!(?:or|and|is|are|both|may|might|could|too|as|if|are)\b)[a-z]")


@final
class Choice:
    """Judges the letter in the box, in `<answer>`, in JSON, in the last "the answer is", or alone.

    Letters of other scripts and statements in other languages are read. Two letters, a negation,
    a letter beside another option's text, one that is taken back and one that nothing marks are
    no answer: none is guessed. 1 or 0.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        """Learns the options' texts in the order of their letters; without them letters count."""
        self._circled = not any("\u2460" <= sign <= "\u2469" for sign in "".join(options))
        self._options = tuple(_normal(_unmarked(as_latin(option))) for option in options)
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
        data = structured_answer(shown)
        if data is not NOTHING:
            return _only(self._read(self._clean(as_text(data) or "")))
        shown = as_latin(shown, circled=self._circled)
        for marked in (extract.boxed(shown), extract.tagged(shown), extract.hashed(shown)):
            if marked and (letters := self._read(_unmarked(marked))):
                return _only(letters)
        clear = _unmarked(shown)
        stated = sorted(self._statements(clear))
        return _only(self._last(stated, clear) if stated else self._unstated(clear))

    def _clean(self, text: str) -> str:
        return _unmarked(as_latin(text, circled=self._circled))

    def _last(self, stated: list[tuple[int, int, tuple[str, ...]]], text: str) -> tuple[str, ...]:
        """The letters of the last statement, or of what takes it back."""
        at, end, letters = stated[-1]
        clause = _CLAUSE_END.split(text[max(0, at - SENTENCE) : at])
        lead = " ".join(clause[-2:])
        if len(stated) > 1 and statements.ALTERNATIVE.search(lead):
            return UNCLEAR
        if len(letters) != 1:
            return letters
        return self._corrected(letters, text[end : end + SENTENCE])

    def _corrected(self, letters: tuple[str, ...], after: str) -> tuple[str, ...]:
        """`letters`, or those that what follows puts in their place."""
        if taken := statements.TAKEN_BACK.search(after):
            return tuple(set(self._named(after[taken.end() :]))) or UNCLEAR
        for doubt in statements.MAYBE_TAKEN_BACK.finditer(after):
            said = statements.sentence(after[doubt.end() :])
            others = set(self._named(said)) - {letters[0]}
            if others and not statements.REASON.search(said) and _claims(said):
                return tuple(others | set(letters))
        return letters

    def _named(self, text: str) -> Iterator[str]:
        """The letters that stand alone in `text` and are not denied."""
        for found in _ALONE.finditer(text):
            if found[0] in "AI" and _WORD_BEHIND.match(text, found.end()):
                continue
            denied = statements.DENIED_BEFORE.search(text[: found.start()]) is not None
            denied = denied or _denied(text, found.end())
            if found[0] in self._letters and not denied:
                yield found[0]

    def _statements(self, text: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """Where an answer is stated, where its line ends and which letters it has."""
        read_to = 0
        for found in statements.STATED.finditer(text):
            said, _, below = text[found.end() : found.end() + SENTENCE].partition("\n")
            repeated = self._repeated(said)
            if statements.is_question(text[found.end() :]) and not repeated:
                continue
            letters = self._read(said) if said.strip(" :") else self._alone(below, text)
            gap = statements.NEGATED_GAP.search(found["gap"])
            if letters and not gap and not _doubted(text, found.start()):
                read_to = found.end() + len(statements.sentence(said))
                end = len(said) if repeated else _to_letter(said)
                yield found.start(), found.end() + end, letters
            elif _NEGATED.match(said):
                yield found.start(), found.end(), ()
        yield from self._headed(text)
        yield from self._foreign(text)
        yield from self._declared(text, read_to)

    def _headed(self, text: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """Under a line that says no more than "Answer"."""
        for found in statements.HEADED.finditer(text):
            if letters := self._alone(text[found.end() : found.end() + SENTENCE]):
                yield found.start(), found.end() + 1, letters

    def _declared(self, text: str, read_to: int) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """In "B is correct"."""
        for found in statements.DECLARED.finditer(text, read_to):
            if found[1] in self._letters and not _doubted(text, found.start()):
                letters = (
                    () if found[2] else self._read(text[found.start() : found.end() + SENTENCE])
                )
                yield found.start(), found.end(), letters

    def _foreign(self, text: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """In another language than English."""
        for found in statements.FOREIGN.finditer(text):
            said = text[found.end() : found.end() + SENTENCE].partition("\n")[0]
            if statements.UNSPACED.match(said, 1):
                continue
            letter = said[0].upper()
            if letter in self._letters:
                yield found.start(), found.end() + 1, self._beside(letter, said[1:])

    def _unstated(self, text: str) -> tuple[str, ...]:
        """The letters of the last line, if it holds nothing but an option or a choice of one."""
        last = extract.last_line(text) or ""
        if letters := self._alone(last, text):
            return letters
        if (found := statements.WEAK.search(last)) is None or "?" in last:
            return ()
        return () if _doubted(last, found.start()) else self._read(last[found.end() :])

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
        letters = self._beside(letter, rest)
        if letters != (letter,):
            return letters
        return (letter,) if head[1] or _GOES_ON.match(rest) else ()

    def _beside(self, letter: str, rest: str) -> tuple[str, ...]:
        """The letter with what stands beside it: rivals, another option's text, a denial."""
        if statements.DENIED_AFTER.match(rest) or rest.lstrip(" )").startswith("?"):
            return UNCLEAR
        own = self._repeated(rest)
        if own:
            return tuple(sorted({letter, *own}))
        said = rest.lstrip(".):")
        said = statements.sentence(said)
        if statements.CONDITION.search(said):
            return UNCLEAR
        if rivals := set(self._rivals(letter, said)):
            return tuple(sorted({letter, *rivals}))
        return (letter,)

    def _rivals(self, letter: str, rest: str) -> Iterator[str]:
        """Other letters that the sentence offers too."""
        reason = statements.REASON.search(rest)
        for found in _ALONE.finditer(rest, 0, reason.start() if reason else len(rest)):
            before, other = rest[: found.start()], found[0]
            if other == letter or other not in self._letters:
                continue
            if other in "AI" and _WORD_BEHIND.match(rest, found.end()):
                continue
            if statements.DENIED_BEFORE.search(before):
                continue
            sure = statements.SURE_HEDGE.search(before)
            if not sure and _denied(rest, found.end()):
                continue
            if statements.HEDGE.search(before) or statements.POSSIBLE_AFTER.match(
                rest, found.end()
            ):
                yield other

    def _repeated(self, text: str) -> tuple[str, ...]:
        """The letter of the option whose text this is."""
        said = _normal(text)
        if not said:
            return ()
        pairs = tuple(zip(LETTERS, self._options, strict=False))
        spoken = {said, said.removeprefix("that ")}
        same = [letter for letter, option in pairs if option in spoken]
        if not same and (value := number(plain(said))) is not None:
            same = [letter for letter, option in pairs if number(plain(option)) == value]
        return tuple(same) if len(same) == 1 else ()

    def _alone(self, text: str, whole: str = "") -> tuple[str, ...]:
        """The letters of the first line of `text`, if it holds nothing but an option."""
        line = text.lstrip().partition("\n")[0]
        letters, head = self._read(line), _HEAD.match(line)
        rest = line[head.end() :] if head else line
        if not rest.strip(_CLOSING) or self._repeated(line) or self._repeated(rest):
            return letters
        if head is not None and letters and _BECAUSE.match(rest):
            return letters
        if head is None or not letters or not self._is_label(head[2], rest, whole):
            return ()
        return letters

    def _is_label(self, letter: str, rest: str, whole: str) -> bool:
        """Whether a line is an option's letter and its text, which is not known here."""
        if self._options or len(rest) > LABELLED or not _MARK.match(rest):
            return False
        if any(found[1].upper() != letter for found in _LABEL.finditer(whole)):
            return False
        return not any(other != letter for other in self._named(rest))


def _only(letters: tuple[str, ...]) -> str | None:
    return letters[0] if len(letters) == 1 else None


def _denied(text: str, end: int) -> bool:
    """Whether what follows a letter denies it, alone or with others."""
    both = (statements.DENIED_AFTER, statements.LIST_DENIED)
    return any(pattern.match(text, end) for pattern in both)


def _claims(said: str) -> bool:
    """Whether a sentence offers an option, and not only talks about it."""
    return re.search(r"\b(?:answer|is|be|could|also|it)\b|\A\W*[A-Z]\b", said) is not None


def _to_letter(said: str) -> int:
    head = _HEAD.match(said)
    return head.end() if head else 0


def _unmarked(text: str) -> str:
    """`text` without the marks of Markdown and TeX, and with its negations written out."""
    return _CONTRACTED.sub(" not", _MARKS.sub("", text))


def _doubted(text: str, at: int) -> bool:
    """Whether the clause before a statement makes it a condition or denies it."""
    clause = _CLAUSE_END.split(text[max(0, at - SENTENCE) : at])[-1]
    return statements.DOUBTED.search(clause) is not None


def _normal(text: str) -> str:
    """A text that is compared: signs that belong to it, as in `-1` and `.5`, stay."""
    spaced = _LEADING.sub("", " ".join(_unmarked(text).split()))
    return spaced.lstrip(" \"'“(").rstrip(".,:; \"'”)").casefold()
