"""Constrains the names in a draft's list `model_id` to those of the listed workers."""

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
"""Matches complete names, and then a name in progress."""


@final
class NameTokens:
    """Finds the tokens that may continue a name, in a sorted list of all tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        spelled = ((tokenizer.token_bytes(token), token) for token in range(len(tokenizer)))
        self._sorted = sorted(pair for pair in spelled if pair[0])

    def continuing_tokens(self, rest: bytes) -> Iterator[int]:
        """Yield the tokens whose bytes are a prefix of `rest`, or begin with `rest`."""
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
    """Follows one draft, and masks tokens that would name a worker that is not listed.

    Guided decoding (Willard and Louf 2023, arXiv:2307.09702) is applied only to workers' names,
    because a workflow that names an absent worker cannot be run. Workers' numbers and the rest of
    the draft are free.
    """

    def __init__(self, names: Sequence[str], spelling: NameTokens) -> None:
        """Allow only these workers' `names`; without names nothing is masked."""
        self._names = [json.dumps(name, ensure_ascii=False)[1:].encode() for name in names]
        self._spelling = spelling
        self._written = b""

    def append_text(self, written: bytes) -> None:
        """Add the bytes with which the draft continues."""
        self._written += written

    def mask_logits(self, logits: Floats) -> Floats:
        """Return the logits, (v,), with minus infinity for forbidden tokens.

        Nothing is masked outside a name, or if no listed name can continue the name in progress.
        """
        prefix = self._unfinished_name()
        if prefix is None:
            return logits
        rests = [name[len(prefix) :] for name in self._names if name.startswith(prefix)]
        tokens = [token for rest in rests for token in self._spelling.continuing_tokens(rest)]
        if not tokens:
            return logits
        masked = np.full_like(logits, -np.inf)
        masked[tokens] = logits[tokens]
        return masked

    def _unfinished_name(self) -> bytes | None:
        """Return the bytes of the name in progress, perhaps none yet; None outside a name."""
        at = self._written.rfind(_LIST_START)
        found = None if at < 0 else _NAME_PATTERN.fullmatch(self._written, at + len(_LIST_START))
        return found and found[1]
