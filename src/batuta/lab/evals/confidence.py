"""Fits the confidence of answers, the probability that they are correct, to graded runs.

Axes: n runs, f signals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.config.confidence import (
    ConfidenceFile,
    MeasuredConfidence,
    StoredCalibration,
    StoredSamples,
)
from batuta.core import Reply, Run, StepRun, WorkerId
from batuta.engine.confidence import (
    SAMPLES,
    SIGNALS,
    Calibration,
    SampleSetting,
    find_sample_round,
    find_step,
    run_signals,
    share_of_samples,
    worker_signal,
)
from batuta.errors import ConfigError, report_unwritable
from batuta.lab.learners.regression import fit_logistic
from batuta.store import RunSummary, Store

Floats = NDArray[np.floating[Any]]

LEAST_QUESTIONS = 40
"""Minimum number of a conductor's graded questions for a fit."""
LEAST_OF_EACH = 5
"""Minimum number of correct and of wrong answers for a fit."""
LEAST_FOR_CURVE = 200
"""Minimum number of runs for correcting the regression by an isotonic curve."""
_BLOCK = 30
"""Minimum number of runs behind each point of the curve."""
_FOLDS = 5
_PRIOR_OUTCOMES = 4.0
"""The weight, in outcomes, with which a worker's accuracy is shrunk towards that of all workers."""
_PENALTY = 1.0
_BINS = 10
_COVERAGE = 0.8
_RIGHT = 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class GradedRun:
    """A run, the step and the reply that gave its answer, and its grade."""

    run: Run
    step: StepRun
    reply: Reply
    right: bool
    """Whether the score is at least one half."""

    def share_of_samples(self, samples: SampleSetting) -> float | None:
        """Return the share of these samples that agree with the answer; None if unknown."""
        if samples not in self._shares:
            found = share_of_samples(self.run.rounds, self.step, self.reply, samples)
            self._shares[samples] = found
        return self._shares[samples]

    @cached_property
    def _shares(self) -> dict[SampleSetting, float | None]:
        return {}

    def signals(self, accuracy: float, samples: SampleSetting | None) -> dict[str, float]:
        """Return the signals of the answer, by name.

        `accuracy` is the accuracy of the worker that wrote the answer. `samples` adds the agreement
        of these samples, if the run has them.
        """
        signals = {**self._own_signals, "worker": worker_signal(accuracy)}
        same = None if samples is None else self.share_of_samples(samples)
        return signals if same is None else {**signals, SAMPLES: same}

    @cached_property
    def _own_signals(self) -> dict[str, float]:
        """The signals without the worker's accuracy, cached because many fits read them."""
        return run_signals(self.run.rounds, self.step, self.reply)

    @property
    def fold(self) -> int:
        """The fold of the run; all runs of a question are in the same fold."""
        text = self.run.header.question.text.encode("utf-8", "replace")
        return blake2b(text, digest_size=4).digest()[0] % _FOLDS


Fit = Callable[[Sequence[GradedRun], SampleSetting | None], Calibration]
"""Fits a calibration to runs; with a setting, also to the agreement of its samples."""


@dataclass(frozen=True, slots=True)
class FittedConfidence:
    """The fitted confidence models, and the reasons for those that could not be fitted."""

    stored: ConfidenceFile
    left_out: tuple[str, ...]

    @property
    def text(self) -> str:
        """The content of the file that the settings name in `[confidence]`."""
        return self.stored.model_dump_json(indent=1) + "\n"

    def can_serve(self, samples: SampleSetting | None) -> bool:
        """Return whether settings with these samples (None: without samples) can name the file."""
        sampled = (one.sampled for one in self.stored.conductors.values())
        if samples is None:
            return bool(self.stored.conductors)
        return any(one is not None and one.is_of(samples) for one in sampled)

    def describe(self) -> list[str]:
        """Return lines about each conductor, and the reasons for what could not be fitted."""
        lines: list[str] = []
        for name, one in self.stored.conductors.items():
            known = f"{one.runs} runs, {one.measured.right:.1%} right"
            lines.append(f"{name}: {known}; cross-validated: {_describe_measured(one.measured)}")
            if (again := one.sampled) is not None:
                better, before = map(_describe_measured, (again.measured, again.without))
                samples = f"{again.runs} runs; {better}; without them: {before}"
                lines.append(f"{name}, with {again}: {samples}")
        return [*lines, *self.left_out]


def _describe_measured(measured: MeasuredConfidence) -> str:
    return (
        f"calibration error {measured.calibration_error:.3f}, Brier {measured.brier:.3f}, "
        f"{measured.right_at_80:.1%} right among the most confident 80 %"
    )


def graded_run(run: Run, score: float) -> GradedRun | None:
    """Return the run with its grade; None if no step gave its answer, or the answer calls tools."""
    if run.reply is None or run.reply.tool_calls:
        return None
    step = find_step(run.rounds, run.reply)
    if step is None:
        return None
    return GradedRun(run=run, step=step, reply=run.reply, right=score >= _RIGHT)


async def calibrate_confidence(target: Path | str, out: Path) -> FittedConfidence:
    """Fit the probabilities to a store's graded runs and write them to `out`.

    The store may be the `runs.db` of an evaluation.

    Raises:
        ConfigError: no conductor has enough graded runs.
        StoreError: the store cannot be read, or `out` cannot be written.
    """
    fitted = fit_confidence(await _read_graded(target))
    if not fitted.stored.conductors:
        reasons = "; ".join(fitted.left_out) or "no graded run is stored there"
        raise ConfigError(f"nothing can be calibrated: {reasons}")
    with report_unwritable(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(fitted.text, encoding="utf-8")
    return fitted


def fit_confidence(graded: Sequence[GradedRun]) -> FittedConfidence:
    """Fit the probabilities of each conductor that has enough graded runs."""
    groups: dict[str, list[GradedRun]] = defaultdict(list)
    for one in graded:
        groups[one.run.header.conductor].append(one)
    found: dict[str, StoredCalibration] = {}
    left_out: list[str] = []
    for name, group in sorted(groups.items()):
        if lack := _describe_lack(group):
            left_out.append(f"{name}: {lack}")
            continue
        fitted = found[name] = _fit_group(group)
        setting = find_sample_setting(group)
        if setting is not None and fitted.sampled is None:
            sampled = [one for one in group if one.share_of_samples(setting) is not None]
            left_out.append(f"{name}, with samples: {_describe_lack(sampled)}")
    return FittedConfidence(ConfidenceFile(conductors=found), tuple(left_out))


def _describe_lack(group: Sequence[GradedRun]) -> str:
    """Return why these runs are not enough for a fit; empty if they are."""
    questions = len({one.run.header.question.text for one in group})
    right = sum(one.right for one in group)
    if questions < LEAST_QUESTIONS:
        return f"{questions} graded questions, and {LEAST_QUESTIONS} are needed"
    if min(right, len(group) - right) < LEAST_OF_EACH:
        return f"{right} of {len(group)} answers are right, and {LEAST_OF_EACH} of each are needed"
    return ""


def _fit_group(group: Sequence[GradedRun]) -> StoredCalibration:
    """Fit the runs of one conductor; the measurements are cross-validated."""
    whole = fit_calibrated(group)
    return StoredCalibration(
        weights=_round_values(whole.weights),
        workers=_round_values(whole.workers),
        runs=len(group),
        curve=whole.curve,
        measured=_measure_fit(group),
        sampled=_fit_samples(group),
    )


def _round_values(values: Mapping[Any, float]) -> dict[str, float]:
    return {str(name): round(value, 6) for name, value in values.items()}


def _measure_fit(
    group: Sequence[GradedRun], samples: SampleSetting | None = None
) -> MeasuredConfidence:
    stated_n = _cross_fit(group, fit_calibrated, samples)
    right_n = np.array([one.right for one in group], float)
    known_n = ~np.isnan(stated_n)
    return measure_confidence(stated_n[known_n], right_n[known_n])


def _fit_samples(group: Sequence[GradedRun]) -> StoredSamples | None:
    """Fit the runs that have samples of their question; None if they are too few."""
    setting = find_sample_setting(group)
    if setting is None:
        return None
    asked = [one for one in group if one.share_of_samples(setting) is not None]
    if _describe_lack(asked):
        return None
    samplers = {setting.sampler_of(one.step.worker) for one in asked}
    whole = fit_calibrated(asked, setting)
    return StoredSamples(
        count=setting.count,
        worker=str(min(samplers)) if len(samplers) == 1 else None,
        own=all(setting.sampler_of(one.step.worker) == one.step.worker for one in asked),
        weights=_round_values(whole.weights),
        runs=len(asked),
        curve=whole.curve,
        measured=_measure_fit(asked, setting),
        without=_measure_fit(asked),
    )


def find_sample_setting(group: Iterable[GradedRun]) -> SampleSetting | None:
    """Return the setting by which the most runs were sampled; None if no run was sampled."""
    kinds: Counter[SampleSetting] = Counter()
    for one in group:
        taken = find_sample_round(one.run.rounds)
        if taken is None or taken.workflow is None:
            continue
        sampler, count = taken.workflow.steps[0].worker, len(taken.workflow)
        kinds[SampleSetting(count=count, worker=sampler)] += 1
        if sampler == one.step.worker:
            kinds[SampleSetting(count=count)] += 1
    # If the sampler wrote every answer itself, both settings fit; the one without a worker wins.
    return max(kinds, key=lambda kind: (kinds[kind], kind.worker is None), default=None)


def _cross_fit(
    group: Sequence[GradedRun], fit: Fit, samples: SampleSetting | None = None
) -> NDArray[np.float64]:
    """Return each run's probability by a fit to the other folds: (n,).

    NaN if the run's worker is not in the other folds.
    """
    stated_n = np.full(len(group), np.nan)
    for fold in range(_FOLDS):
        known = [one for one in group if one.fold != fold]
        rows = [row for row, one in enumerate(group) if one.fold == fold]
        if known and rows:
            calibration = fit(known, samples)
            stated_n[rows] = [_state_probability(calibration, group[row], samples) for row in rows]
    return stated_n


def fit_calibrated(group: Sequence[GradedRun], samples: SampleSetting | None = None) -> Calibration:
    """Fit weights and, if there are enough runs, a curve that corrects the probabilities."""
    whole = _fit_signals(group, samples)
    if len(group) < LEAST_FOR_CURVE:
        return whole
    stated_n = _cross_fit(group, _fit_signals, samples)
    known_n = ~np.isnan(stated_n)
    right_n = np.array([one.right for one in group], float)
    return replace(whole, curve=_fit_curve(stated_n[known_n], right_n[known_n]))


def _fit_curve(stated_n: Floats, right_n: Floats) -> tuple[tuple[float, float], ...]:
    """Return the isotonic regression of grades on probabilities, over equal shares of the runs."""
    order = np.argsort(stated_n, kind="stable")
    blocks: list[tuple[float, float, int]] = []
    for part in np.array_split(order, max(1, len(order) // _BLOCK)):
        block = float(stated_n[part].mean()), float(right_n[part].mean()), len(part)
        while blocks and (blocks[-1][1] >= block[1] or blocks[-1][0] >= block[0]):
            block = _pool_blocks(blocks.pop(), block)
        blocks.append(block)
    return tuple((round(stated, 6), round(right, 6)) for stated, right, _ in blocks)


def _pool_blocks(
    one: tuple[float, float, int], other: tuple[float, float, int]
) -> tuple[float, float, int]:
    count = one[2] + other[2]
    stated = (one[0] * one[2] + other[0] * other[2]) / count
    return stated, (one[1] * one[2] + other[1] * other[2]) / count, count


def _state_probability(
    calibration: Calibration, one: GradedRun, samples: SampleSetting | None
) -> float:
    share = calibration.workers.get(one.step.worker)
    if share is None:
        return float("nan")
    return calibration.probability(one.signals(share, samples))


def _fit_signals(group: Sequence[GradedRun], samples: SampleSetting | None = None) -> Calibration:
    """Fit the weights of the signals; the signal `worker` comes from the worker's other runs."""
    right, asked = _count_outcomes(group)
    mean = sum(right.values()) / len(group)

    def share(worker: WorkerId, less: float = 0.0, fewer: int = 0) -> float:
        outcomes = asked[worker] - fewer + _PRIOR_OUTCOMES
        return (right[worker] - less + _PRIOR_OUTCOMES * mean) / outcomes

    names = SIGNALS if samples is None else (*SIGNALS, SAMPLES)
    rows: list[list[float]] = []
    for one in group:
        signals = one.signals(share(one.step.worker, float(one.right), 1), samples)
        rows.append([signals[name] for name in names])
    inputs_nf = np.array(rows, float)
    right_n = np.array([one.right for one in group], float)
    prior_f = np.array([0.0, 1.0, *[0.0] * (len(names) - 2)])
    penalty_f = np.full(len(names), _PENALTY)
    penalty_f[0] = 0.01
    weights_f = fit_logistic(inputs_nf[:, None, :], right_n[:, None], prior_f, penalty_f)
    return Calibration(
        weights=dict(zip(names, map(float, weights_f), strict=True)),
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


def measure_confidence(stated_n: Floats, right_n: Floats) -> MeasuredConfidence:
    """Measure stated probabilities against the grades of the runs, (n,) each; 1 is correct."""
    bin_n = np.minimum((stated_n * _BINS).astype(int), _BINS - 1)
    error = 0.0
    for number in range(_BINS):
        here_n = bin_n == number
        if here_n.any():
            error += here_n.mean() * abs(stated_n[here_n].mean() - right_n[here_n].mean())
    kept = np.argsort(-stated_n, kind="stable")[: max(1, round(_COVERAGE * len(stated_n)))]
    return MeasuredConfidence(
        runs=len(stated_n),
        right=float(right_n.mean()),
        calibration_error=float(error),
        brier=float(((stated_n - right_n) ** 2).mean()),
        auroc=_measure_auroc(stated_n, right_n),
        right_at_80=float(right_n[kept].mean()),
    )


def _measure_auroc(stated_n: Floats, right_n: Floats) -> float | None:
    good, bad = stated_n[right_n > _RIGHT], stated_n[right_n <= _RIGHT]
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
