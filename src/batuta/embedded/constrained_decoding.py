"""Holds a draft's list `model_id` to the names that are listed."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from batuta.embedded.bpe import Tokenizer
from batuta.embedded.model_files import Floats

_LIST_START = b"model_id = ["
_NAME_PATTERN = re.compile(rb'(?:"(?:[^"\\\n]|\\.)*",\s*)*"((?:[^"\\\n]|\\.)*\\?)')
"""Names that are written, and one that is begun."""


@final
class NameTokens:
    """Which tokens may continue a name."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        spelled = ((tokenizer.token_bytes(token), token) for token in range(len(tokenizer)))
        self._sorted = sorted(pair for pair in spelled if pair[0])

    def continuing_tokens(self, rest: bytes) -> Iterator[int]:
        """Yield the tokens that write the beginning of `rest`, or all of it and more."""
        for end in range(1, len(rest)):
            yield from self._tokens_starting(rest[:end], whole=True)
        yield from self._tokens_starting(rest, whole=False)

    def _tokens_starting(self, start: bytes, *, whole: bool) -> Iterator[int]:
        for at in range(bisect_left(self._sorted, (start, -1)), len(self._sorted)):
            written, token = self._sorted[at]
            if written != start if whole else not written.startswith(start):
                return
            yield token


@final
class NameConstraint:
    """Follows one draft, and bars what would name somebody who is not listed.

    Guided decoding (Willard and Louf 2023, arXiv:2307.09702) of the one part of a draft that a pool
    decides: a workflow that calls an absent worker cannot be run. The rest of the draft, and a
    list of numbers, are free.
    """

    def __init__(self, names: Sequence[str], spelling: NameTokens) -> None:
        """Take the listed workers; nobody at all bars nothing."""
        self._names = [json.dumps(name, ensure_ascii=False)[1:].encode() for name in names]
        self._spelling = spelling
        self._written = b""

    def append_text(self, written: bytes) -> None:
        """Add the bytes with which the draft continues."""
        self._written += written

    def mask_logits(self, logits: Floats) -> Floats:
        """Return the logits, those of barred tokens at minus infinity."""
        begun = self._unfinished_name()
        if begun is None:
            return logits
        rests = [name[len(begun) :] for name in self._names if name.startswith(begun)]
        tokens = [token for rest in rests for token in self._spelling.continuing_tokens(rest)]
        if not tokens:
            return logits
        barred = np.full_like(logits, -np.inf)
        barred[tokens] = logits[tokens]
        return barred

    def _unfinished_name(self) -> bytes | None:
        """Return the name that is begun, maybe with no letter yet; None: none is."""
        at = self._written.rfind(_LIST_START)
        found = None if at < 0 else _NAME_PATTERN.fullmatch(self._written, at + len(_LIST_START))
        return found and found[1]
