"""Runs systems on the same questions while the budget lasts, and compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batuta.core import Task
from batuta.lab.tune.candidate_runner import result_key
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.judge import Assignment, SystemFigures, describe_system
from batuta.lab.tune.stages import count_calls

_AT_ONCE = 10
"""The number of questions that run together before the budget is checked again."""


async def run_systems(
    context: TuneContext,
    tasks: Sequence[Task],
    assignments: Mapping[str, Assignment],
    until: float,
) -> list[Task]:
    """Run all systems on as many questions as the budget allows; return these questions.

    `assignments` are the systems by name, and `until` is the share of the budget that may be spent.
    The errors are those of `CandidateRunner.run_all`.
    """
    fits_budget = context.fits_budget(until)
    measured: list[Task] = []
    for start in range(0, len(tasks), _AT_ONCE):
        batch = tasks[start : start + _AT_ONCE]
        planned = [
            (task, assignment[task.id]) for task in batch for assignment in assignments.values()
        ]
        new = {
            result_key(task, entry): count_calls(entry)
            for task, entry in planned
            if context.runner.find_result(task, entry) is None
        }
        if new and not (fits_budget(sum(new.values())) and await context.runner.run_all(planned)):
            break
        measured += batch
    return measured


async def measure_systems(
    context: TuneContext,
    tasks: Sequence[Task],
    assignments: Mapping[str, Assignment],
    until: float,
) -> tuple[SystemFigures, ...]:
    """Run the systems as `run_systems` does, and return their figures on the questions that ran."""
    measured = await run_systems(context, tasks, assignments, until)
    return tuple(
        describe_system(name, context.runner, measured, assignment)
        for name, assignment in assignments.items()
    )


def paired_gains(
    context: TuneContext, tasks: Sequence[Task], ours: Assignment, theirs: Assignment
) -> list[float]:
    """Return the gain of `ours` over `theirs` on each question on which both have a score.

    The gain is net of the price of additional calls and, if `worth` is set, of dollars.
    """
    settings, gains = context.settings, list[float]()
    for task in tasks:
        one = context.runner.find_result(task, ours[task.id])
        other = context.runner.find_result(task, theirs[task.id])
        if one and other and one.score is not None and other.score is not None:
            dollars = float(one.usd - other.usd) / settings.worth if settings.worth else 0.0
            calls = settings.call_weight * (one.calls - other.calls)
            gains.append(one.score - other.score - calls - dollars)
    return gains
