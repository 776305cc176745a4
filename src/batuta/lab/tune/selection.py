"""The selection stage: chooses the best single worker, the fineness of the selector, the nominees.

Calibration asks every worker a few questions of each group, so that its best worker was partly
lucky. Everything that a tuning run finds is compared with the best worker, so this worker is chosen
again. All choices, and whether a limit on mean calls is kept, are measured on questions reserved
for them.

Axes: g groups, n questions, c cells.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from batuta.conductors.workflow_selector.model import Labels
from batuta.core import Pool, Task, WorkerId
from batuta.lab.tune.calibrate import PRIOR_QUESTIONS, WorkerCard
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.expected_gain import BELIEVED, update_gain
from batuta.lab.tune.judge import Assignment
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.measuring import measure_systems, paired_gains, run_systems
from batuta.lab.tune.patterns import nominate_pattern
from batuta.lab.tune.result import TuneResult
from batuta.lab.tune.sparse_design import Matrix
from batuta.lab.tune.stages import BEST_SINGLE, MINI, ULTRA, TuneStage
from batuta.lab.tune.systems import (
    SYSTEM_NAMES,
    SystemTable,
    TunedSystem,
    restrict_to_singles,
)

_TOP = 3
"""The number of workers that are measured first, the best of the calibration."""


async def remeasure_best(
    context: TuneContext, result: TuneResult, tasks: Sequence[Task], until: float
) -> Pool:
    """Return the pool with the strengths of the best workers measured on these questions too.

    The best workers of the calibration are measured first, then any worker that is now ahead of
    them, within the share `until` of the budget. The workers set aside have no strength, so that
    none of them ranks before a worker that answered.
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
    strengths = {who: round(one.share(weight_g), 6) for who, one in counts.items()}
    return Pool(tuple(replace(w, strength=strengths.get(w.id)) for w in result.pool))


@dataclass(frozen=True, slots=True, eq=False)
class _Count:
    """The sum of a worker's scores and the number of its scored questions, in each group."""

    right_g: Matrix
    count_g: Matrix

    @classmethod
    def of(cls, card: WorkerCard) -> _Count:
        count = np.array([one.questions for one in card.by_group], np.float64)
        share = np.array([one.share or 0.0 for one in card.by_group])
        return cls(share * count, count)

    def add(
        self, context: TuneContext, tasks: Sequence[Task], group_n: Labels, one: Candidate
    ) -> _Count:
        right_g, count_g = self.right_g.copy(), self.count_g.copy()
        for task, group in zip(tasks, group_n, strict=True):
            result_here = context.runner.find_result(task, one)
            if result_here is not None and result_here.score is not None:
                right_g[group] += result_here.score
                count_g[group] += 1
        return _Count(right_g, count_g)

    def share(self, weight_g: Matrix) -> float:
        """Return the mean of the groups' shrunk accuracies, weighted by the groups' sizes."""
        mean = self.right_g.sum() / max(self.count_g.sum(), 1)
        shares = (self.right_g + PRIOR_QUESTIONS * mean) / (self.count_g + PRIOR_QUESTIONS)
        return float(np.average(shares, weights=weight_g))


MeasureCalls = Callable[[TunedSystem], Awaitable[float]]
"""Returns a system's mean calls per question, with expected calls where none were made."""
_TIGHTENINGS, _LEAST_TIGHTENING = 6, 0.02
"""Maximum number of systems that are measured, and the smallest step by which the limit is then
tightened, as a share of the limit."""


async def build_within(
    table: SystemTable,
    name: str,
    tasks: Sequence[Task],
    measure: MeasureCalls,
    *,
    most: float | None,
    least_weight: float,
) -> TunedSystem:
    """Return the system of that name that keeps a limit on mean calls on these questions.

    The price of a call follows from the calls that the search expects. If more calls are measured,
    the limit is tightened by the difference. If that is not enough, the price follows from the
    maximum number of calls of each workflow. `most` is the limit, None for no limit, and
    `least_weight` the minimum price.
    """
    if most is None:
        return table.build(name, least_weight)
    count_c, target = table.count_cells(tasks), most
    for _ in range(_TIGHTENINGS):
        weight = table.find_weight(name, count_c, most=target, least=least_weight)
        system = table.build(name, weight)
        calls = await measure(system)
        if calls <= most:
            return system
        target -= max(calls - most, _LEAST_TIGHTENING * most)
    longest = table.at_most_calls()
    weight = longest.find_weight(name, count_c, most=most, least=least_weight)
    return longest.build(name, weight)


_SINGLES, _FINENESS = 0.35, 0.7
"""The shares of the stage's budget at which the measurement of single workers ends, and then the
measurement of the fineness."""
_LEAST_SPREAD = 0.03
"""Minimum prior standard deviation of the difference between two systems. With 0.01, forty paired
questions could not outweigh the search's expectation, which is often based on a dozen questions."""
_HANDICAP = 0.01
"""The accuracy by which a finer system is expected to be worse than the search estimates, because
fewer questions decided on the workflow of each cell."""
_FEWEST = 8
"""Minimum number of paired questions for preferring a simpler system."""


async def select_systems(context: TuneContext, result: TuneResult) -> TuneResult:
    """Choose the best single worker, the fineness of the selector, and the nominees."""
    table = result.table
    assert table is not None  # noqa: S101 - tabulated before
    begin, end = context.ends[TuneStage.SEARCH], context.ends[TuneStage.SELECT]
    first, middle = begin + (end - begin) * _SINGLES, begin + (end - begin) * _FINENESS
    kept = (*context.parts.selection, *context.parts.finalists)
    result = replace(result, pool=await remeasure_best(context, result, kept, first))
    result = replace(result, systems=await _keep_limit(context, result, middle))
    assignments: dict[str, Assignment] = {
        one.name: one.assign(context.parts.selection) for one in result.systems
    }
    selection = await measure_systems(context, context.parts.selection, assignments, middle)
    chosen = _choose_finest(context, result.systems, context.parts.selection)
    simplest = result.systems[0]
    best = Candidate.single(result.pool.ranked()[0].id)
    entrants = {
        ULTRA: chosen,
        "one workflow for all": simplest,
        MINI: restrict_to_singles(chosen, MINI, table),
    }
    finals: dict[str, Assignment] = {
        name: one.assign(context.parts.finalists) for name, one in entrants.items()
    }
    finals[BEST_SINGLE] = {task.id: best for task in context.parts.finalists}
    finalists = await measure_systems(context, context.parts.finalists, finals, end)
    if _is_better(context, simplest, chosen, kept):
        chosen = simplest
    nominees = {ULTRA: replace(chosen, name=ULTRA), MINI: entrants[MINI]}
    context.report(
        TuneStage.SELECT, f"{chosen.name}; {len(chosen.workflows_in_use)} workflows in use"
    )
    result = replace(result, selection=selection, finalists=finalists, nominees=nominees)
    return await nominate_pattern(context, result) if context.settings.patterns else result


async def _keep_limit(
    context: TuneContext, result: TuneResult, until: float
) -> tuple[TunedSystem, ...]:
    """Return the result's systems, rebuilt to keep the limit on mean calls if there is one."""
    table, tasks = result.table, context.parts.selection
    if table is None or context.settings.mean_calls is None:
        return result.systems

    async def measure(system: TunedSystem) -> float:
        assignment = system.assign(tasks)
        await measure_systems(context, tasks, {system.name: assignment}, until)
        run = [context.runner.find_result(task, assignment[task.id]) for task in tasks]
        expected = table.expect_calls(system, tasks)
        return float(
            np.mean([e if one is None else one.calls for e, one in zip(expected, run, strict=True)])
        )

    systems = [
        await build_within(
            table,
            name,
            tasks,
            measure,
            most=context.settings.mean_calls,
            least_weight=context.settings.call_weight,
        )
        for name in reversed(SYSTEM_NAMES)  # the finest first, while there is budget to run it
    ]
    return tuple(reversed(systems))


def _choose_finest(
    context: TuneContext, systems: Sequence[TunedSystem], tasks: Sequence[Task]
) -> TunedSystem:
    chosen = systems[-1]
    for simpler in reversed(systems[:-1]):
        if _is_better(context, simpler, chosen, tasks):
            chosen = simpler
    return chosen


def _is_better(
    context: TuneContext, simpler: TunedSystem, finer: TunedSystem, tasks: Sequence[Task]
) -> bool:
    ours, theirs = simpler.assign(tasks), finer.assign(tasks)
    gains = paired_gains(context, tasks, ours, theirs)
    return prefer_simpler(gains, finer.expected - simpler.expected)


def prefer_simpler(gains: Sequence[float], expected_lead: float) -> bool:
    """Return whether the simpler of two systems is likely to be better.

    The search overrates a choice from many. The prior mean of the finer system's lead is therefore
    half of the expected lead, less one point. The prior standard deviation is half of the expected
    lead, but at least three points. With too few questions the finer system is preferred.

    Args:
        gains: the simpler system's gain on each question that both ran, net of the price of calls
            and dollars.
        expected_lead: the gain that the search expects of the finer system, net of the same.
    """
    if len(gains) < _FEWEST:
        return False
    half = expected_lead * BELIEVED
    found = update_gain(_HANDICAP - half, max(half, _LEAST_SPREAD), gains)
    return found.mean >= 0
