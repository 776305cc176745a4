"""A canonical form of an answer: answers with the same meaning mostly have the same form.

The form serves to compare answers with each other while the correct answer is unknown, as in a vote
or a cascade. Graders do not use it.
"""

from __future__ import annotations

import re
import unicodedata

from batuta.lab.tasks.plain_numbers import join_thousands, plain_digits

_MAX_CHARACTERS = 2000
"""The longest answer that is normalised in full; `canonical_answer` describes longer ones."""
_MAX_ROUNDS = 10
_NO_ANSWERS = frozenset({"", "nan", "n/a"})
_BOX = re.compile(r"\\boxed\s*\{(.*)\}", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf|operatorname)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_LATEX = (
    (re.compile(r"\\(?:left|right|displaystyle|[,;:! ])"), ""),
    (re.compile(r"\\(?:cdot|times)"), "*"),
    (re.compile(r"\\([a-z]+)"), r"\1"),
)
_RAISED = re.compile("(?<=[\\w)])[⁺⁻]?[⁰¹²³⁴-⁹]+")
_BRACES = re.compile(r"(?<=\d)\{,\}|(?<=\^)\{-?\w+\}")
_POWER = re.compile(r"\*\*(?=\s*[\w(-])(?<=[\w)]\*\*)")
_TRAILING_ZEROS = re.compile(r"(?<![\d.])(\d+)\.(\d*?)0+(?![\d.])")
_BARE_POINT = re.compile(r"(?<![\w.)\]}])(?=\.\d)")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SPACE_AT_MARK = re.compile(r"\s*([^\w\s.])\s*")
_MARKS_AROUND = " \t\n*_`\"'$,;:"
_BRACKETED_NUMBER = re.compile(r"(?<![\w)])\((\d+)\)(?![\w(])")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def strip_edges(text: str, marks: str) -> str:
    """Return the text without the characters in `marks` at its ends, and full stops at its end.

    A full stop at the beginning stays, as in `.5`.
    """
    return text.strip(marks).rstrip(f".{marks}")


def canonical_answer(answer: str) -> str:
    r"""Return the canonical form of an answer; "" if it is blank, `nan` or `n/a`.

    Case is folded, and characters are replaced by their plain equivalents (NFKC). The following are
    removed: Markdown, quotation marks, `$`, `,`, `;` and `:` around the answer, and full stops at
    its end; brackets around all of it or around a single number; commas between thousands in a
    number, and zeros at the end of a decimal fraction; braces around an exponent or a comma between
    thousands. `.5` becomes `0.5`. Raised digits become a power, `\frac` a division, `\cdot` and
    `\times` a `*`; `\text`, `\left` and their like are removed, and other commands lose their
    backslash. White space between two words becomes one space, other white space is removed. Text
    outside a `\boxed{…}` is ignored.

    In answers of more than 2,000 characters, such as programs and essays, only case and white space
    are normalised, and characters after the first 4,000 are ignored.
    """
    text = answer[: 2 * _MAX_CHARACTERS].casefold().strip()
    if len(text) > _MAX_CHARACTERS:
        return " ".join(text.split())
    for _ in range(_MAX_ROUNDS):  # until nothing changes, as a rule's result may fit another rule
        previous = text
        plain = text if text.isascii() else _plain_characters(text)
        text = _simplify_text(plain)
        if text == previous:
            break
    return "" if text in _NO_ANSWERS else text


def _plain_characters(text: str) -> str:
    raised = _RAISED.sub(r"^\g<0>", join_thousands(text))
    return unicodedata.normalize("NFKC", plain_digits(raised)).casefold()


def _simplify_text(text: str) -> str:
    if "\\" in text:
        box = _BOX.search(text)
        text = _TEXT.sub(r"\1", box[1] if box else text)
        text = _FRACTION.sub(r"(\1)/(\2)", text)
        for pattern, plain in _LATEX:
            text = pattern.sub(plain, text)
    if "**" in text:
        text = _POWER.sub("^", text)
    if "{" in text:
        text = _BRACES.sub(lambda found: found[0][1:-1], text)
    text = " ".join(text.split()).strip(_MARKS_AROUND).rstrip("." + _MARKS_AROUND)
    if "(" in text:
        text = _BRACKETED_NUMBER.sub(r"\1", text)
    text = _without_brackets(text)
    if "," in text and _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if "." in text:
        text = _TRAILING_ZEROS.sub(_plain_number, text)
        text = _BARE_POINT.sub(r"\g<0>0", text)
    return _SPACE_AT_MARK.sub(r"\1", text) if " " in text else text


def _plain_number(number: re.Match[str]) -> str:
    return f"{number[1]}.{number[2]}" if number[2] else number[1]


def _without_brackets(text: str) -> str:
    """Return the text without brackets that enclose all of it."""
    if len(text) < 2 or _BRACKETS.get(text[0]) != text[-1]:  # noqa: PLR2004 - a pair
        return text
    depth = 0
    for index, character in enumerate(text):
        depth += (character == text[0]) - (character == text[-1])
        if not depth:
            return text[1:-1].strip() if index == len(text) - 1 else text
    return text
