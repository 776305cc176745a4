"""Tokens' bytes as text that may be said: no half characters, nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import final


@final
class IncrementalDetokenizer:
    """Turns bytes into text as they come. Law: what was said, joined, is the whole text."""

    def __init__(self, stop: Iterable[str]) -> None:
        """Ends before the first of the `stop` strings; empty ones are ignored."""
        self._stop = tuple(filter(None, stop))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held_back = ""
        self.has_stopped = False
        """A stop string has come."""

    def append_bytes(self, data: bytes, *, last: bool = False) -> str:
        """Return the text that may be shown now.

        An end that may begin a stop string is held back.
        """
        text = self._held_back + self._decoder.decode(data, last)
        found = [at for at in map(text.find, self._stop) if at >= 0]
        if found:
            self.has_stopped = True
            self._held_back = ""
            return text[: min(found)]
        said = len(text) - (0 if last else self._held_back_length(text))
        self._held_back = text[said:]
        return text[:said]

    def _held_back_length(self, text: str) -> int:
        """Characters at the end of `text` that may be the start of a stop string."""
        starts = (
            size
            for stop in self._stop
            for size in range(min(len(stop) - 1, len(text)), 0, -1)
            if text.endswith(stop[:size])
        )
        return max(starts, default=0)
