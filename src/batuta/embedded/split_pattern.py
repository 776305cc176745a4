r"""The Split pattern of a tokenizer.json, written for Oniguruma, as patterns of Python's `re`.

The two engines agree on most of what tokenizers use. `\s` differs by four control characters and
`re` knows no `\p{...}`, so both become explicit classes; whatever else could mean something
different is refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, cached_property
from typing import final

from batuta.errors import ConfigError

_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CATEGORIES = frozenset({"L", "Lu", "Ll", "Lt", "Lm", "Lo", "N", "Nd", "Nl", "No"})
_NO_CHARACTER = r"\uffff"
"""Fills the class of a category that has no member: not a character."""
_LAST_ASCII = 0x7F
_LAST_LETTER = 0x3FFFF
"""No letter or number of Unicode is above plane 3."""
_TOKEN = re.compile(
    r"\\[pP]\{(?P<category>\w+)\}|\\(?P<space>[sS])"
    r"|\\[rntfvdD]|\\[^\w\s]"  # the same in both
    r"|(?P<refused>\\.|\[\^?\]|\(\?(?!i?:|[=!>]|<[=!]))"
    r"|(?P<outside>[$^]|\}[+?])|(?P<opened>\[)|(?P<closed>\])|(?P<inside>&&)|.",
    re.DOTALL,
)


@final
class SplitPattern:
    """Cuts text into pieces: the matches of a pattern, and what lies between them."""

    def __init__(self, pattern: str) -> None:
        """Reads `pattern`.

        Raises:
            ConfigError: it uses something whose meaning in `re` is not known to be the same.
        """
        self._pattern = pattern
        self._ascii = _compile_pattern(pattern, _LAST_ASCII)

    def pieces(self, text: str) -> Iterator[str]:
        """The pieces in order; joined, they are `text`."""
        pattern = self._ascii if text.isascii() else self._full_pattern
        end = 0
        for found in pattern.finditer(text):
            if found.start() > end:
                yield text[end : found.start()]
            if found[0]:
                yield found[0]
            end = found.end()
        if end < len(text):
            yield text[end:]

    @cached_property
    def _full_pattern(self) -> re.Pattern[str]:
        """Made when first needed: the letters of all scripts take some 40 ms to look up."""
        return _compile_pattern(self._pattern, _LAST_LETTER)


def _compile_pattern(pattern: str, last: int) -> re.Pattern[str]:
    """`pattern` for texts that have no letter or number above code point `last`."""
    try:
        return re.compile("".join(_translate_pattern(pattern, last)))
    except re.error as error:
        raise ConfigError(f"the Split pattern {pattern!r} cannot be used: {error}") from None


def _translate_pattern(pattern: str, last: int) -> Iterator[str]:
    inside = False
    for token in _TOKEN.finditer(pattern):
        if token["refused"] or token["inside" if inside else "outside"]:
            raise _unsupported_error(token[0])
        if token["category"] or token["space"]:
            yield _class_text(token, last, inside=inside)
        elif token["opened"] and inside:
            raise _unsupported_error("a class within a class")
        else:
            inside = bool(token["opened"]) or (inside and not token["closed"])
            yield token[0]


def _class_text(token: re.Match[str], last: int, *, inside: bool) -> str:
    r"""`\s` or `\p{...}` as a class, or as a part of the class around it."""
    members = _SPACE if token["space"] else _category_ranges(token["category"], last)
    negative = token[0][1].isupper()
    if not inside:
        return f"[^{members}]" if negative else f"[{members}]"
    if negative:
        raise _unsupported_error(f"{token[0]} within a class")
    return members


@cache
def _category_ranges(category: str, last: int) -> str:
    """The code points of a category, as the content of a class."""
    if category not in _CATEGORIES:
        raise _unsupported_error(rf"\p{{{category}}}")
    wanted = category if len(category) > 1 else f"{category}[a-z]"
    runs = re.finditer(f"(?:{wanted})+", _category_letters(last))
    ranges = (rf"\U{run.start() // 2:08x}-\U{run.end() // 2 - 1:08x}" for run in runs)
    return "".join(ranges) or _NO_CHARACTER


@cache
def _category_letters(last: int) -> str:
    """The categories of all code points up to `last`, two letters each."""
    return "".join(map(unicodedata.category, map(chr, range(last + 1))))


def _unsupported_error(what: str) -> ConfigError:
    return ConfigError(f"the Split pattern uses {what}, which Batuta does not read")
