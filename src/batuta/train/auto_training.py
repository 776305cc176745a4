"""`batuta train conductor --minutes`: every stage within its share of the time, the best kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import anyio

from batuta.errors import ConfigError
from batuta.train.auto_settings import (
    END_FITTING,
    END_FITTING_AT_MOST,
    END_REJECTION,
    END_SEARCH,
)
from batuta.train.conductor_training import load_pool, train_conductor
from batuta.train.device import place_model, set_threads
from batuta.train.fit_plan import ENOUGH_STEPS, LEAST_STEPS, FitPlan, plan_fitting
from batuta.train.held_back import SplitQuestions
from batuta.train.model import load_policy
from batuta.train.rejection_sampling import run_rejection_sampling
from batuta.train.search_first import (
    FoundWorkflows,
    draw_random_workflows,
    search_workflows,
    single_worker_texts,
    teach_single_worker,
    teach_workflows,
    workflow_texts,
)
from batuta.train.settings import TrainSettings
from batuta.train.training_supervisor import (
    AutoListener,
    AutoReport,
    PolicyJudgement,
    StageClock,
    TrainingSupervisor,
)
from batuta.tune.stages import BEST_SINGLE

_LEAST_SEARCH = 5.0
"""Seconds without which no search is begun."""


def require_time(settings: TrainSettings, split: SplitQuestions, clock: StageClock) -> FitPlan:
    """Times fitting on random workflows here, before anything is spent.

    Returns:
        What fits as the machine is now.

    Raises:
        ConfigError: the time is too short to teach even a small network the syntax.
    """
    set_threads(settings)
    pool = anyio.run(load_pool, settings)
    chance = draw_random_workflows(split.held_back, pool, settings.seed)
    share = END_FITTING - END_SEARCH
    texts = workflow_texts(settings, pool, chance)
    left = max(60 * clock.minutes - clock.used, 0.0)
    plan = plan_fitting(settings, texts, share * left)
    fitting = LEAST_STEPS * plan.step_seconds / share
    wanted = clock.used + max(fitting, _LEAST_SEARCH / END_SEARCH)
    if wanted > 60 * clock.minutes:
        raise ConfigError(
            f"{clock.minutes:g} minutes are too short here: it took {clock.used:.0f} s to begin, "
            f"and a step of fitting a small network takes {plan.step_seconds:.2f} s, of which at "
            f"least {LEAST_STEPS} are needed; allow --minutes {math.ceil(wanted / 6) / 10:g}"
        )
    clock.begin_stages()
    return plan


def train_within(
    settings: TrainSettings,
    split: SplitQuestions,
    clock: StageClock,
    *,
    command: Sequence[str],
    on_progress: AutoListener,
) -> AutoReport:
    """All stages, within the clock's time; the best policy is in the folder.

    Raises:
        ConfigError: the settings cannot be carried out.
        StoreError: the folder cannot be written.
    """
    search = partial(
        search_workflows,
        minutes=clock.left(END_SEARCH) / 60,
        most_minutes=clock.left(END_FITTING) / 60,
        on_progress=on_progress,
    )
    found = anyio.run(search, settings, split)
    _tell_search(found, clock, on_progress)
    settings = _teach_found(settings, found, clock, on_progress)
    supervisor = TrainingSupervisor(settings, split, clock, on_progress=on_progress)
    report = supervisor.report
    report.calls, report.usd = found.calls, float(found.usd)
    report.workflows = found.workflows
    if settings.rejection.rounds:
        start = clock.share
        run_rejection_sampling(
            settings,
            lambda *_: None,
            clock.within(start, max(start, END_REJECTION)),
            supervisor.count,
        )
        on_progress(f"rejection sampling has ended after {clock.used:.0f} s")
    report.folder = train_conductor(
        settings, command, lambda _figures: None, supervision=supervisor
    )
    _fall_back_on_single(
        settings, split, found, supervisor=supervisor, clock=clock, on_progress=on_progress
    )
    report.seconds = clock.used
    return report


def _tell_search(found: FoundWorkflows, clock: StageClock, on_progress: AutoListener) -> None:
    shares = [
        "not measured" if share is None else f"{share:.1%}"
        for share in (found.found_right, found.single_right)
    ]
    on_progress(
        f"the search has ended after {clock.used:.0f} s and {found.calls:,} calls: right of the "
        f"held-back questions {shares[0]}, the best single worker {shares[1]}"
    )


def _teach_found(
    settings: TrainSettings, found: FoundWorkflows, clock: StageClock, on_progress: AutoListener
) -> TrainSettings:
    """Fits the policy; the settings as the found workflows need them."""
    set_threads(settings)
    pool, targets = anyio.run(load_pool, settings), found.targets
    chance = draw_random_workflows([task for task, _ in targets], pool, settings.seed)
    texts = workflow_texts(settings, pool, [*targets, *chance[: len(chance) // 4]])
    plan = plan_fitting(settings, texts, max(clock.left(END_FITTING), 0.0))
    until = END_FITTING
    if plan.steps < ENOUGH_STEPS:  # reinforcement is what can wait
        plan, until = replace(plan, steps=ENOUGH_STEPS), END_FITTING_AT_MOST
    settings = plan.apply_to(settings)
    start = clock.share
    teach_workflows(settings, pool, targets, plan, is_over=clock.within(start, until))
    on_progress(
        f"fitting has ended after {clock.used:.0f} s: {plan.steps} steps, "
        f"{plan.network.layers} layers of {plan.network.hidden}, {plan.step_seconds:.2f} s a step"
    )
    return settings


def _fall_back_on_single(
    settings: TrainSettings,
    split: SplitQuestions,
    found: FoundWorkflows,
    *,
    supervisor: TrainingSupervisor,
    clock: StageClock,
    on_progress: AutoListener,
) -> None:
    """Where the best policy is worse than the best single worker, that one for everything."""
    best, single = supervisor.report.best, found.single_right
    if best is None or single is None or best.right >= single:
        return
    folder, pool = supervisor.report.folder, anyio.run(load_pool, settings)
    model, tokenizer = load_policy(str(folder), None)
    place_model(model)
    tasks = [task for task, _ in found.executed]
    write = partial(single_worker_texts, settings, tokenizer, pool, single=found.single)
    (prompts, draft), (held, _) = write(tasks), write(split.held_back)
    if not teach_single_worker(
        model, tokenizer, prompts, draft, held=held, is_over=lambda: clock.left(1.0) <= 0
    ):
        on_progress("the best policy is worse than the best single worker, and the time is over")
        return
    model.save_pretrained(folder)
    supervisor.report.judgements.append(PolicyJudgement(BEST_SINGLE, single, 1.0))
    on_progress(
        "the best policy was worse than the best single worker: it now calls that one alone"
    )
