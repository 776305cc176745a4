"""Fits the confidence of the tuned systems' answers on questions that the search did not use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import anyio

from batuta.engine.confidence import SampleSetting
from batuta.lab.evals.confidence import FittedConfidence, GradedRun, fit_confidence, graded_run
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.systems import TunedSystem


async def fit_tuned_confidence(
    context: TuneContext, systems: Mapping[str, TunedSystem]
) -> FittedConfidence:
    """Fit the probability that an answer is correct, for each system.

    The runs on questions that the search did not use are rebuilt from the paid replies. If the
    settings ask questions again, these calls are made first, within the rest of the budget. Then
    the runner's meter is closed for good.

    `systems` are the systems that are saved, by the name of the conductor that serves them.
    """
    if context.settings.samples is not None:
        for system in systems.values():
            await _pay_samples(context, system, context.settings.samples)
    context.runner.meter.is_closed = True
    graded = [
        one for name, system in systems.items() for one in await _repeat_runs(context, system, name)
    ]
    return fit_confidence(graded)


async def _pay_samples(context: TuneContext, system: TunedSystem, samples: SampleSetting) -> None:
    """Ask the questions with a scored answer of the system again, as far as the budget allows."""
    tasks, runner = context.parts.fitted, context.runner
    assigned = system.assign(tasks)
    waiting = iter(tasks)

    async def work() -> None:
        for task in waiting:
            if context.spent_share(samples.count) > 1:
                return
            known = runner.find_result(task, assigned[task.id])
            if known is not None and known.score is not None:
                await runner.conduct_candidate(task, assigned[task.id], samples)

    async with anyio.create_task_group() as group:
        for _ in range(min(runner.concurrency, len(tasks))):
            group.start_soon(work)


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
