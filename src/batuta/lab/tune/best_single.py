"""The choice of the best single worker among calibration's best, on questions reserved for it.

Calibration asks every worker a few questions of each group, so its leader was partly lucky. As
everything that a tuning finds is compared with the best worker, the choice is made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from batuta.conductors.workflow_selector.model import Places
from batuta.core import Pool, Task, WorkerId
from batuta.lab.tune.calibrate import WorkerCard
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.judge import Assignment
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.measuring import run_systems
from batuta.lab.tune.result import TuneResult
from batuta.lab.tune.sparse_design import Matrix

_TOP = 3
"""The number of workers that are measured first."""
_PRIOR = 6.0
"""The weight, in questions, of a worker's overall mean when its share in a group is estimated."""


async def remeasure_best(
    context: TuneContext, result: TuneResult, tasks: Sequence[Task], until: float
) -> Pool:
    """Return the pool with the strengths of its best workers measured on these questions too.

    Calibration's best workers are measured, then whichever worker is ahead of them. A worker that
    was left out because it hardly ever answers, or passed over, counts as never right.
    """
    assert result.table is not None  # noqa: S101 - tabulated before
    weight_g, grouping = result.table.weight_g, result.grouping
    group_n, _, _ = grouping.reader([task.question for task in tasks])
    counts = {
        card.worker: _Count.of(card) for card in result.cards if card.worker not in result.set_aside
    }
    measured: set[WorkerId] = set()
    while True:
        ranked = sorted(counts, key=lambda who: (-counts[who].share(weight_g), str(who)))
        new = [who for who in ranked[: 1 if measured else _TOP] if who not in measured]
        if not new:
            break
        measured |= set(new)
        alone: dict[str, Assignment] = {
            str(who): dict.fromkeys((task.id for task in tasks), Candidate.single(who))
            for who in new
        }
        if not await run_systems(context, tasks, alone, until):
            break
        for who in new:
            counts[who] = counts[who].add(context, tasks, group_n, Candidate.single(who))
    strengths = {who: one.share(weight_g) for who, one in counts.items()}
    return _with_strengths(result.pool, strengths | dict.fromkeys(result.set_aside, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Count:
    """The sum of a worker's scores and its number of questions, in each group."""

    right_g: Matrix
    count_g: Matrix

    @classmethod
    def of(cls, card: WorkerCard) -> _Count:
        count = np.array([one.questions for one in card.by_group], np.float64)
        share = np.array([one.share or 0.0 for one in card.by_group])
        return cls(share * count, count)

    def add(
        self, context: TuneContext, tasks: Sequence[Task], group_n: Places, one: Candidate
    ) -> _Count:
        right_g, count_g = self.right_g.copy(), self.count_g.copy()
        for task, group in zip(tasks, group_n, strict=True):
            result_here = context.runner.find_result(task, one)
            if result_here is not None and result_here.score is not None:
                right_g[group] += result_here.score
                count_g[group] += 1
        return _Count(right_g, count_g)

    def share(self, weight_g: Matrix) -> float:
        """Return the share right over all questions, each group weighted by its share of them."""
        mean = self.right_g.sum() / max(self.count_g.sum(), 1)
        shares = (self.right_g + _PRIOR * mean) / (self.count_g + _PRIOR)
        return float(np.average(shares, weights=weight_g))


def _with_strengths(pool: Pool, shares: Mapping[WorkerId, float]) -> Pool:
    return Pool(
        tuple(
            replace(worker, strength=round(shares[worker.id], 6)) if worker.id in shares else worker
            for worker in pool
        )
    )
