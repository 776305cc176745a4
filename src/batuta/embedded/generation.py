"""One reply in the making, a slice of time after another: tokens are drawn and become text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import final

import numpy as np
from numpy.typing import NDArray

from batuta.core import Finish, Sampling
from batuta.embedded.blas import single_blas_thread
from batuta.embedded.bpe import Tokenizer
from batuta.embedded.constrained_decoding import NameConstraint
from batuta.embedded.model_files import Floats
from batuta.embedded.qwen2 import KVCache, Qwen2

_GREEDY_TEMPERATURE = 1e-5
"""Temperature below which nothing but the likeliest token has a chance."""


def create_generator(seed: int | None) -> np.random.Generator:
    """PCG64, the same numbers for the same seed everywhere; without one, unpredictable."""
    return np.random.Generator(np.random.PCG64(None if seed is None else seed % 2**64))


def sample_token(logits: Floats, sampling: Sampling, rng: np.random.Generator) -> int:
    """A token: the likeliest at temperature 0 or if none is given, else drawn."""
    temperature = sampling.temperature or 0.0
    if temperature < _GREEDY_TEMPERATURE:
        return int(logits.argmax())
    weights = softmax(logits, temperature)
    if sampling.top_p is not None:
        weights = keep_top_p(weights, sampling.top_p)
    heaps = np.cumsum(weights)
    drawn = rng.random() * float(heaps[-1])
    return int(np.searchsorted(heaps, drawn, side="right"))


def softmax(logits: Floats, temperature: float) -> NDArray[np.float64]:
    """Probabilities of the tokens, as float64."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    return weights / weights.sum()


def keep_top_p(weights: NDArray[np.float64], top_p: float) -> NDArray[np.float64]:
    """`weights` of the fewest likeliest tokens that together reach `top_p`; 0 for the others.

    Holtzman et al. 2019 (arXiv:1904.09751).
    """
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    kept = np.zeros_like(weights)
    likeliest = order[: max(int(np.searchsorted(before, top_p)), 1)]
    kept[likeliest] = weights[likeliest]
    return kept


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
