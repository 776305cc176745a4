"""The next token: pure functions of logits and a random number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batuta.core import Sampling
from batuta.embedded.model_files import Floats

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
