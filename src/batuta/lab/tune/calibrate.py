"""Calibration: measures every worker alone on the same questions of every group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from batuta.conductors.features import Floats
from batuta.conductors.workflow_selector.model import Labels
from batuta.core import Pool, Skill, Task, Worker, WorkerId
from batuta.core.intervals import wilson_interval
from batuta.errors import ConfigError
from batuta.lab.tune.candidate_runner import CandidateRunner
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.grouping import Grouping
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.stages import TuneStage

_CALIBRATED = 30
"""Maximum number of questions of each group that every worker is asked."""
_FAILED = 0.8
"""A worker is left out if at least this share of its answers has no score."""
PRIOR_QUESTIONS = 6.0
"""The weight, in questions, of a worker's overall accuracy in the estimate for a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShare:
    """A worker's accuracy on some questions, with its interval."""

    questions: int
    """The number of questions with a score."""
    share: float | None
    """The observed accuracy; None if nothing was scored."""
    low: float | None
    high: float | None
    """The bounds of the 95% interval of the accuracy (Wilson); None if nothing was scored."""
    shrunk: float | None
    """The accuracy, shrunk towards the worker's mean over all groups; None if the worker has no
    score in any group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    """The measurements of one worker."""

    worker: WorkerId
    overall: MeasuredShare
    by_group: tuple[MeasuredShare, ...]
    usd: float | None
    """Mean dollars per question; None if the price is unknown or nothing was scored."""
    seconds: float | None
    """Median seconds per question; None if no call of a scored answer was timed."""
    failed: int
    """The number of questions without a score, because a call failed or a grade is undecided."""


def measure_workers(
    runner: CandidateRunner, tasks: Sequence[Task], group_n: Labels, groups: int
) -> tuple[WorkerCard, ...]:
    """Return the card of every worker, from its answers alone to these questions.

    `group_n` is the group of each question, and `groups` the number of groups.
    """
    return tuple(
        _card_of(runner, worker.id, tasks=tasks, group_n=group_n, groups=groups)
        for worker in runner.pool
    )


def _card_of(
    runner: CandidateRunner,
    worker: WorkerId,
    tasks: Sequence[Task],
    group_n: Labels,
    *,
    groups: int,
) -> WorkerCard:
    found = [runner.find_result(task, Candidate.single(worker)) for task in tasks]
    results = [(one, int(group)) for one, group in zip(found, group_n, strict=True) if one]
    scored = [(one.score, group) for one, group in results if one.score is not None]
    mean = float(np.mean([score for score, _ in scored])) if scored else None
    answered = [one for one, _ in results if one.score is not None]
    timed = [one.seconds for one in answered if one.seconds is not None]
    has_usd = bool(answered) and runner.pool[worker].price is not None
    return WorkerCard(
        worker=worker,
        overall=share_of([score for score, _ in scored], mean),
        by_group=tuple(
            share_of([score for score, at in scored if at == group], mean)
            for group in range(groups)
        ),
        usd=mean_usd(runner, tasks, worker) if has_usd else None,
        seconds=float(np.median(timed)) if timed else None,
        failed=len(results) - len(scored),
    )


def share_of(scores: Sequence[float], mean: float | None) -> MeasuredShare:
    """Return the accuracy on these scores; `mean` is the worker's mean over all groups."""
    count = len(scores)
    if not count or mean is None:
        return MeasuredShare(questions=0, share=None, low=None, high=None, shrunk=mean)
    total = float(sum(scores))
    low, high = wilson_interval(round(total), count)
    shrunk = (total + PRIOR_QUESTIONS * mean) / (count + PRIOR_QUESTIONS)
    return MeasuredShare(questions=count, share=total / count, low=low, high=high, shrunk=shrunk)


def measured_pool(pool: Pool, cards: Sequence[WorkerCard], names: Sequence[str]) -> Pool:
    """Return the pool with measured strengths, skills and seconds; `names` names the groups."""
    known = {card.worker: card for card in cards}
    workers: list[Worker] = []
    for worker in pool:
        card = known[worker.id]
        skills = tuple(
            Skill(family=name, share=round(one.shrunk, 3), questions=one.questions)
            for name, one in zip(names, card.by_group, strict=True)
            if one.questions and one.shrunk is not None
        )
        strength = card.overall.share
        seconds = worker.seconds if card.seconds is None else card.seconds
        workers.append(replace(worker, strength=strength, skills=skills, seconds=seconds))
    return Pool(tuple(workers))


def mean_scores(
    runner: CandidateRunner, tasks: Sequence[Task], workers: Sequence[WorkerId]
) -> Floats:
    """Return the workers' mean score on each question, (n,): the question's ease.

    A question without any score counts as 0.5.
    """
    rows: list[float] = []
    for task in tasks:
        found = [runner.find_result(task, Candidate.single(worker)) for worker in workers]
        scores = [one.score for one in found if one is not None and one.score is not None]
        rows.append(float(np.mean(scores)) if scores else 0.5)
    return np.asarray(rows, np.float32)


def mean_usd(runner: CandidateRunner, tasks: Sequence[Task], worker: WorkerId) -> float:
    """Return the worker's mean dollars per question, at the assumed price if it has none.

    The mean is 0 if no question has a score.
    """
    found = [runner.find_result(task, Candidate.single(worker)) for task in tasks]
    usd = [one.usd for one in found if one is not None and one.score is not None]
    return float(sum(usd)) / max(len(usd), 1)


async def calibrate_workers(context: TuneContext, grouping: Grouping) -> tuple[list[Task], Labels]:
    """Ask every worker the first questions of every group, while the stage's budget lasts.

    Returns:
        The questions, and the group of each question.

    Raises:
        ConfigError: the budget does not suffice for one question of every group.
        ExceptionGroup, StoreError, WorkerLostError: as `CandidateRunner.run_all` raises them.
    """
    group_n, _, _ = grouping.reader([task.question for task in context.parts.search])
    by_group = [np.flatnonzero(group_n == g) for g in range(len(grouping.names))]
    chosen: list[int] = []
    singles = [Candidate.single(worker.id) for worker in context.runner.pool]
    for number in range(_CALIBRATED):
        fits_budget = context.fits_budget(context.ends[TuneStage.CALIBRATE] if number else 1.0)
        batch = [int(indices[number]) for indices in by_group if number < len(indices)]
        if not batch or not fits_budget(len(batch) * len(singles)):
            break
        asked = [context.parts.search[index] for index in batch]
        if not await context.runner.run_all((t, one) for t in asked for one in singles):
            break
        chosen += batch
    if not chosen:
        raise ConfigError(
            "the rest of the budget does not suffice to ask every worker one question of every "
            f"group, which takes {len(by_group) * len(singles)} calls: raise the budget, which "
            "also covers the calls of earlier starts, failed ones included"
        )
    context.report(TuneStage.CALIBRATE, f"{len(chosen)} questions to {len(singles)} workers")
    return [context.parts.search[index] for index in chosen], group_n[chosen]


def choose_usable(
    cards: Sequence[WorkerCard], pool: Pool
) -> tuple[tuple[WorkerId, ...], tuple[WorkerId, ...]]:
    """Return the workers to keep, and the workers left out because they have too few scores.

    Raises:
        ConfigError: all workers, or all models of a pool that has any, would be left out.
    """
    failing = [
        card.worker
        for card in cards
        if card.failed >= _FAILED * (card.failed + card.overall.questions)
    ]
    usable = tuple(card.worker for card in cards if card.worker not in failing)
    if not {worker.id for worker in pool.ranked()}.intersection(usable):
        raise ConfigError(
            f"no {'model' if usable else 'worker'} gave answers that could be graded: run "
            "`batuta pool check`, and check the questions' graders"
        )
    return usable, tuple(failing)
