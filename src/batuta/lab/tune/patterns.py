"""Lets patterns of the server compete with the nominee of a tuning run's search.

The library of the search lacks some steps of these patterns: a critique of an answer, an analysis
of several answers, and a verdict that may start another round. Cascades do not compete, because the
library has similar workflows, which ask a third worker if two answers differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batuta.core import Pool, Task
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.expected_gain import ExpectedGain, update_gain
from batuta.lab.tune.judge import Assignment, describe_system
from batuta.lab.tune.measuring import paired_gains, run_systems
from batuta.lab.tune.pattern_solver import PatternSolver
from batuta.lab.tune.result import TuneResult
from batuta.lab.tune.stages import ULTRA, TuneStage

_MOST_CALLS = {"critique": 3, "fusion": 5, "gate": 5}
"""The patterns that compete, with the maximum number of calls of each for a question."""
_STEPS = {"critique": 3, "fusion": 5}
"""The number of steps in a round of the pattern; 1 for patterns that are not listed."""
_BATCH = 10
"""The number of questions that run before unlikely patterns are dropped again."""
_LATER = 0.2
"""The share of the later stages' budget that may also be spent on measuring the patterns."""
_UNLIKELY, _LIKELY = 0.3, 0.9
"""Probabilities of a gain over the search's nominee: a pattern is dropped below the first
probability, and may be nominated at or above the second."""
_SPREAD = 0.1
"""The prior standard deviation of a pattern's gain; the prior mean is 0."""


def open_patterns(pool: Pool, max_steps: int) -> tuple[PatternSolver, ...]:
    """Return the patterns with rounds of at most `max_steps` steps; none without two models."""
    models = sum(worker.is_model for worker in pool)
    return tuple(
        PatternSolver(pattern=name, pool=pool, calls=calls)
        for name, calls in _MOST_CALLS.items()
        if _STEPS.get(name, 1) <= max_steps and models > 1
    )


async def nominate_pattern(context: TuneContext, result: TuneResult) -> TuneResult:
    """Nominate the best pattern that is likely to gain, instead of the search's nominee.

    The gain is measured on the finalists' questions. A pattern must keep the limit on mean calls.
    """
    assert result.nominees is not None  # noqa: S101 - selected before
    tasks, most = context.parts.finalists, context.settings.mean_calls
    ultra = result.nominees[ULTRA].assign(tasks)
    solvers = open_patterns(result.settings_pool, context.settings.max_steps)
    gains = await _measure_patterns(context, tasks, solvers, ultra)
    figures = {
        solver: describe_system(solver.name, context.runner, tasks, _assign_pattern(solver, tasks))
        for solver, gain in gains.items()
        if gain.probability >= _LIKELY
    }
    kept = [one for one, found in figures.items() if most is None or found.calls <= most]
    if not kept:
        return result
    best = max(kept, key=lambda one: gains[one].mean)
    points = f"{100 * gains[best].mean:+.1f} points, {gains[best].questions} questions"
    context.report(TuneStage.SELECT, f"{best.name} replaces the search's nominee: {points}")
    return replace(result, pattern=best, finalists=(*result.finalists, figures[best]))


async def _measure_patterns(
    context: TuneContext,
    tasks: Sequence[Task],
    solvers: Sequence[PatternSolver],
    ultra: Assignment,
) -> dict[PatternSolver, ExpectedGain]:
    """Return each pattern's expected gain over the search's nominee, from the affordable runs."""
    end, last = context.ends[TuneStage.SELECT], max(context.ends.values())
    until = end + _LATER * (last - end)
    gains = {solver: update_gain(0.0, _SPREAD, ()) for solver in solvers}
    for start in range(0, len(tasks), _BATCH):
        remaining = [one for one, gain in gains.items() if gain.probability >= _UNLIKELY]
        batch = tasks[start : start + _BATCH]
        systems = {one.name: _assign_pattern(one, batch) for one in remaining} | {ULTRA: ultra}
        if not remaining or len(await run_systems(context, batch, systems, until)) < len(batch):
            break
        for one in remaining:
            found = paired_gains(context, tasks, _assign_pattern(one, tasks), ultra)
            gains[one] = update_gain(0.0, _SPREAD, found)
    return gains


def _assign_pattern(solver: PatternSolver, tasks: Sequence[Task]) -> Assignment:
    return {task.id: solver for task in tasks}
