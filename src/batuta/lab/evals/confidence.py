"""Fits the probability that an answer is right to graded runs.

Axes: n runs, f signals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.config.confidence import ConfidenceFile, MeasuredConfidence, StoredCalibration
from batuta.core import Run, StepRun, WorkerId
from batuta.engine.confidence import SIGNALS, Calibration, answer_signals, find_step
from batuta.errors import ConfigError
from batuta.lab.learners.regression import fit_logistic
from batuta.store import RunSummary, Store

Floats = NDArray[np.floating[Any]]

LEAST_RUNS = 40
"""Fewer graded runs of a conductor, or fewer questions, are not fitted."""
LEAST_OF_EACH = 5
"""Fewer right or wrong answers among them are not fitted."""
LEAST_FOR_CURVE = 200
"""From so many runs on an isotonic curve corrects the regression."""
_BLOCK = 30
"""Runs behind each point of the curve."""
_FOLDS = 5
_PRIOR_OUTCOMES = 4.0
"""The weight, in outcomes, with which a worker's share right is drawn to that of all."""
_PENALTY = 1.0
_BINS = 10
_COVERAGE = 0.8
_RIGHT = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class GradedRun:
    """A run, the step that gave its answer, and its grade."""

    run: Run
    step: StepRun
    right: bool

    @property
    def fold(self) -> int:
        """Its fold: all runs of a question are in the same one."""
        text = self.run.header.question.text.encode("utf-8", "replace")
        return blake2b(text, digest_size=4).digest()[0] % _FOLDS


@dataclass(frozen=True, slots=True)
class FittedConfidence:
    """What was fitted, and what was not and why."""

    stored: ConfidenceFile
    left_out: tuple[str, ...]

    @property
    def text(self) -> str:
        """The file that `[confidence]` names."""
        return self.stored.model_dump_json(indent=1) + "\n"

    def describe(self) -> list[str]:
        """Return a line for each conductor."""
        lines = [
            f"{name}: {one.runs} runs, {one.measured.right:.1%} right; on runs it was not fitted "
            f"to: calibration error {one.measured.calibration_error:.3f}, Brier "
            f"{one.measured.brier:.3f}, {one.measured.right_at_80:.1%} right of the surest 80 %"
            for name, one in self.stored.conductors.items()
        ]
        return [*lines, *self.left_out]


def graded_run(run: Run, score: float) -> GradedRun | None:
    """Return the run with its grade; None if it has no answer of a step."""
    if run.reply is None or run.reply.tool_calls:
        return None
    step = find_step(run.rounds, run.reply)
    return None if step is None else GradedRun(run, step, score >= _RIGHT)


async def calibrate_confidence(target: Path | str, out: Path) -> FittedConfidence:
    """Fit the probabilities to a store's graded runs and write them.

    Args:
        target: the store, such as `runs.db` of an evaluation.
        out: the file that is written.

    Raises:
        ConfigError: no conductor has enough graded runs.
    """
    fitted = fit_confidence(await _read_graded(target))
    if not fitted.stored.conductors:
        reasons = "; ".join(fitted.left_out) or "no graded run is stored there"
        raise ConfigError(f"nothing can be calibrated: {reasons}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(fitted.text)
    return fitted


def fit_confidence(graded: Sequence[GradedRun]) -> FittedConfidence:
    """Fit the probabilities of each conductor that has enough graded runs."""
    groups: dict[str, list[GradedRun]] = defaultdict(list)
    for one in graded:
        groups[one.run.header.conductor].append(one)
    found: dict[str, StoredCalibration] = {}
    left_out: list[str] = []
    for name, group in sorted(groups.items()):
        questions = len({one.run.header.question.text for one in group})
        right = sum(one.right for one in group)
        if questions < LEAST_RUNS:
            left_out.append(f"{name}: {questions} graded questions, and {LEAST_RUNS} are needed")
        elif min(right, len(group) - right) < LEAST_OF_EACH:
            need = f"{LEAST_OF_EACH} of each are needed"
            left_out.append(f"{name}: {right} of {len(group)} answers are right, and {need}")
        else:
            found[name] = _fit_group(group)
    return FittedConfidence(ConfidenceFile(conductors=found), tuple(left_out))


def _fit_group(group: Sequence[GradedRun]) -> StoredCalibration:
    """Fit one conductor; what is measured is measured on the folds that were left out."""
    sure_n = _cross_fit(group, _fit_calibrated)
    right_n = np.array([one.right for one in group], float)
    told_n = ~np.isnan(sure_n)
    whole = _fit_calibrated(group)
    return StoredCalibration(
        weights={name: round(weight, 6) for name, weight in whole.weights.items()},
        workers={str(worker): round(share, 6) for worker, share in whole.workers.items()},
        runs=len(group),
        curve=whole.curve,
        measured=measure_confidence(sure_n[told_n], right_n[told_n]),
    )


def _cross_fit(
    group: Sequence[GradedRun], fit: Callable[[Sequence[GradedRun]], Calibration]
) -> NDArray[np.float64]:
    """Return each run's probability by a fit to the other folds: (n,)."""
    sure_n = np.full(len(group), np.nan)
    for fold in range(_FOLDS):
        known = [one for one in group if one.fold != fold]
        rows = [row for row, one in enumerate(group) if one.fold == fold]
        if known and rows:
            calibration = fit(known)
            sure_n[rows] = [_state_probability(calibration, group[row]) for row in rows]
    return sure_n


def _fit_calibrated(group: Sequence[GradedRun]) -> Calibration:
    """Fit weights and, of enough runs, what their probabilities stand for."""
    whole = _fit_signals(group)
    if len(group) < LEAST_FOR_CURVE:
        return whole
    sure_n = _cross_fit(group, _fit_signals)
    told_n = ~np.isnan(sure_n)
    right_n = np.array([one.right for one in group], float)
    return replace(whole, curve=_fit_curve(sure_n[told_n], right_n[told_n]))


def _fit_curve(sure_n: Floats, right_n: Floats) -> tuple[tuple[float, float], ...]:
    """Return the isotonic regression of grades on probabilities, over equal shares of the runs."""
    order = np.argsort(sure_n, kind="stable")
    blocks: list[tuple[float, float, int]] = []
    for part in np.array_split(order, max(1, len(order) // _BLOCK)):
        block = float(sure_n[part].mean()), float(right_n[part].mean()), len(part)
        while blocks and (blocks[-1][1] >= block[1] or blocks[-1][0] >= block[0]):
            block = _pool_blocks(blocks.pop(), block)
        blocks.append(block)
    return tuple((round(sure, 6), round(right, 6)) for sure, right, _ in blocks)


def _pool_blocks(
    one: tuple[float, float, int], other: tuple[float, float, int]
) -> tuple[float, float, int]:
    count = one[2] + other[2]
    sure = (one[0] * one[2] + other[0] * other[2]) / count
    return sure, (one[1] * one[2] + other[1] * other[2]) / count, count


def _state_probability(calibration: Calibration, one: GradedRun) -> float:
    reply, share = one.run.reply, calibration.workers.get(one.step.worker)
    if share is None or reply is None:
        return float("nan")
    return calibration.probability(answer_signals(one.run.rounds, one.step, reply, share))


def _fit_signals(group: Sequence[GradedRun]) -> Calibration:
    """Fit weights; a worker's share right in a row is that of its other runs."""
    right, asked = _count_outcomes(group)
    mean = sum(right.values()) / len(group)

    def share(worker: WorkerId, less: float = 0.0, fewer: int = 0) -> float:
        outcomes = asked[worker] - fewer + _PRIOR_OUTCOMES
        return (right[worker] - less + _PRIOR_OUTCOMES * mean) / outcomes

    rows: list[list[float]] = []
    for one in group:
        assert one.run.reply is not None  # noqa: S101 - it has a step
        without = share(one.step.worker, float(one.right), 1)
        signals = answer_signals(one.run.rounds, one.step, one.run.reply, without)
        rows.append([signals[name] for name in SIGNALS])
    inputs_nf = np.array(rows, float)
    right_n = np.array([one.right for one in group], float)
    prior_f = np.array([0.0, 1.0, *[0.0] * (len(SIGNALS) - 2)])
    penalty_f = np.full(len(SIGNALS), _PENALTY)
    penalty_f[0] = 0.01
    weights_f = fit_logistic(inputs_nf[:, None, :], right_n[:, None], prior_f, penalty_f)
    return Calibration(
        weights=dict(zip(SIGNALS, map(float, weights_f), strict=True)),
        workers={worker: share(worker) for worker in asked},
        runs=len(group),
    )


def _count_outcomes(
    group: Sequence[GradedRun],
) -> tuple[Mapping[WorkerId, float], Mapping[WorkerId, int]]:
    right: dict[WorkerId, float] = defaultdict(float)
    asked: dict[WorkerId, int] = defaultdict(int)
    for one in group:
        right[one.step.worker] += one.right
        asked[one.step.worker] += 1
    return right, asked


def measure_confidence(sure_n: Floats, right_n: Floats) -> MeasuredConfidence:
    """Measure probabilities of runs whose grades are known."""
    place_n = np.minimum((sure_n * _BINS).astype(int), _BINS - 1)
    error = 0.0
    for place in range(_BINS):
        here_n = place_n == place
        if here_n.any():
            error += here_n.mean() * abs(sure_n[here_n].mean() - right_n[here_n].mean())
    kept = np.argsort(-sure_n, kind="stable")[: max(1, round(_COVERAGE * len(sure_n)))]
    return MeasuredConfidence(
        runs=len(sure_n),
        right=float(right_n.mean()),
        calibration_error=float(error),
        brier=float(((sure_n - right_n) ** 2).mean()),
        auroc=_rank_chance(sure_n, right_n),
        right_at_80=float(right_n[kept].mean()),
    )


def _rank_chance(sure_n: Floats, right_n: Floats) -> float | None:
    good, bad = sure_n[right_n > _RIGHT], sure_n[right_n <= _RIGHT]
    if not len(good) or not len(bad):
        return None
    order = np.sort(bad)
    below = np.searchsorted(order, good, "left") + np.searchsorted(order, good, "right")
    return float(below.sum() / (2 * len(good) * len(bad)))


async def _read_graded(target: Path | str) -> list[GradedRun]:
    """Read the runs of a store that have an answer and a grade."""
    async with Store.open(target) as store:
        read = [await _read_one(store, row) async for row in store.read_all()]
    return [one for one in read if one is not None]


async def _read_one(store: Store, row: RunSummary) -> GradedRun | None:
    run = await store.get(row.id) if row.score is not None else None
    return None if run is None or row.score is None else graded_run(run, row.score)
