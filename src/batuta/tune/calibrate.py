"""Calibration: every worker alone on the same questions of every group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from batuta.core import Pool, Skill, Task, Worker, WorkerId
from batuta.core.intervals import wilson_interval
from batuta.solvers.workflow_selector.reader import Floats, Places
from batuta.tune.library import Candidate
from batuta.tune.player import Player, PlayResult

_PRIOR = 6.0
"""Questions that the mean over all groups counts for in a group's share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShare:
    """How often a worker is right."""

    questions: int
    share: float | None
    """As counted; None: nothing was scored."""
    low: float | None
    high: float | None
    """95% interval of it, by Wilson's method."""
    shrunk: float | None
    """Drawn towards the worker's mean where data are few: the best guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    """What calibration found out about a worker."""

    worker: WorkerId
    overall: MeasuredShare
    by_group: tuple[MeasuredShare, ...]
    usd: float | None
    """Dollars a question; None: its price is unknown."""
    seconds: float | None
    failed: int
    """Calls that gave no answer, or whose answer nobody could grade."""

    @property
    def is_usable(self) -> bool:
        """Whether anything it said was scored."""
        return self.overall.questions > 0


def measure_workers(
    player: Player, tasks: Sequence[Task], group_n: Places, groups: int
) -> tuple[WorkerCard, ...]:
    """The cards of all workers, from what they did alone on these questions."""
    return tuple(
        _card_of(player, worker.id, tasks=tasks, group_n=group_n, groups=groups)
        for worker in player.pool
    )


def _card_of(
    player: Player, worker: WorkerId, tasks: Sequence[Task], group_n: Places, *, groups: int
) -> WorkerCard:
    found = [player.known(task, Candidate.single(worker)) for task in tasks]
    played = [(one, int(group)) for one, group in zip(found, group_n, strict=True) if one]
    scored = [(one.score, group) for one, group in played if one.score is not None]
    mean = float(np.mean([score for score, _ in scored])) if scored else None
    answered = [one for one, _ in played if one.score is not None]
    return WorkerCard(
        worker=worker,
        overall=_share_of([score for score, _ in scored], mean),
        by_group=tuple(
            _share_of([score for score, at in scored if at == group], mean)
            for group in range(groups)
        ),
        usd=_usd_of(player, worker, answered),
        seconds=float(np.median([one.seconds for one in answered])) if answered else None,
        failed=len(played) - len(scored),
    )


def _usd_of(player: Player, worker: WorkerId, answered: Sequence[PlayResult]) -> float | None:
    if player.pool[worker].price is None or not answered:
        return None
    return float(sum(one.usd for one in answered)) / len(answered)


def _share_of(scores: Sequence[float], mean: float | None) -> MeasuredShare:
    count = len(scores)
    if not count or mean is None:
        return MeasuredShare(questions=0, share=None, low=None, high=None, shrunk=mean)
    total = float(sum(scores))
    low, high = wilson_interval(round(total), count)
    shrunk = (total + _PRIOR * mean) / (count + _PRIOR)
    return MeasuredShare(questions=count, share=total / count, low=low, high=high, shrunk=shrunk)


def measured_pool(pool: Pool, cards: Sequence[WorkerCard], names: Sequence[str]) -> Pool:
    """The pool with what was measured in the place of what was believed."""
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
        workers.append(replace(worker, strength=strength, skills=skills, seconds=card.seconds))
    return Pool(tuple(workers))


def mean_scores(player: Player, tasks: Sequence[Task], workers: Sequence[WorkerId]) -> Floats:
    """The workers' mean score on each question: how easy it proved."""
    rows: list[float] = []
    for task in tasks:
        found = [player.known(task, Candidate.single(worker)) for worker in workers]
        scores = [one.score for one in found if one is not None and one.score is not None]
        rows.append(float(np.mean(scores)) if scores else 0.5)
    return np.asarray(rows, np.float32)
