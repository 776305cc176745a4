"""Grades multiple choice by the one letter that an answer commits itself to."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from string import ascii_uppercase
from typing import final

from batuta.core import Grade
from batuta.lab.tasks.graders import declarations, statements
from batuta.lab.tasks.graders.latex import normalize_latex
from batuta.lab.tasks.graders.letters import as_latin
from batuta.lab.tasks.graders.numbers import parse_number
from batuta.lab.tasks.graders.structured_data import NO_OBJECT, as_text, structured_answer
from batuta.language import answer_extraction
from batuta.language.answer_extraction import (
    DOUBTFUL,
    TICKS,
    without_decorations,
    without_emoji,
)

MAX_SENTENCE = 500
"""Maximum number of characters read of a sentence."""

MAX_STATEMENTS = 100
"""Maximum number of statements read, counted from the end of the answer."""

MAX_WEAK_STATEMENTS = 8
"""Maximum number of weak statements ("so it is", "I would pick") read in a line."""

MAX_LABELLED_LINE = 100
"""Maximum number of characters of an option after its letter, if the texts are unknown."""

UNCLEAR = ("?", "??")
"""Stands for the letters of a statement that does not choose a single option."""

_MARKS = re.compile(
    r"\\(?:text(?:bf|rm|it)?|math(?:bf|rm)|bf|rm)(?![a-z])\s*|\\[()\[\]]|[*`${}\x00]"
    r"|</?(?:b|strong|i|em|p|u|code)>"
)
_CONTRACTION = re.compile(r"(?<=[a-z])n['’]t\b|(?<=can)not\b")
_CLAUSE_END = re.compile(r"[.,;:!?\n]")
_NEGATION = re.compile(r"\s*not\b", re.IGNORECASE)
_LEADING = re.compile(r"^[.,:;)\]–—-]+(?=\s)\s*")
_HEAD = re.compile(
    r"[^\w°]*(?:clearly\s+|definitely\s+|obviously\s+|certainly\s+|therefore\s+|thus\s+|indeed\s+|simply\s+"
    r"|(?:most )?(?:probably|likely)\s+)?"
    r"(?:the\s+|that\s+)?(?:(?:option|choice|letter|answer)\s+)?(\()?"
    r"([A-Z])(?![\w+#°]|['’-]\w)(?(1)\)?)",
    re.IGNORECASE,
)
_SMALL = re.compile(r"\W*(?:(?:option|choice)\s+)?\(?([a-z])\W*")
_AFTER_LETTER = re.compile(
    r"\s*(?:[.,;:!)\]>\"'”]|[–—-](?=\s)|\(|\||$|\n)"
    r"|\s+(?:because|since|as|which|where|and|but|by|for|due|rather|instead|or|is|then|\W)(?!\w)"
)
_LETTER_ALONE = re.compile(statements.LETTER)
_LABEL = re.compile(r"^[^\w\n]*(?:option\s+)?\(?([A-Z])[.):](?=\s)", re.MULTILINE | re.IGNORECASE)
_MARK = re.compile(r"\s*(?:[.):]|[–—-]\s|\)[.:]|\s–)\s*(?=\S)")
_SMALL_LABEL = re.compile(r"\A([^\w°]*)([a-z])(?=\))")
_BECAUSE = re.compile(r"[,;\s–—-]*(?:because|since|as)\s", re.IGNORECASE)
_CLOSING = " .)]!}>*\"'”’,;:|\t`"
_WORD_BEHIND = re.compile(r"\s+(?!(?:or|and|is|are|both|may|might|could|too|as|if)\b)[a-z]")


@final
class ChoiceGrader:
    """Scores 1 if the letter to which an answer commits itself is the target, else 0.

    The letter is in JSON, in a box, in `<answer>`, after `####`, in the last statement such as "the
    answer is B" or "B is correct", alone in the last line, or alone in the first line above an
    explanation. Letters of other scripts and statements in other languages are read. Two letters, a
    negated letter, a letter beside another option's text, a retracted letter, a letter in running
    text and a list of the options do not count as an answer: the grader never guesses.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        """Take the options' texts in the order of the letters; without texts, any letter counts."""
        # circled digits are read as letters unless an option contains some
        self._circled = not any("\u2460" <= sign <= "\u2469" for sign in "".join(options))
        self._options = tuple(
            _normalize_option(_strip_markup(as_latin(option))) for option in options
        )
        self._letters = ascii_uppercase[: len(options)] if options else ascii_uppercase

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`; the target is a letter."""
        chosen = self.chosen_letter(answer)
        if chosen is None:
            return Grade(0.0, None, "no single option is given as the answer")
        right = chosen == _target_letter(target)
        return Grade(float(right), chosen, "right" if right else f"expected {target}")

    def is_letter(self, target: str) -> bool:
        """Return whether the target is the letter of an option."""
        letter = _target_letter(target)
        return len(letter) == 1 and letter in self._letters

    def chosen_letter(self, text: str) -> str | None:
        """Return the letter that `text` commits itself to; None without a letter or with several."""
        shown = answer_extraction.visible_text(text)
        data = structured_answer(shown)
        if data is not NO_OBJECT:
            return _single_letter(self._read_letters(self._clean_text(as_text(data) or "")))
        shown = as_latin(without_emoji(shown), circled=self._circled)
        for marked in (
            answer_extraction.boxed_answer(shown),
            answer_extraction.tagged_answer(shown),
            answer_extraction.answer_after_hashes(shown),
        ):
            if marked and (letters := self._read_letters(_strip_markup(marked))):
                return _single_letter(letters)
        clear = _strip_markup(shown)
        stated = sorted(self._statements(clear)) or self._foreign_declarations(clear)
        if stated:
            return _single_letter(self._last_statement(stated, clear))
        ticks = sum(sign in TICKS for sign in clear)
        plain = without_decorations(clear) if ticks == 1 else clear
        return _single_letter(
            self._letters_in_last_line(plain) or self._letters_in_first_line(plain)
        )

    def _clean_text(self, text: str) -> str:
        return _strip_markup(as_latin(text, circled=self._circled))

    def _last_statement(
        self, stated: list[tuple[int, int, tuple[str, ...]]], text: str
    ) -> tuple[str, ...]:
        """Return the letters of the last statement, or of the retraction that follows it."""
        at, end, letters = stated[-1]
        clause = _CLAUSE_END.split(text[max(0, at - MAX_SENTENCE) : at])
        lead = " ".join(clause[-2:])
        if len(stated) > 1 and statements.ALTERNATIVE.search(lead):
            return UNCLEAR
        if len(letters) != 1:
            return letters
        if any(
            found[2] and found[1] == letters[0] and not _is_doubted(text, found.start())
            for found in statements.DECLARATION.finditer(text, end)
        ):
            return UNCLEAR
        return self._apply_correction(letters, text[end : end + MAX_SENTENCE])

    def _apply_correction(self, letters: tuple[str, ...], after: str) -> tuple[str, ...]:
        """Return `letters`, or the letters that replace them in the text after the statement."""
        if taken := statements.RETRACTION.search(after):
            return tuple(set(self._letters_named(after[taken.end() :]))) or UNCLEAR
        for doubt in statements.POSSIBLE_RETRACTION.finditer(after):
            sentence = statements.first_sentence(after[doubt.end() :])
            others = set(self._letters_named(sentence)) - {letters[0]}
            if others and not statements.REASON.search(sentence) and _offers_option(sentence):
                return tuple(others | set(letters))
        return letters

    def _letters_named(self, text: str) -> Iterator[str]:
        """Yield the letters that stand alone in `text` and are not denied."""
        for found in _LETTER_ALONE.finditer(text):
            if found[0] in "AI" and _WORD_BEHIND.match(text, found.end()):
                continue
            denied = statements.DENIAL_BEFORE.search(text[: found.start()]) is not None
            denied = denied or _is_denied(text, found.end())
            if found[0] in self._letters and not denied:
                yield found[0]

    def _statements(self, text: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """Yield the start, the end and the letters of each statement of an answer."""
        read_to = 0
        for found in _last_matches(statements.STATEMENT, text):
            sentence, _, below = text[found.end() : found.end() + MAX_SENTENCE].partition("\n")
            repeated = self._letter_of_option_text(sentence)
            if statements.is_question(text[found.end() :]) and not repeated:
                continue
            letters = (
                self._read_letters(sentence)
                if sentence.strip(" :")
                else self._letters_below(below, text)
            )
            gap = statements.NEGATION_IN_GAP.search(found["gap"])
            sentence_end = found.end() + len(statements.first_sentence(sentence))
            if letters and not gap and not _is_doubted(text, found.start()):
                read_to = sentence_end
                end = len(sentence) if repeated else _letter_end(sentence)
                yield found.start(), found.end() + end, letters
            elif _NEGATION.match(sentence):
                yield found.start(), found.end(), ()
        yield from self._heading_statements(text)
        yield from self._foreign_statements(text)
        yield from self._declarations(text, read_to)

    def _heading_statements(self, text: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """Yield the statements below a line that is only "Answer"."""
        for found in statements.ANSWER_HEADING.finditer(text):
            if letters := self._letters_below(text[found.end() : found.end() + MAX_SENTENCE]):
                yield found.start(), found.end() + 1, letters

    def _declarations(self, text: str, read_to: int) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """Yield the statements of the form "B is correct"."""
        for found in _last_matches(statements.DECLARATION, text, read_to):
            known = found[1] in self._letters and not found[2]
            if known and not _is_doubted(text, found.start()):
                sentence = text[found.start() : found.end() + MAX_SENTENCE]
                yield found.start(), found.end(), self._read_letters(sentence)

    def _foreign_statements(self, text: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """Yield the statements in other languages than English."""
        for found in statements.FOREIGN_STATEMENT.finditer(text):
            sentence = text[found.end() : found.end() + MAX_SENTENCE].partition("\n")[0]
            if statements.WORD_CONTINUATION.match(sentence, 1):
                continue
            letter = sentence[0].upper()
            if letter in self._letters:
                yield found.start(), found.end() + 1, self._letters_beside(letter, sentence[1:])

    def _foreign_declarations(self, text: str) -> list[tuple[int, int, tuple[str, ...]]]:
        """Return statements like "B is correct" in other languages; `UNCLEAR` for several letters."""
        found = [
            (match.start(), match.end(), self._declared_letters(match, text))
            for match in _last_matches(declarations.RIGHT_LETTER, text)
            if match[1].isupper() and match[1] in self._letters
        ]
        known = {letters for *_, letters in found if letters}
        if len(known) > 1:
            return [(*found[-1][:2], UNCLEAR)]
        return [one for one in found if one[2]]

    def _declared_letters(self, match: re.Match[str], text: str) -> tuple[str, ...]:
        """Return the letter judged correct, with its rivals; empty if the text doubts it."""
        before = text[max(0, match.start() - MAX_SENTENCE) : match.start()]
        clause = declarations.CLAUSE_END.split(before)[-1]
        after = statements.first_sentence(text[match.end() : match.end() + MAX_SENTENCE])
        doubts = (
            declarations.DOUBT.search(clause),
            statements.DOUBT.search(clause),
            declarations.OTHERS.search(declarations.SENTENCE_END.split(before)[-1]),
            declarations.CONDITION_AFTER.search(after),
            declarations.QUESTION.match(text, match.end()),
        )
        if any(doubts):
            return ()
        rivals = set(self._letters_named(clause)) | {
            other[0]
            for other in _LETTER_ALONE.finditer(after)
            if other[0] in self._letters
            and not _is_denied(after, other.end())
            and not declarations.WRONG_AFTER.match(after, other.end())
        }
        return tuple(sorted({match[1], *rivals}))

    def _letters_in_last_line(self, text: str) -> tuple[str, ...]:
        """Return the letters of the last line if it is only an option or the choice of one."""
        last = answer_extraction.last_line(text) or ""
        if letters := self._letters_alone(last, text):
            return () if self._is_list(_written_lines(text)[-2:]) else letters
        if "?" in last:
            return ()
        for found in islice(statements.WEAK_STATEMENT.finditer(last), MAX_WEAK_STATEMENTS):
            if _is_doubted(last, found.start()):
                return ()
            if letters := self._read_letters(last[found.end() : found.end() + MAX_SENTENCE]):
                return letters
        return ()

    def _is_list(self, lines: list[str]) -> bool:
        """Return whether two lines are an option and the one after it, as in a list of options."""
        letters = [self._letters_alone(line) for line in lines]
        return any(letters == [(one,), (other,)] for one, other in pairwise(ascii_uppercase))

    def _letters_in_first_line(self, text: str) -> tuple[str, ...]:
        """Return the letter of the first line if it is only an option, above an explanation.

        Nothing is returned if another line is an option too, if the first line is a question or the
        beginning of a sentence, or if a retraction follows.
        """
        first, _, below = text.strip().partition("\n")
        letters, head = self._letters_alone(first, text), _HEAD.match(first)
        goes_on = "?" in first or below.lstrip()[:1].islower()
        if len(letters) != 1 or head is None or goes_on:
            return ()
        others = {*self._letters_alone(below), *self._listed_letters(first[head.end() :], below)}
        if others - set(letters) or statements.RETRACTION.search(below, MAX_SENTENCE):
            return ()
        return self._apply_correction(letters, below[:MAX_SENTENCE])

    def _listed_letters(self, option: str, text: str) -> set[str]:
        """Return the letters at the starts of lines if the option is more than a letter."""
        is_bare = not option.strip(_CLOSING)
        return set() if is_bare else {found[1].upper() for found in _LABEL.finditer(text)}

    def _read_letters(self, text: str) -> tuple[str, ...]:
        """Return the letters at the start of `text`, or the letter of the option it repeats."""
        repeated = self._letter_of_option_text(text)
        if (small := _SMALL.fullmatch(text)) and small[1].upper() in self._letters:
            return tuple({small[1].upper(), *repeated})
        text = _SMALL_LABEL.sub(lambda found: found[0].upper(), text)
        head = _HEAD.match(text)
        if head is None or head[2] not in self._letters:
            return repeated
        if set(DOUBTFUL).intersection(text[: head.start(2)]):
            return UNCLEAR
        letter, rest = head[2], text[head.end() :]
        if repeated and _normalize_option(text) != letter.casefold():
            return repeated
        letters = self._letters_beside(letter, rest)
        if letters != (letter,):
            return letters
        return (letter,) if head[1] or _AFTER_LETTER.match(rest) else ()

    def _letters_beside(self, letter: str, rest: str) -> tuple[str, ...]:
        """Return the letter with its rivals and other options' letters; `UNCLEAR` if it is denied."""
        if statements.DENIAL_AFTER.match(rest) or rest.lstrip(" )").startswith("?"):
            return UNCLEAR
        if own := self._letter_of_option_text(rest):
            return tuple(sorted({letter, *own}))
        beside = statements.first_sentence(rest.lstrip(".):"))
        if statements.CONDITION.search(beside):
            return UNCLEAR
        if rivals := set(self._rival_letters(letter, beside)):
            return tuple(sorted({letter, *rivals}))
        return (letter,)

    def _rival_letters(self, letter: str, rest: str) -> Iterator[str]:
        """Yield the other letters that the sentence offers as well."""
        rest = rest[: 4 * MAX_SENTENCE]
        reason = statements.REASON.search(rest)
        for found in _LETTER_ALONE.finditer(rest, 0, reason.start() if reason else len(rest)):
            before, other = rest[: found.start()], found[0]
            if other == letter or other not in self._letters:
                continue
            if other in "AI" and _WORD_BEHIND.match(rest, found.end()):
                continue
            if statements.DENIAL_BEFORE.search(before):
                continue
            sure = statements.SURE_HEDGE.search(before)
            if not sure and _is_denied(rest, found.end()):
                continue
            if statements.HEDGE.search(before) or statements.POSSIBLE_AFTER.match(
                rest, found.end()
            ):
                yield other

    def _letter_of_option_text(self, text: str) -> tuple[str, ...]:
        """Return the letter of the option with this text; empty unless there is exactly one."""
        normalized = _normalize_option(text)
        if not normalized:
            return ()
        pairs = tuple(zip(ascii_uppercase, self._options, strict=False))
        spoken = {normalized, normalized.removeprefix("that ")}
        same = [letter for letter, option in pairs if option in spoken]
        if not same and (value := parse_number(normalize_latex(normalized))) is not None:
            same = [
                letter for letter, option in pairs if parse_number(normalize_latex(option)) == value
            ]
        return tuple(same) if len(same) == 1 else ()

    def _letters_below(self, text: str, whole: str = "") -> tuple[str, ...]:
        """Return the letters of the first line if it contains only an option, and no list follows."""
        is_list = self._is_list(_written_lines(text)[:2])
        return () if is_list else self._letters_alone(text, whole)

    def _letters_alone(self, text: str, whole: str = "") -> tuple[str, ...]:
        """Return the letters of the first line of `text` if it has only an option, or a reason too."""
        line = text.lstrip().partition("\n")[0]
        letters, head = self._read_letters(line), _HEAD.match(line)
        rest = line[head.end() :] if head else line
        if (
            not rest.strip(_CLOSING)
            or self._letter_of_option_text(line)
            or self._letter_of_option_text(rest)
        ):
            return letters
        if head is not None and letters and _BECAUSE.match(rest):
            return letters
        if head is None or not letters or not self._is_label(head[2], rest, whole):
            return ()
        return letters

    def _is_label(self, letter: str, rest: str, whole: str) -> bool:
        """Return whether a line is an option's letter and text, without knowing the texts.

        `rest` is the line after the letter; no line of `whole` may begin with another label.
        """
        if self._options or len(rest) > MAX_LABELLED_LINE or not _MARK.match(rest):
            return False
        if any(found[1].upper() != letter for found in _LABEL.finditer(whole)):
            return False
        return not any(other != letter for other in self._letters_named(rest))


def _written_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if any(map(str.isalnum, line))]


def _last_matches(pattern: re.Pattern[str], text: str, start: int = 0) -> Iterable[re.Match[str]]:
    """Return the last matches in a text, in their order."""
    return deque(pattern.finditer(text, start), maxlen=MAX_STATEMENTS)


def _target_letter(target: str) -> str:
    return _strip_markup(target).strip(" ().").upper()


def _single_letter(letters: tuple[str, ...]) -> str | None:
    return letters[0] if len(letters) == 1 else None


def _is_denied(text: str, end: int) -> bool:
    """Return whether the text after a letter denies it, alone or together with other letters."""
    alone = statements.DENIAL_AFTER.match(text, end)
    return bool(alone or statements.LIST_DENIAL.match(text, end))


def _offers_option(sentence: str) -> bool:
    """Return whether a sentence offers an option, and does not only mention it."""
    return re.search(r"\b(?:answer|is|be|could|also|it)\b|\A\W*[A-Z]\b", sentence) is not None


def _letter_end(sentence: str) -> int:
    head = _HEAD.match(sentence)
    return head.end() if head else 0


def _strip_markup(text: str) -> str:
    """Return `text` without marks of Markdown and TeX, with contracted negations written out."""
    return _CONTRACTION.sub(" not", _MARKS.sub("", text))


def _is_doubted(text: str, at: int) -> bool:
    """Return whether the clause before a statement makes it a condition or denies it."""
    clause = _CLAUSE_END.split(text[max(0, at - MAX_SENTENCE) : at])[-1]
    return statements.DOUBT.search(clause) is not None


def _normalize_option(text: str) -> str:
    """Return an option's text for comparison; signs that are part of it (`-1`, `.5`) stay."""
    spaced = _LEADING.sub("", " ".join(_strip_markup(text).split()))
    return spaced.lstrip(" \"'“(").rstrip(".,:; \"'”)").casefold()
