"""Rewriting as a stage of a tuning: it looks for a better wording of the most used workflow."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from batuta.core import Task
from batuta.distribution import install_hint
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.result import RewriteOutcome, TuneResult
from batuta.lab.tune.rewriting import (
    Rewriting,
    is_rewriting_installed,
    rewrite_candidate,
    worded_steps,
)
from batuta.lab.tune.stages import ULTRA, TuneStage
from batuta.lab.tune.systems import replace_workflow

_VALIDATED, _LEAST_VALIDATED, _CONFIRMED = 40, 8, 60
"""The most and fewest questions on which wordings are compared, and the number of others on which
the best one is confirmed."""
_WORDINGS = 4
"""The number of wordings whose validation the budget must allow."""
_SEARCHED = 0.7
"""The share of the stage's budget for finding a wording."""


async def rewrite_workflows(context: TuneContext, result: TuneResult) -> TuneResult:
    """Replace the nominee's most used workflow by a better wording, if one is found."""
    assert result.nominees is not None  # noqa: S101 - selected before
    if not context.settings.rewrites or not is_rewriting_installed():
        is_missing = context.settings.lacks_rewriting or context.settings.rewrites
        why = f"gepa is not installed: {install_hint('tune')}" if is_missing else "it is not wanted"
        context.report(TuneStage.REWRITE, f"skipped: {why}")
        return result
    if result.pattern is not None:
        context.report(TuneStage.REWRITE, f"skipped: {result.pattern.name} is nominated")
        return result
    system = result.nominees[ULTRA]
    assignment = system.assign((*context.parts.search, *context.parts.finalists))
    count = Counter(one for one in assignment.values() if worded_steps(one))
    if not count:
        context.report(TuneStage.REWRITE, "skipped: no workflow in use has subtasks")
        return result
    chosen = min(count, key=lambda one: (-count[one], one))
    outcome = await _try_wordings(context, result, chosen, assignment)
    context.report(TuneStage.REWRITE, outcome.reason)
    nominees = dict(result.nominees)
    if outcome.kept:
        nominees[ULTRA] = replace_workflow(system, chosen, outcome.after)
    return replace(result, nominees=nominees, rewritten=outcome)


async def _try_wordings(
    context: TuneContext, result: TuneResult, chosen: Candidate, assignment: dict[str, Candidate]
) -> RewriteOutcome:
    """Look for a better wording with gepa, and confirm it on questions that gepa did not see."""
    tasks = [
        task
        for task in (*context.parts.search, *context.parts.finalists)
        if assignment[task.id] == chosen
    ]
    ends = context.ends
    middle = ends[TuneStage.SELECT] + _SEARCHED * (ends[TuneStage.REWRITE] - ends[TuneStage.SELECT])
    room = int(context.expected_calls() * middle) - context.runner.meter.calls
    affordable = max(room // (_WORDINGS * len(chosen)), _LEAST_VALIDATED)
    after = await rewrite_candidate(
        chosen,
        Rewriting(
            runner=context.runner,
            rewriter=context.settings.rewriter or result.pool.ranked()[0].id,
            train=tasks[::3],
            validation=tasks[1::3][: min(affordable, _VALIDATED)],
            has_money=context.has_money(middle),
            seed=context.settings.seed,
        ),
    )
    if after == chosen:
        return RewriteOutcome(before=chosen, after=chosen, reason="no wording was better")
    fresh = tasks[2::3][:_CONFIRMED]
    gains = await _compare_wordings(context, fresh, chosen, after)
    gain = float(np.mean(gains)) if gains else 0.0
    error = float(np.std(gains)) / np.sqrt(len(gains)) if gains else 0.0
    kept = gain > error
    reason = f"{gain:+.3f} on {len(gains)} other questions: {'kept' if kept else 'not kept'}"
    return RewriteOutcome(
        before=chosen, after=after, kept=kept, gain=gain, questions=len(gains), reason=reason
    )


async def _compare_wordings(
    context: TuneContext, tasks: list[Task], before: Candidate, after: Candidate
) -> list[float]:
    """Return the second's gain on each question; empty if the budget allows no question."""
    has_money = context.has_money(context.ends[TuneStage.REWRITE])
    find_result = context.runner.find_result
    while tasks:
        planned = [(task, entry) for task in tasks for entry in (before, after)]
        if has_money(
            sum(len(entry) for task, entry in planned if find_result(task, entry) is None)
        ):
            break
        tasks = tasks[: len(tasks) // 2]
    planned = [(task, entry) for task in tasks for entry in (before, after)]
    if not tasks or not await context.runner.run_all(planned):
        return []
    gains: list[float] = []
    for task in tasks:
        one, other = (find_result(task, entry) for entry in (before, after))
        if one and other and one.score is not None and other.score is not None:
            gains.append(other.score - one.score)
    return gains
