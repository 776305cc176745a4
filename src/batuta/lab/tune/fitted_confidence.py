"""How sure answers of the tuned systems are, from the questions of selection and judgement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from batuta.lab.evals.confidence import FittedConfidence, GradedRun, fit_confidence, graded_run
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.systems import TunedSystem


async def fit_tuned_confidence(
    context: TuneContext, systems: Mapping[str, TunedSystem]
) -> FittedConfidence:
    """Fit the probability of a right answer for each system; no call is made any more.

    The runs of the selection and of the judgement are told again from the replies that were paid.

    Args:
        context: the tuning, when it has ended.
        systems: those that are written, by the name of the conductor that serves them.
    """
    context.runner.meter.is_closed = True
    graded = [
        one for name, system in systems.items() for one in await _repeat_runs(context, system, name)
    ]
    return fit_confidence(graded)


async def _repeat_runs(context: TuneContext, system: TunedSystem, name: str) -> list[GradedRun]:
    parts, runner = context.parts, context.runner
    tasks = (*parts.selection, *parts.finalists, *parts.judgement)
    assigned = system.assign(tasks)
    found: list[GradedRun] = []
    for task in tasks:
        entry = assigned[task.id]
        known, run = runner.find_result(task, entry), await runner.repeat_run(task, entry)
        if known is None or known.score is None or run is None:
            continue
        named = replace(run, header=replace(run.header, conductor=name))
        if (one := graded_run(named, known.score)) is not None:
            found.append(one)
    return found
