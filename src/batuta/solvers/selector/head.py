"""The policy: one logit a worker, learned in two stages on top of what each is expected to earn.

Stage 1 minimises KL(target ‖ policy), where a question's target is softmax(mean credit / τ) over
the workers that were run on it. Stage 2 is sep-CMA-ES (Ros and Hansen, "A Simple Modification in
CMA-ES Achieving Linear Time and Space Complexity", PPSN 2008) on the reward of the worker that
the policy picks. Both as in TRINITY (arXiv 2512.04695).

Deviations: the head reads hashed n-grams and expected credits, not a language model's hidden
state; it starts from the expected credits and learns to correct them; a stage is kept only if
held-in validation questions do not speak against it.

Axes: n questions, f inputs of the head, m workers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.distribution import install_hint
from batuta.errors import ConfigError

Floats = NDArray[np.float32]
ProgressCallback = Callable[[str, int, int], None]
"""Hears a stage's name, the steps done and all its steps."""

TEMPERATURE = 0.5
"""τ."""
STEPS = 120
"""Of stage 1."""
_LEARNING_RATE = 0.01
_PENALTY = 2e-3
"""On the squared corrections; without it the head remembers its questions."""
GENERATIONS = 60
POPULATION = 32
SIGMA = 0.03
"""σ0, and the two numbers above, as in TRINITY."""
PATIENCE = 15
"""Generations without a better validation after which stage 2 ends."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadBatch:
    """Questions as the head sees them."""

    inputs_nf: Floats
    """The features, and each worker's expected reward less its mean."""
    values_nm: Floats
    """Expected reward, from other questions."""
    reward_nm: Floats
    """What was earned; NaN: unknown."""

    def select_rows(self, rows: NDArray[Any]) -> HeadBatch:
        """Some of the questions."""
        return HeadBatch(self.inputs_nf[rows], self.values_nm[rows], self.reward_nm[rows])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CorrectionHead:
    """Corrections to the logits values / τ, linear in the inputs."""

    weights_fm: Floats
    bias_m: Floats

    @staticmethod
    def zeros(inputs: int, workers: int) -> CorrectionHead:
        """Corrects nothing."""
        return CorrectionHead(
            np.zeros((inputs, workers), np.float32), np.zeros(workers, np.float32)
        )

    def __call__(self, inputs_nf: Floats) -> Floats:
        """The corrections: (n, m)."""
        return inputs_nf @ self.weights_fm + self.bias_m

    def logits(self, batch: HeadBatch) -> Floats:
        """(n, m)."""
        return batch.values_nm / np.float32(TEMPERATURE) + self(batch.inputs_nf)

    def mean_reward(self, batch: HeadBatch) -> float:
        """The mean reward of the workers that it picks."""
        return mean_reward_picked(batch.reward_nm, self.logits(batch).argmax(axis=1))


def mean_reward_picked(reward_nm: Floats, picked_n: NDArray[np.intp]) -> float:
    """The mean reward of the workers picked.

    Where it is unknown, what those that are known earn on that question on average: were it not
    counted, hard questions would be given to whoever is hardly known.
    """
    earned_n = reward_nm[np.arange(len(picked_n)), picked_n]
    unknown_n = np.isnan(earned_n)
    if unknown_n.any():
        earned_n = np.where(unknown_n, np.nanmean(reward_nm, axis=1), earned_n)
    return float(earned_n.mean())


def fit_soft_targets(
    batch: HeadBatch, on_progress: ProgressCallback | None = None
) -> CorrectionHead:
    """Stage 1, with Adam on all questions at once."""
    target_nm = _softmax_rows(
        np.where(np.isnan(batch.reward_nm), -np.inf, batch.reward_nm / TEMPERATURE)
    )
    head = CorrectionHead.zeros(batch.inputs_nf.shape[1], batch.values_nm.shape[1])
    joined = np.concatenate([head.weights_fm, head.bias_m[None]])
    inputs = np.column_stack([batch.inputs_nf, np.ones(len(target_nm), np.float32)])
    first, second = np.zeros_like(joined), np.zeros_like(joined)
    known_nm = ~np.isnan(batch.reward_nm)
    for step in range(1, STEPS + 1):
        logits = batch.values_nm / np.float32(TEMPERATURE) + inputs @ joined
        policy_nm = _softmax_rows(np.where(known_nm, logits, -np.inf))
        gradient = inputs.T @ (policy_nm - target_nm) / len(target_nm) + _PENALTY * joined
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        scale = np.sqrt(second / (1 - 0.99**step)) + 1e-8
        joined = (joined - _LEARNING_RATE * first / (1 - 0.9**step) / scale).astype(np.float32)
        if on_progress:
            on_progress("stage 1, soft targets", step, STEPS)
    return CorrectionHead(joined[:-1], joined[-1])


def evolve_head(
    head: CorrectionHead,
    batch: HeadBatch,
    validation: HeadBatch,
    seed: int,
    *,
    on_progress: ProgressCallback | None = None,
) -> CorrectionHead:
    """Stage 2: the head that is best on the validation questions, which is never below `head`.

    Raises:
        ConfigError: the `cmaes` package is missing.
    """
    library = import_search_library()
    shape, width = head.weights_fm.shape, head.weights_fm.size
    start = np.concatenate([head.weights_fm.ravel(), head.bias_m]).astype(np.float64)
    search = library.SepCMA(mean=start, sigma=SIGMA, seed=seed, population_size=POPULATION)
    best, best_reward, since = head, head.mean_reward(validation), 0
    for generation in range(1, GENERATIONS + 1):
        asked = [search.ask() for _ in range(POPULATION)]
        found = [_unflatten_head(numbers, shape, width) for numbers in asked]
        search.tell([(x, -one.mean_reward(batch)) for x, one in zip(asked, found, strict=True)])
        mean = _unflatten_head(np.mean(asked, axis=0), shape, width)
        reward = mean.mean_reward(validation)
        since += 1
        if reward > best_reward:
            best, best_reward, since = mean, reward, 0
        if on_progress:
            on_progress("stage 2, sep-CMA-ES", generation, GENERATIONS)
        if since >= PATIENCE:
            break
    return best


def _unflatten_head(
    numbers: NDArray[np.float64], shape: tuple[int, ...], width: int
) -> CorrectionHead:
    flat = numbers.astype(np.float32)
    return CorrectionHead(flat[:width].reshape(shape), flat[width:])


def import_search_library() -> Any:
    """The package `cmaes`.

    Raises:
        ConfigError: it is missing.
    """
    try:
        return importlib.import_module("cmaes")
    except ImportError:
        raise ConfigError(
            f"stage 2 needs the package cmaes; install it ({install_hint('train')}), or train "
            "without stage 2"
        ) from None


def _softmax_rows(logits_nm: NDArray[np.floating[Any]]) -> Floats:
    spread = np.exp(logits_nm - logits_nm.max(axis=1, keepdims=True))
    return (spread / spread.sum(axis=1, keepdims=True)).astype(np.float32)
