r"""Parses a list of strings, numbers and lists in Python or JSON syntax.

The parser makes one pass without recursion or evaluation, so even hostile text takes linear time.
It is more lenient than Python: curly quotes open and close strings, a string may span lines, `\/`
and surrogate pairs are read as in JSON, and bare words (`all`, `None`, `solve it`) are strings,
including the spaces between them.
"""

from __future__ import annotations

import re
import sys

from batuta.errors import WorkflowError

LiteralValue = str | int | list["LiteralValue"]


class UnclosedListError(WorkflowError):
    """A list, or a string in it, is not closed before the end of the text."""


MAX_DEPTH = 4
"""Maximum nesting of lists; an access list needs two levels."""

_SPACE = re.compile(r"[\s`]*")
_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.0+)?(?![\w.])")
_WORD = re.compile(r"[^\W\d]\w*+(?:\s++\w++(?![\"'\u201c\u2018]))*")
_PREFIX = re.compile(r"([rRuU]?)(\"\"\"|'''|[\"'\u201c\u201d\u2018\u2019\u201e\u201a])")
_CLOSING_QUOTES = {
    "\u201c": "\u201d",
    "\u201e": "\u201d\u201c",
    "\u2018": "\u2019",
    "\u201a": "\u2019\u2018",
    "\u201d": "\u201d",
    "\u2019": "\u2019",
}
_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([0-7]{1,3})|(\r\n|.))",
    re.DOTALL,
)
_SIMPLE_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "\\": "\\",
    "/": "/",
    "'": "'",
    '"': '"',
    "\n": "",
    "\r\n": "",
}


def read_list(text: str, start: int) -> tuple[list[LiteralValue], int]:
    """Parse the list whose `[` is at `start`; return it and the position after its `]`.

    Raises:
        UnclosedListError: the text ends within the list.
        WorkflowError: the list contains something that cannot be parsed.
    """
    stack: list[list[LiteralValue]] = [[]]
    position = end = start + 1
    comma, bare = True, False
    while True:
        position = _skip_blanks(text, position)
        head = text[position : position + 1]
        if head == "]":
            done = stack.pop()
            position += 1
            if not stack:
                return done, position
            stack[-1].append(done)
            comma = False
        elif head == ",":
            position, comma = position + 1, True
        elif head == "[":
            if len(stack) == MAX_DEPTH:
                raise WorkflowError("a list is nested too deeply")
            stack.append([])
            position, comma = position + 1, True
        else:
            was_bare, bare = bare, _PREFIX.match(text, position) is None
            blank = " " if (bare or was_bare) and position > end else ""
            value, position = _read_scalar(text, position)
            _append_value(stack[-1], value, blank, after_comma=comma)
            end, comma = position, False


def _append_value(
    into: list[LiteralValue], value: str | int, blank: str, *, after_comma: bool
) -> None:
    """Append the value; two strings without a comma between them are concatenated, as in Python.

    `blank` is put between them: a space if one of them is a bare word.
    """
    if after_comma or not into:
        into.append(value)
    elif isinstance(into[-1], str) and isinstance(value, str):
        into[-1] += blank + value
    else:
        raise WorkflowError("a comma is missing in a list")


def _skip_blanks(text: str, position: int) -> int:
    """Return the position after white space, back-ticks and `#` comments."""
    while True:
        found = _SPACE.match(text, position)
        position = found.end() if found else position
        if text[position : position + 1] != "#":
            return position
        line_end = text.find("\n", position)
        position = len(text) if line_end < 0 else line_end


def _read_scalar(text: str, position: int) -> tuple[str | int, int]:
    """Return a string, a number or a bare word, and the position after it."""
    if position >= len(text):
        raise UnclosedListError("a list is not closed")
    if quoted := _PREFIX.match(text, position):
        return _read_string(text, quoted)
    if number := _NUMBER.match(text, position):
        return int(number.group().split(".")[0]), number.end()
    if word := _WORD.match(text, position):
        return word.group(), word.end()
    found = repr(text[position : position + 12])
    raise WorkflowError(f"a list may contain only strings, numbers and lists, not {found}")


def _read_string(text: str, opening: re.Match[str]) -> tuple[str, int]:
    """Return the string that opens at `opening`, unescaped, and the position after it."""
    prefix, quote = opening.groups()
    start = opening.end()
    end = _find_closing_quote(text, start, quote)
    content = text[start:end]
    if prefix not in ("r", "R") and "\\" in content:
        content = _ESCAPE.sub(_escaped_character, content)
    return content, end + len(quote)


def _find_closing_quote(text: str, start: int, quote: str) -> int:
    ends = re.escape(quote) if quote not in _CLOSING_QUOTES else f"[{_CLOSING_QUOTES[quote]}]"
    for found in re.compile(rf"\\.|{ends}", re.DOTALL).finditer(text, start):
        if not found.group().startswith("\\"):
            return found.start()
    raise UnclosedListError("a string is not closed")


def _escaped_character(found: re.Match[str]) -> str:
    high, low, four, eight, two, octal, simple = found.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if octal:
        return chr(int(octal, 8))
    if digits := four or eight or two:
        code = int(digits, 16)
        return chr(code) if code <= sys.maxunicode else found.group()
    return _SIMPLE_ESCAPES.get(simple, found.group())
