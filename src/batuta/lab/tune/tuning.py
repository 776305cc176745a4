"""One tuning from its questions to its recommendation, stage by stage.

All decisions follow from the replies and the settings alone; a tuning that was killed starts again,
reads the calls that it paid from its journal, and ends with the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from batuta.conductors.features import Floats
from batuta.conductors.workflow_selector import fit_ease
from batuta.core import Task, WorkerId
from batuta.core.worker import PROGRAM
from batuta.distribution import install_hint
from batuta.lab.tune.calibrate import (
    WorkerCard,
    calibrate_workers,
    choose_usable,
    mean_scores,
    measure_workers,
    measured_pool,
)
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.grouping import Grouping, ease_bounds, group_questions
from batuta.lab.tune.judgement import judge_nominees
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.result import RewriteOutcome, TuneResult
from batuta.lab.tune.rewriting import (
    Rewriting,
    is_rewriting_installed,
    rewrite_candidate,
    worded_steps,
)
from batuta.lab.tune.search import Search
from batuta.lab.tune.search_settings import Arena, SearchSettings
from batuta.lab.tune.selection import select_systems
from batuta.lab.tune.stages import ULTRA, TuneStage, describe_progress, expected_accuracy
from batuta.lab.tune.systems import replace_workflow, tabulate_systems
from batuta.lab.tune.team import check_most_workers, choose_team

_SCREENED, _EXPLORED = 0.4, 0.6
"""The shares of the search's budget after which the screening ends, and then the exploration; the
rest goes into measuring the best workflows more precisely."""
_CALLS_A_CELL = 250
"""Calls that the budget must allow for each level of ease of a group."""
_SCREENING = 2
"""Questions per group and level on which every role of every worker is tried."""
_SEARCH_ROUNDS, _MOST_DRAWS, _CALLS_PER_RUN = 100, 8, 1.7
"""Rounds that the search should have, the most draws of one, and the usual new calls of a run."""
_REPORT_STEP = 0.05
"""The share of the budget between two reports of progress."""


async def search_workflows(
    context: TuneContext,
    grouping: Grouping,
    calibrated: Sequence[Task],
    *,
    workers: Sequence[WorkerId],
    cards: Sequence[WorkerCard],
) -> tuple[Search, Floats, Grouping]:
    """Search until the stage's budget is spent; return the search, bounds of ease, and groups.

    Args:
        context: the tuning.
        grouping: the groups of questions; their ease is fitted here.
        calibrated: the questions that every worker was asked.
        workers: the workers that workflows may use.
        cards: the workers' measurements.
    """
    texts = [task.question for task in calibrated]
    right_n = mean_scores(context.runner, calibrated, workers)
    reader = replace(grouping.reader, ease_f=fit_ease(grouping.reader, texts, right_n))
    grouping = replace(grouping, reader=reader)
    arena, ease_gl = _divide_questions(context, grouping)
    usd = {card.worker: card.usd or 0.0 for card in cards}
    programs = [w.id for w in context.runner.pool if PROGRAM in w.tags and w.id in workers]
    search = Search(
        arena,
        context.runner,
        workers=[worker for worker in workers if worker not in programs],
        programs=programs,
        settings=SearchSettings(
            call_weight=context.settings.call_weight,
            mean_calls=context.settings.mean_calls,
            usd_weight=1 / context.settings.worth if context.settings.worth else 0.0,
            seed=context.settings.seed,
            draws=_count_draws(context, arena),
        ),
        max_steps=context.settings.max_steps,
        usd=usd,
        has_money=context.has_money(context.ends[TuneStage.SEARCH]),
    )
    search.take_over(calibrated, [Candidate.single(worker) for worker in workers])
    await _run_rounds(context, search)
    return search, ease_gl, grouping


def _divide_questions(context: TuneContext, grouping: Grouping) -> tuple[Arena, Floats]:
    """Divide the search's questions into cells."""
    tasks, groups = context.parts.search, len(grouping.names)
    group_n, ease_n, _ = grouping.reader([task.question for task in tasks])
    levels = min(context.settings.levels, len(tasks) // (4 * groups))
    levels = max(min(levels, context.expected_calls() // (_CALLS_A_CELL * groups)), 1)
    ease_gl = ease_bounds(group_n, ease_n, groups, levels)
    level_n = (ease_n[:, None] >= ease_gl[group_n]).sum(axis=1)
    cells: dict[tuple[int, int], list[Task]] = {}
    for task, group, level in zip(tasks, group_n, level_n, strict=True):
        cells.setdefault((int(group), int(level)), []).append(task)
    there = np.bincount(group_n, minlength=groups) / len(tasks)
    weights = {group: float(there[group]) for group in range(groups) if there[group]}
    return Arena(levels=levels, cells=cells, weights=weights), ease_gl


def _count_draws(context: TuneContext, arena: Arena) -> int:
    """Return the workflows to draw in each cell and round, so that there are enough rounds."""
    usual = SearchSettings()
    there = len(arena.cells) / len(arena.groups) * min(usual.groups_at_once, len(arena.groups))
    calls = context.expected_calls() / _SEARCH_ROUNDS
    return max(2, min(_MOST_DRAWS, round(calls / (usual.batch * there * _CALLS_PER_RUN))))


async def _run_rounds(context: TuneContext, search: Search) -> None:
    whole = context.ends[TuneStage.SEARCH]
    has_money = context.has_money(_SCREENED * whole)
    screens = (
        partial(search.screen_programs, asked=True),
        partial(search.screen_programs, asked=False),
        search.screen,
    )
    for screen in screens:
        each = _SCREENING * search.arena.levels
        while each and not await screen(each, has_money):
            each //= 2
    reporter = _ProgressReporter(context, search)
    while await search.run_round():
        reporter.tell()
        if context.spent_share() >= _EXPLORED * whole:
            search.stop_exploring()
    context.report(TuneStage.SEARCH, describe_progress(search))


@dataclass(slots=True)
class _ProgressReporter:
    """Reports the progress of the search at intervals."""

    context: TuneContext
    search: Search
    reported: float = 0.0

    def tell(self) -> None:
        """Report the progress if enough was spent since the last report."""
        share = self.context.spent_share()
        if share - self.reported >= _REPORT_STEP:
            self.reported = share
            self.context.report(TuneStage.SEARCH, describe_progress(self.search))


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


async def run_tuning(context: TuneContext) -> TuneResult:
    """Run all stages up to the last one wanted.

    Raises:
        ConfigError: no worker answers, or the budget is too small to begin.
    """
    parts, runner, settings = context.parts, context.runner, context.settings
    grouping = group_questions(
        parts.search,
        context.family,
        labelled=settings.labelled,
        most=settings.groups,
        seed=settings.seed,
    )
    tasks, group_n = await calibrate_workers(context, grouping)
    context.plan_stages(context.expected_calls())
    cards = measure_workers(runner, tasks, group_n, len(grouping.names))
    usable, left_out = choose_usable(cards)
    most, team = check_most_workers(settings.most_workers, runner.pool), None
    if most is not None:
        team = choose_team(runner, tasks, usable, cards=cards, most=most)
        usable = team.workers
        context.report(TuneStage.CALIBRATE, f"keeps {', '.join(usable)}")
    pool = measured_pool(runner.pool, cards, grouping.names)
    result = TuneResult(cards=cards, left_out=left_out, grouping=grouping, pool=pool, team=team)
    if settings.last is TuneStage.CALIBRATE:
        return result
    search, ease_gl, grouping = await search_workflows(
        context, grouping, tasks, workers=usable, cards=cards
    )
    table = tabulate_systems(search, grouping, ease_gl)
    result = replace(
        result,
        grouping=grouping,
        table=table,
        systems=tuple(table.build(name, search.call_weight) for name in table.names),
        tried=len(search.tried_anywhere()),
        believed=expected_accuracy(search),
    )
    if settings.last is TuneStage.SEARCH:
        return result
    result = await select_systems(context, result)
    if settings.last is TuneStage.SELECT:
        return result
    result = await rewrite_workflows(context, result)
    return result if settings.last is TuneStage.REWRITE else await judge_nominees(context, result)
