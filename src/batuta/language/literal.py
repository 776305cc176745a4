r"""Parses a list of strings, whole numbers and lists in Python or JSON syntax.

The parser makes one pass without recursion or evaluation, so even hostile text takes linear time.
It is more lenient than Python:

- curly quotes open and close strings, and a string may span lines;
- `\/` and surrogate pairs are read as in JSON; an escape that neither language has stays as it is;
- bare words (`all`, `None`, `solve it`) are strings, including the spaces between them, and are
  joined to an adjacent string by a space if white space separates them;
- commas may be repeated, and the comma before an inner list may be missing;
- back-ticks outside strings are skipped;
- a whole number may have leading zeros, and zeros after a point (`2.0`).

A number of more than 9 digits is refused.
"""

from __future__ import annotations

import re
import sys

from batuta.errors import WorkflowError

LiteralValue = str | int | list["LiteralValue"]


class UnclosedListError(WorkflowError):
    """A list, or a string in it, is not closed before the end of the text."""


MAX_DEPTH = 4
"""Maximum nesting of lists, counting the outermost; access lists need two levels."""

_SPACE = re.compile(r"[\s`]*")
_WHOLE_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.0+)?(?![\w.])")
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
        WorkflowError: the list cannot be parsed; the message says why.
    """
    stack: list[list[LiteralValue]] = [[]]
    position = end = start + 1
    comma, bare = True, False
    adjacent: list[str] = []
    while True:
        position = _skip_blanks(text, position)
        head = text[position : position + 1]
        if head in {"]", ",", "["}:
            _join_adjacent(stack[-1], adjacent)
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
                raise WorkflowError(f"lists are nested more than {MAX_DEPTH} levels deep")
            stack.append([])
            position, comma = position + 1, True
        else:
            was_bare, bare = bare, _PREFIX.match(text, position) is None
            blank = " " if (bare or was_bare) and position > end else ""
            value, position = _read_scalar(text, position)
            _append_value(stack[-1], adjacent, value, blank, after_comma=comma)
            end, comma = position, False


def _append_value(
    into: list[LiteralValue],
    adjacent: list[str],
    value: str | int,
    blank: str,
    *,
    after_comma: bool,
) -> None:
    """Append the value; two strings without a comma between them are concatenated, as in Python.

    `blank` is put between the two. The parts of a string are collected in `adjacent`; adding each
    to the string would take quadratic time.
    """
    if after_comma or not into:
        into.append(value)
        if isinstance(value, str):
            adjacent.append(value)
    elif adjacent and isinstance(value, str):
        adjacent.append(blank + value)
    else:
        raise WorkflowError("a comma is missing in a list")


def _join_adjacent(into: list[LiteralValue], adjacent: list[str]) -> None:
    """Replace the last string by the collected parts, joined, and forget the parts."""
    if len(adjacent) > 1:
        into[-1] = "".join(adjacent)
    adjacent.clear()


def _skip_blanks(text: str, position: int) -> int:
    """Return the position after white space, back-ticks and `#` comments."""
    while True:
        match = _SPACE.match(text, position)
        position = match.end() if match else position
        if text[position : position + 1] != "#":
            return position
        line_end = text.find("\n", position)
        position = len(text) if line_end < 0 else line_end


def _read_scalar(text: str, position: int) -> tuple[str | int, int]:
    """Return a string, a whole number or a bare word, and the position after it."""
    if position >= len(text):
        raise UnclosedListError("a list is not closed")
    if quoted := _PREFIX.match(text, position):
        return _read_string(text, quoted)
    if number := _WHOLE_NUMBER.match(text, position):
        return int(number.group().split(".")[0]), number.end()
    if word := _WORD.match(text, position):
        return word.group(), word.end()
    refused = repr(text[position : position + 12])
    raise WorkflowError(
        "a list may contain only strings, lists, and whole numbers of at most 9 digits, "
        f"not {refused}"
    )


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
    for match in re.compile(rf"\\.|{ends}", re.DOTALL).finditer(text, start):
        if not match.group().startswith("\\"):
            return match.start()
    raise UnclosedListError("a string is not closed")


def _escaped_character(match: re.Match[str]) -> str:
    high, low, four, eight, two, octal, simple = match.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if octal:
        return chr(int(octal, 8))
    if digits := four or eight or two:
        code = int(digits, 16)
        return chr(code) if code <= sys.maxunicode else match.group()
    return _SIMPLE_ESCAPES.get(simple, match.group())
