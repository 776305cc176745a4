"""One reply in the making, a slice of time after another."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import final

from batuta.core import Finish, Sampling
from batuta.embedded.blas import single_blas_thread
from batuta.embedded.bpe import Tokenizer
from batuta.embedded.constrained_decoding import NameConstraint
from batuta.embedded.detokenizer import IncrementalDetokenizer
from batuta.embedded.qwen2 import KVCache, Qwen2
from batuta.embedded.sampling import create_generator, sample_token

_PROMPT_BLOCK = 64
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
        *,
        sampling: Sampling,
        names: NameConstraint | None = None,
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
        self._rng = create_generator(sampling.seed)
        self._detokenizer = IncrementalDetokenizer(sampling.stop)
        room = model.shape.positions - len(prompt)
        self._max_output = min(sampling.max_tokens or room, room)
        self._cache = KVCache(model.shape, len(prompt) + self._max_output)
        self.prompt_tokens = len(prompt)
        """Tokens of the prompt."""
        self.output_tokens = 0
        """Tokens of the reply so far, the one that ends it included."""
        self.finish: Finish | None = None
        """None: not finished."""

    def advance(self, seconds: float) -> str:
        """Works for about `seconds`, or to the end; what may now be said of the reply."""
        until = perf_counter() + seconds
        said: list[str] = []
        with single_blas_thread():
            while self.finish is None:
                said.append(self._step())
                if perf_counter() >= until:
                    break
        return "".join(said)

    def _step(self) -> str:
        """Reads a block of the prompt, or the last token written, and may write another."""
        block, self._unread = self._unread[:_PROMPT_BLOCK], self._unread[_PROMPT_BLOCK:]
        logits = self._model.logits(block, self._cache)
        if self._unread:
            return ""
        if self._names is not None:
            logits = self._names.mask_logits(logits)
        return self._append_token(sample_token(logits, self._sampling, self._rng))

    def _append_token(self, token: int) -> str:
        self._unread = [token]
        self.output_tokens += 1
        ended = token in self._ends
        last = ended or self.output_tokens == self._max_output
        written = self._tokenizer.token_bytes(token)
        if self._names is not None:
            self._names.append_text(written)
        said = self._detokenizer.append_bytes(written, last=last)
        if ended or self._detokenizer.has_stopped:
            self.finish = Finish.STOP
        elif last:
            self.finish = Finish.LENGTH
        return said
