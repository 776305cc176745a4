"""One reply in the making, a slice of time after another."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import final

from batuta.core import Finish, Sampling
from batuta.embedded.blas import one_thread
from batuta.embedded.bpe import Tokenizer
from batuta.embedded.names import Names
from batuta.embedded.qwen2 import Cache, Qwen2
from batuta.embedded.sample import choose, generator
from batuta.embedded.speech import Speech

_BLOCK = 64
"""Prompt tokens computed at once: enough to be fast, few enough to leave soon."""


@final
class Generation:
    """A prompt being read, then its reply being written; slices of any length give one reply."""

    def __init__(
        self,
        model: Qwen2,
        tokenizer: Tokenizer,
        ends: frozenset[int],
        prompt: Sequence[int],
        sampling: Sampling,
        names: Names | None = None,
    ) -> None:
        """Computes nothing yet.

        Args:
            model: the weights.
            tokenizer: what the tokens stand for.
            ends: the tokens that end a reply.
            prompt: at least one token, fewer than the model has positions.
            sampling: how; without `max_tokens`, as far as the positions reach.
            names: whom the reply may call; None: anybody.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._ends = ends
        self._unread = list(prompt)
        self._sampling = sampling
        self._names = names
        self._rng = generator(sampling.seed)
        self._speech = Speech(sampling.stop)
        room = model.shape.positions - len(prompt)
        self._most = min(sampling.max_tokens or room, room)
        self._cache = Cache(model.shape, len(prompt) + self._most)
        self.read = len(prompt)
        """Tokens of the prompt."""
        self.written = 0
        """Tokens of the reply so far, the one that ends it included."""
        self.finish: Finish | None = None
        """None: not finished."""

    def advance(self, seconds: float) -> str:
        """Works for about `seconds`, or to the end; what may now be said of the reply."""
        until = perf_counter() + seconds
        said: list[str] = []
        with one_thread():
            while self.finish is None:
                said.append(self._step())
                if perf_counter() >= until:
                    break
        return "".join(said)

    def _step(self) -> str:
        """Reads a block of the prompt, or the last token written, and may write another."""
        block, self._unread = self._unread[:_BLOCK], self._unread[_BLOCK:]
        logits = self._model.logits(block, self._cache)
        if self._unread:
            return ""
        if self._names is not None:
            logits = self._names.kept(logits)
        return self._write(choose(logits, self._sampling, self._rng))

    def _write(self, token: int) -> str:
        self._unread = [token]
        self.written += 1
        ended = token in self._ends
        last = ended or self.written == self._most
        written = self._tokenizer.bytes_of(token)
        if self._names is not None:
            self._names.take(written)
        said = self._speech.take(written, last=last)
        if ended or self._speech.stopped:
            self.finish = Finish.STOP
        elif last:
            self.finish = Finish.LENGTH
        return said
