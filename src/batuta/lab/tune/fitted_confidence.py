"""Fits the confidence of the tuned systems' answers on questions that the search did not use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import anyio

from batuta.lab.evals.confidence import FittedConfidence, GradedRun, fit_confidence, graded_run
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.systems import TunedSystem

_AT_ONCE = 10
"""The number of questions that are asked again before the budget is checked again."""


async def pay_samples(context: TuneContext, systems: Iterable[TunedSystem]) -> None:
    """Ask the questions with a scored answer of a system again, as far as the budget allows.

    No call is made if `TuneSettings.samples` is None.
    """
    samples, tasks, runner = context.settings.samples, context.parts.fitted, context.runner
    if samples is None:
        return
    for assigned in [system.assign(tasks) for system in systems]:
        known = [(task, runner.find_result(task, assigned[task.id])) for task in tasks]
        scored = [task for task, one in known if one is not None and one.score is not None]
        for start in range(0, len(scored), _AT_ONCE):
            batch = scored[start : start + _AT_ONCE]
            if context.spent_share(samples.count * len(batch)) > 1:
                return
            async with anyio.create_task_group() as group:
                for task in batch:
                    group.start_soon(runner.conduct_candidate, task, assigned[task.id], samples)


async def fit_tuned_confidence(
    context: TuneContext, systems: Mapping[str, TunedSystem]
) -> FittedConfidence:
    """Fit the probability that an answer is correct, for each system.

    The runs on questions that the search did not use are rebuilt from the paid replies, with those
    of `pay_samples`. No call is made, because the runner's meter is closed for good.

    `systems` are the systems that are saved, by the name of the conductor that serves them.
    """
    context.runner.meter.is_closed = True
    graded = [
        one for name, system in systems.items() for one in await _repeat_runs(context, system, name)
    ]
    return fit_confidence(graded)


async def _repeat_runs(context: TuneContext, system: TunedSystem, name: str) -> list[GradedRun]:
    """Rebuild the system's graded runs, with `name` as their conductor."""
    tasks, runner = context.parts.fitted, context.runner
    assigned = system.assign(tasks)
    found: list[GradedRun] = []
    for task in tasks:
        entry, again = assigned[task.id], context.settings.samples
        known, run = runner.find_result(task, entry), await runner.repeat_run(task, entry, again)
        if known is None or known.score is None or run is None:
            continue
        named = replace(run, header=replace(run.header, conductor=name))
        if (one := graded_run(named, known.score)) is not None:
            found.append(one)
    return found
