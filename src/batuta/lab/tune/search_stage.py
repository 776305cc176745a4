"""The search stage of a tuning run: its cells, budget and progress.

Axes: n questions, g groups, l levels, f features of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from batuta.conductors.features import Floats
from batuta.conductors.workflow_selector import fit_ease
from batuta.core import Task, WorkerId
from batuta.core.worker import PROGRAM
from batuta.lab.tune.calibrate import WorkerCard, mean_scores, mean_usd
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.grouping import Grouping, ease_bounds
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.search import Search
from batuta.lab.tune.search_settings import Arena, SearchSettings
from batuta.lab.tune.stages import TuneStage, describe_progress

_SCREENED, _EXPLORED = 0.4, 0.6
"""The shares of the budget until the end of the search at which the screening and then the
exploration end. The rest is spent on measuring the best workflows more precisely."""
_CALLS_A_CELL = 250
"""The number of calls that the budget must allow for each level of ease of a group."""
_SCREENING = 2
"""The number of questions per group and level on which every worker is tried in every role. It is
halved until the budget allows the runs."""
_SEARCH_ROUNDS, _MOST_DRAWS, _CALLS_PER_RUN = 100, 8, 1.7
"""The number of rounds to aim for, the maximum number of draws in a cell and round, and the typical
number of new calls that a workflow makes for a question."""
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
    """Search until the stage's budget is spent or no run is left.

    `calibrated` are the questions that every worker was asked, and `workers` the workers to use.

    Returns:
        The search; the bounds of the levels of ease, (g, l - 1); and the grouping, whose reader now
        also predicts the ease of a question.
    """
    texts = [task.question for task in calibrated]
    right_n = mean_scores(context.runner, calibrated, workers)
    reader = replace(grouping.reader, ease_f=fit_ease(grouping.reader, texts, right_n))
    grouping = replace(grouping, reader=reader)
    arena, ease_gl = _divide_questions(context, grouping)
    usd = {
        card.worker: mean_usd(context.runner, calibrated, card.worker)
        if card.usd is None
        else card.usd
        for card in cards
    }
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
        fits_budget=context.fits_budget(context.ends[TuneStage.SEARCH]),
    )
    search.take_over(calibrated, [Candidate.single(worker) for worker in workers])
    await _run_rounds(context, search)
    return search, ease_gl, grouping


def _divide_questions(context: TuneContext, grouping: Grouping) -> tuple[Arena, Floats]:
    """Divide the search's questions into cells; return the cells and the bounds of the levels."""
    tasks, groups = context.parts.search, len(grouping.names)
    group_n, ease_n, _ = grouping.reader([task.question for task in tasks])
    levels = min(context.settings.levels, len(tasks) // (4 * groups))
    levels = max(min(levels, context.expected_calls() // (_CALLS_A_CELL * groups)), 1)
    ease_gl = ease_bounds(group_n, ease_n, groups, levels)
    level_n = (ease_n[:, None] >= ease_gl[group_n]).sum(axis=1)
    cells: dict[tuple[int, int], list[Task]] = {}
    for task, group, level in zip(tasks, group_n, level_n, strict=True):
        cells.setdefault((int(group), int(level)), []).append(task)
    share_g = np.bincount(group_n, minlength=groups) / len(tasks)
    weights = {group: float(share_g[group]) for group in range(groups) if share_g[group]}
    return Arena(levels=levels, cells=cells, weights=weights), ease_gl


def _count_draws(context: TuneContext, arena: Arena) -> int:
    """Return the number of draws per cell and round with which the budget allows enough rounds."""
    defaults = SearchSettings()
    cells = len(arena.cells) / len(arena.groups) * min(defaults.groups_at_once, len(arena.groups))
    calls = context.expected_calls() / _SEARCH_ROUNDS
    return max(2, min(_MOST_DRAWS, round(calls / (defaults.batch * cells * _CALLS_PER_RUN))))


async def _run_rounds(context: TuneContext, search: Search) -> None:
    """Screen, then explore, then measure the best workflows until the stage's budget is spent."""
    whole = context.ends[TuneStage.SEARCH]
    fits_budget = context.fits_budget(_SCREENED * whole)
    screens = (
        partial(search.screen_programs, asked=True),
        partial(search.screen_programs, asked=False),
        search.screen,
    )
    for screen in screens:
        each = _SCREENING * search.arena.levels
        while each and not await screen(each, fits_budget):
            each //= 2
    reported = 0.0
    while await search.run_round():
        if (share := context.spent_share()) - reported >= _REPORT_STEP:
            reported = share
            context.report(TuneStage.SEARCH, describe_progress(search))
        if context.spent_share() >= _EXPLORED * whole:
            search.stop_exploring()
    context.report(TuneStage.SEARCH, describe_progress(search))
