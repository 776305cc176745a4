"""The last stages of a tuning: who is nominated, and whether that holds on fresh questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from batuta.baselines import SelfConsistency
from batuta.core import Task
from batuta.tune.context import TuneContext
from batuta.tune.judge import (
    Assignment,
    SystemFigures,
    compare_nominees,
    describe_system,
    scores_of,
)
from batuta.tune.keep_limit import build_within
from batuta.tune.library import Candidate
from batuta.tune.result import TuneResult
from batuta.tune.stages import (
    BEST_SINGLE,
    MINI,
    SELF_CONSISTENCY,
    ULTRA,
    TuneStage,
    choose_samples,
    count_calls,
)
from batuta.tune.systems import TunedSystem, restrict_to_singles

_ALWAYS = frozenset({ULTRA, MINI, BEST_SINGLE})
_BELIEVED = 0.5
_LEAST_SPREAD = 0.03
"""Share right by which what the search expects of two systems is uncertain, at the least: a group's
workflow was often tried on a dozen questions there. With a point in its place, forty paired
questions that spoke against a system could not outweigh what was expected of it."""
_HANDICAP = 0.01
"""Share right by which a finer system is expected to be worse than the search says, beside that: it
is chosen by fewer questions for each of its cells."""
_FEWEST = 8
"""Questions below which what was seen of two systems counts for nothing."""
_AT_ONCE = 10
"""Questions that are judged before the budget is looked at again."""


async def select_systems(context: TuneContext, result: TuneResult) -> TuneResult:
    """How fine a selector is worth having; then who is nominated."""
    middle = (context.ends[TuneStage.SEARCH] + context.ends[TuneStage.SELECT]) / 2
    result = replace(result, systems=await _keep_limit(context, result, middle))
    assignments: dict[str, Assignment] = {
        one.name: one.assign(context.parts.selection) for one in result.systems
    }
    selection = await _measure_systems(context, context.parts.selection, assignments, middle)
    chosen = _choose_finest(context, result.systems, context.parts.selection)
    simplest = result.systems[0]
    best = Candidate.single(result.pool.ranked()[0].id)
    entrants = {
        ULTRA: chosen,
        "one workflow for all": simplest,
        MINI: restrict_to_singles(chosen, MINI),
    }
    finals: dict[str, Assignment] = {
        name: one.assign(context.parts.finalists) for name, one in entrants.items()
    }
    finals[BEST_SINGLE] = {task.id: best for task in context.parts.finalists}
    finalists = await _measure_systems(
        context, context.parts.finalists, finals, context.ends[TuneStage.SELECT]
    )
    compared = (*context.parts.selection, *context.parts.finalists)
    if _is_better(context, simplest, chosen, compared):
        chosen = simplest
    nominees = {ULTRA: replace(chosen, name=ULTRA), MINI: entrants[MINI]}
    context.report(
        TuneStage.SELECT, f"{chosen.name}; {len(chosen.workflows_in_use)} workflows in use"
    )
    return replace(result, selection=selection, finalists=finalists, nominees=nominees)


async def _keep_limit(
    context: TuneContext, result: TuneResult, until: float
) -> tuple[TunedSystem, ...]:
    """The systems; where mean calls are limited, such as keep the limit on the selection."""
    table, tasks = result.table, context.parts.selection
    if table is None or context.settings.mean_calls is None:
        return result.systems

    async def measure(system: TunedSystem) -> float:
        assignment = system.assign(tasks)
        await _measure_systems(context, tasks, {system.name: assignment}, until)
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
        for name in reversed(table.names)  # the finest first, while there is money to run it
    ]
    return tuple(reversed(systems))


def _choose_finest(
    context: TuneContext, systems: Sequence[TunedSystem], tasks: Sequence[Task]
) -> TunedSystem:
    """The finest, unless a simpler one is likely to be better."""
    chosen = systems[-1]
    for simpler in reversed(systems[:-1]):
        if _is_better(context, simpler, chosen, tasks):
            chosen = simpler
    return chosen


def _is_better(
    context: TuneContext, simpler: TunedSystem, finer: TunedSystem, tasks: Sequence[Task]
) -> bool:
    """Whether the simpler one is likely to be better, by what was expected and what was seen."""
    ours, theirs = simpler.assign(tasks), finer.assign(tasks)
    gains = [
        gain for task in tasks if (gain := _paired_gain(context, task, ours, theirs)) is not None
    ]
    return prefer_simpler(gains, finer.expected - simpler.expected)


def prefer_simpler(gains: Sequence[float], expected_lead: float) -> bool:
    """Whether the simpler of two systems is likely to be better.

    The search expects too much of whatever it chose from many, so half of the finer one's expected
    lead is believed, less a point, with a standard deviation as large as that half or three points;
    the paired questions weigh against that by their standard error. To these half a question that
    the simpler one wins is added, half a one that it loses, and one on which both do the same
    (Agresti and Min, doi:10.1002/sim.1781): where only one question of twenty tells the two apart,
    what was seen is otherwise taken for nearly certain.

    Args:
        gains: of the simpler one on each question that both ran, its calls counted.
        expected_lead: share right by which the search expects the finer one to be better.
    """
    if len(gains) < _FEWEST:
        return False
    half = expected_lead * _BELIEVED
    lead, spread = half - _HANDICAP, max(half, _LEAST_SPREAD)
    count = len(gains) + 2
    mean = sum(gains) / count
    squared_error = ((sum(gain**2 for gain in gains) + 1) / count - mean**2) / count
    return mean / squared_error >= lead / spread**2


def _paired_gain(
    context: TuneContext, task: Task, ours: Assignment, theirs: Assignment
) -> float | None:
    """By how much the first is better on the question, its calls counted."""
    one = context.runner.find_result(task, ours[task.id])
    other = context.runner.find_result(task, theirs[task.id])
    if one is None or other is None or one.score is None or other.score is None:
        return None
    settings = context.settings
    dollars = float(one.usd - other.usd) / settings.worth if settings.worth else 0.0
    return one.score - other.score - settings.call_weight * (one.calls - other.calls) - dollars


async def _measure_systems(
    context: TuneContext, tasks: Sequence[Task], assignments: Mapping[str, Assignment], until: float
) -> tuple[SystemFigures, ...]:
    """The figures of the systems on as many of the questions as there is money for."""
    has_money = context.has_money(until)
    measured: list[Task] = []
    for start in range(0, len(tasks), _AT_ONCE):
        batch = tasks[start : start + _AT_ONCE]
        planned = [
            (task, assignment[task.id]) for task in batch for assignment in assignments.values()
        ]
        new = {
            (task.id, entry if isinstance(entry, Candidate) else entry.name): count_calls(entry)
            for task, entry in planned
            if context.runner.find_result(task, entry) is None
        }
        if not has_money(sum(new.values())) or not await context.runner.run_all(planned):
            break
        measured += batch
    return tuple(
        describe_system(name, context.runner, measured, assignment)
        for name, assignment in assignments.items()
    )


async def judge_nominees(context: TuneContext, result: TuneResult) -> TuneResult:
    """The nominees against their opponents, on questions not looked at before."""
    assert result.nominees is not None  # noqa: S101 - selected before
    tasks = context.parts.judgement
    best = Candidate.single(result.pool.ranked()[0].id)
    figures = {one.name: one for one in result.finalists}
    samples = choose_samples(figures)
    voting = SelfConsistency(samples)
    assignments: dict[str, Assignment] = {
        ULTRA: result.nominees[ULTRA].assign(tasks),
        MINI: result.nominees[MINI].assign(tasks),
        BEST_SINGLE: {task.id: best for task in tasks},
        f"{SELF_CONSISTENCY}@{samples}": {task.id: voting for task in tasks},
    }
    context.runner.rank_by(result.pool)
    opponent = await _choose_opponent(context, assignments)
    assignments = {
        name: assignment
        for name, assignment in assignments.items()
        if name in _ALWAYS or name == opponent
    }
    judged = await _measure_systems(context, tasks, assignments, context.ends[TuneStage.JUDGE])
    known = {one.name: one for one in judged}
    scores = {
        name: scores_of(context.runner, tasks, assignment)
        for name, assignment in assignments.items()
    }
    pairs = [(known[ULTRA], known[opponent]), (known[MINI], known[BEST_SINGLE])]
    comparisons = compare_nominees(pairs, scores)
    for one in comparisons:
        context.report(TuneStage.JUDGE, f"{one.nominee}: {one.verdict} (opponent: {one.opponent})")
    return replace(result, judged=judged, comparisons=comparisons)


async def _choose_opponent(context: TuneContext, assignments: Mapping[str, Assignment]) -> str:
    """The stronger of the best single worker and its self-consistency, on the finalists."""
    names = [name for name in assignments if name not in {ULTRA, MINI}]
    tasks = context.parts.finalists
    entries = {name: next(iter(assignments[name].values())) for name in names}
    again: dict[str, Assignment] = {
        name: {task.id: entries[name] for task in tasks} for name in names
    }
    until = context.ends[TuneStage.REWRITE] + 0.03
    figures = await _measure_systems(context, tasks, again, until)
    return max(figures, key=lambda one: (one.share or 0.0, -one.usd)).name
