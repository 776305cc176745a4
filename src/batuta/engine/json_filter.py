"""Filters a reply that must be JSON to the text that can be shown before all of it is checked."""

from __future__ import annotations

import re
from typing import final

_STRUCTURE = re.compile(r'["\\{}\[\]]')
_OPENING = frozenset("{[")


@final
class JsonTextFilter:
    """Passes the text of an object or an array on as it comes, and holds everything else back.

    A reply that begins otherwise, with prose or with a code block, may be repaired or unwrapped,
    so nothing of it is passed on; nor is what follows the value's end.
    """

    def __init__(self) -> None:
        self._held: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False
        self._ended = False

    def add(self, text: str) -> str:
        """Return the text that can be shown now and was not shown before."""
        self._held.append(text)
        if self._ended:
            return ""
        if not self._begun:
            text = "".join(self._held)
            first = text.lstrip()[:1]
            self._begun = first in _OPENING and bool(first)
            self._ended = bool(first) and not self._begun
            if not self._begun:
                return ""
        end = self._scan(text)
        self._held = [text[end:]] if end < len(text) else []
        return text[:end]

    def release(self) -> str:
        """Return the text that was held back; later text is no longer held."""
        held, self._held, self._ended = "".join(self._held), [], True
        return held

    def _scan(self, text: str) -> int:
        """Return the position at which the value ends in the text.

        The text's length if it does not end.
        """
        if self._escaped and text:
            self._escaped = False
            start = 1
        else:
            start = 0
        position = start
        while found := _STRUCTURE.search(text, position):
            position = found.end()
            sign = found[0]
            if sign == "\\" and self._in_string:
                self._escaped = position == len(text)
                position += 1
            elif sign == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if sign in _OPENING else -1
                if self._depth == 0:
                    self._ended = True
                    return position
        return len(text)
