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
_AT_ONCE = 10
"""Questions that are judged before the budget is looked at again."""


async def select_systems(context: TuneContext, result: TuneResult) -> TuneResult:
    """How fine a selector is worth having; then who is nominated."""
    middle = (context.ends[TuneStage.SEARCH] + context.ends[TuneStage.SELECT]) / 2
    plays: dict[str, Assignment] = {
        one.name: one.assign(context.parts.selection) for one in result.systems
    }
    selection = await _measure_systems(context, context.parts.selection, plays, middle)
    chosen = _choose_finest(context, result.systems, plays, context.parts.selection)
    singles = restrict_to_singles(chosen, MINI)
    best = Candidate.single(result.pool.ranked()[0].id)
    entrants = {
        ULTRA: chosen,
        "one workflow for all": result.systems[0],
        MINI: singles,
    }
    finals: dict[str, Assignment] = {
        name: one.assign(context.parts.finalists) for name, one in entrants.items()
    }
    finals[BEST_SINGLE] = {task.id: best for task in context.parts.finalists}
    finalists = await _measure_systems(
        context, context.parts.finalists, finals, context.ends[TuneStage.SELECT]
    )
    merit = {one.name: _system_merit(context, one) for one in finalists}
    nominees = {ULTRA: chosen, MINI: singles}
    if merit["one workflow for all"] > merit[ULTRA]:
        nominees[ULTRA] = replace(result.systems[0], name=ULTRA)
    context.tell(TuneStage.SELECT, f"{chosen.name}; {len(chosen.played)} workflows in use")
    return replace(result, selection=selection, finalists=finalists, nominees=nominees)


def _system_merit(context: TuneContext, one: SystemFigures) -> float:
    worth = one.usd / context.settings.worth if context.settings.worth else 0.0
    return (one.share or 0.0) - context.settings.call_weight * one.calls - worth


def _choose_finest(
    context: TuneContext,
    systems: Sequence[TunedSystem],
    plays: Mapping[str, Assignment],
    tasks: Sequence[Task],
) -> TunedSystem:
    """The finest, unless a simpler one is ahead by more than its standard error."""
    chosen = systems[-1]
    for simpler in reversed(systems[:-1]):
        gains = [
            gain
            for task in tasks
            if (gain := _paired_gain(context, task, plays[simpler.name], plays[chosen.name]))
            is not None
        ]
        if len(gains) > 1:
            error = float(np.std(gains)) / np.sqrt(len(gains))
            if float(np.mean(gains)) > error:
                chosen = simpler
    return chosen


def _paired_gain(
    context: TuneContext, task: Task, ours: Assignment, theirs: Assignment
) -> float | None:
    """By how much the first is better on the question, its calls counted."""
    one = context.player.known(task, ours[task.id])
    other = context.player.known(task, theirs[task.id])
    if one is None or other is None or one.score is None or other.score is None:
        return None
    return one.score - other.score - context.settings.call_weight * (one.calls - other.calls)


async def _measure_systems(
    context: TuneContext, tasks: Sequence[Task], plays: Mapping[str, Assignment], until: float
) -> tuple[SystemFigures, ...]:
    """The figures of the systems on as many of the questions as there is money for."""
    has_money = context.has_money(until)
    measured: list[Task] = []
    for start in range(0, len(tasks), _AT_ONCE):
        batch = tasks[start : start + _AT_ONCE]
        planned = [(task, play[task.id]) for task in batch for play in plays.values()]
        new = {
            (task.id, entry if isinstance(entry, Candidate) else entry.name): count_calls(entry)
            for task, entry in planned
            if context.player.known(task, entry) is None
        }
        if not has_money(sum(new.values())) or not await context.player.play_all(planned):
            break
        measured += batch
    return tuple(
        describe_system(name, context.player, measured, play) for name, play in plays.items()
    )


async def judge_nominees(context: TuneContext, result: TuneResult) -> TuneResult:
    """The nominees against their opponents, on questions not looked at before."""
    assert result.nominees is not None  # noqa: S101 - selected before
    tasks = context.parts.judgement
    best = Candidate.single(result.pool.ranked()[0].id)
    figures = {one.name: one for one in result.finalists}
    samples = choose_samples(figures)
    voting = SelfConsistency(samples)
    plays: dict[str, Assignment] = {
        ULTRA: result.nominees[ULTRA].assign(tasks),
        MINI: result.nominees[MINI].assign(tasks),
        BEST_SINGLE: {task.id: best for task in tasks},
        f"{SELF_CONSISTENCY}@{samples}": {task.id: voting for task in tasks},
    }
    context.player.rank_by(result.pool)
    opponent = await _choose_opponent(context, plays)
    plays = {name: play for name, play in plays.items() if name in _ALWAYS or name == opponent}
    judged = await _measure_systems(context, tasks, plays, context.ends[TuneStage.JUDGE])
    known = {one.name: one for one in judged}
    scores = {name: scores_of(context.player, tasks, play) for name, play in plays.items()}
    pairs = [(known[ULTRA], known[opponent]), (known[MINI], known[BEST_SINGLE])]
    comparisons = compare_nominees(pairs, scores)
    for one in comparisons:
        context.tell(TuneStage.JUDGE, f"{one.nominee}: {one.verdict} (opponent: {one.opponent})")
    return replace(result, judged=judged, comparisons=comparisons)


async def _choose_opponent(context: TuneContext, plays: Mapping[str, Assignment]) -> str:
    """The stronger of the best single worker and its self-consistency, on the finalists."""
    names = [name for name in plays if name not in {ULTRA, MINI}]
    tasks = context.parts.finalists
    entries = {name: next(iter(plays[name].values())) for name in names}
    again: dict[str, Assignment] = {
        name: {task.id: entries[name] for task in tasks} for name in names
    }
    until = context.ends[TuneStage.REWRITE] + 0.03
    figures = await _measure_systems(context, tasks, again, until)
    return max(figures, key=lambda one: (one.share or 0.0, -one.usd)).name
