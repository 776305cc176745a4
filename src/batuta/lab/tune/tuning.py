"""Runs the stages of a tuning run, from the questions to the judgement.

Unless minutes are limited, all decisions depend only on the replies and the settings. If a run was
killed, the next run reads the paid calls from the journal and ends with the same result.
"""

from __future__ import annotations

from dataclasses import replace

from batuta.lab.tune.calibrate import (
    calibrate_workers,
    choose_usable,
    measure_workers,
    measured_pool,
)
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.grouping import group_questions
from batuta.lab.tune.judgement import judge_nominees
from batuta.lab.tune.result import TuneResult
from batuta.lab.tune.rewriting import rewrite_most_used
from batuta.lab.tune.search_stage import search_workflows
from batuta.lab.tune.selection import select_systems
from batuta.lab.tune.stages import TuneStage, expected_accuracy
from batuta.lab.tune.systems import SYSTEM_NAMES, tabulate_systems
from batuta.lab.tune.team import choose_team, effective_limit


async def run_tuning(context: TuneContext) -> TuneResult:
    """Run all stages up to `TuneSettings.last`.

    Raises:
        ConfigError: no worker gives answers with a score, or the budget is too small to begin.
        ExceptionGroup: a run failed; it has the first error.
        StoreError: the journal of paid calls can no longer be written.
        WorkerLostError: a worker that answered in the calibration no longer answers.
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
    usable, left_out = choose_usable(cards, runner.pool)
    runner.meter.rely_on(usable)
    most, team = effective_limit(settings.most_workers, runner.pool), None
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
        systems=tuple(table.build(name, search.call_weight) for name in SYSTEM_NAMES),
        tried=len(search.tried_anywhere()),
        expected_accuracy=expected_accuracy(search),
    )
    if settings.last is TuneStage.SEARCH:
        return result
    result = await select_systems(context, result)
    if settings.last is TuneStage.SELECT:
        return result
    result = await rewrite_most_used(context, result)
    return result if settings.last is TuneStage.REWRITE else await judge_nominees(context, result)
