"""Selection: chooses how fine the selector is, and the nominees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from batuta.core import Task
from batuta.lab.tune.best_single import remeasure_best
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.expected_gain import BELIEVED, update_gain
from batuta.lab.tune.judge import Assignment
from batuta.lab.tune.keep_limit import build_within
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.measuring import measure_systems, paired_gains
from batuta.lab.tune.patterns import nominate_pattern
from batuta.lab.tune.result import TuneResult
from batuta.lab.tune.stages import BEST_SINGLE, MINI, ULTRA, TuneStage
from batuta.lab.tune.systems import TunedSystem, restrict_to_singles

_SINGLES, _FINENESS = 0.35, 0.7
"""The shares of the stage's budget after which the best single worker and the fineness are
chosen."""
_LEAST_SPREAD = 0.03
"""The least standard deviation of the difference that the search expects between two systems: a
group's workflow often ran on only a dozen questions. With 0.01, forty paired questions could not
outweigh the expectation."""
_HANDICAP = 0.01
"""The share right by which a finer system is expected to be worse than the search says, as each of
its cells was chosen by fewer questions."""
_FEWEST = 8
"""The fewest questions from which a simpler system is preferred."""


async def select_systems(context: TuneContext, result: TuneResult) -> TuneResult:
    """Choose how fine the selector is, then the nominees."""
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
    """Return the systems; if mean calls are limited, those that keep the limit on the selection."""
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
        for name in reversed(table.names)  # the finest first, while there is budget to run it
    ]
    return tuple(reversed(systems))


def _choose_finest(
    context: TuneContext, systems: Sequence[TunedSystem], tasks: Sequence[Task]
) -> TunedSystem:
    """Return the finest system, unless a simpler one is likely to be better."""
    chosen = systems[-1]
    for simpler in reversed(systems[:-1]):
        if _is_better(context, simpler, chosen, tasks):
            chosen = simpler
    return chosen


def _is_better(
    context: TuneContext, simpler: TunedSystem, finer: TunedSystem, tasks: Sequence[Task]
) -> bool:
    """Tell whether the simpler system is likely to be better, from expectation and outcomes."""
    ours, theirs = simpler.assign(tasks), finer.assign(tasks)
    gains = paired_gains(context, tasks, ours, theirs)
    return prefer_simpler(gains, finer.expected - simpler.expected)


def prefer_simpler(gains: Sequence[float], expected_lead: float) -> bool:
    """Tell whether the simpler of two systems is likely to be better.

    The search overrates what it chose from many, so the prior mean of the finer one's lead is half
    of the expected lead, less a point, with a standard deviation of that half or at least three
    points; the paired questions weigh by their standard error.

    Args:
        gains: the simpler one's gain on each question that both ran, calls counted.
        expected_lead: the gain in share right that the search expects of the finer one.
    """
    if len(gains) < _FEWEST:
        return False
    half = expected_lead * BELIEVED
    found = update_gain(_HANDICAP - half, max(half, _LEAST_SPREAD), gains)
    return found.mean >= 0
