"""`batuta train conductor --minutes`: workflow search, SFT on the workflows found, then GRPO.

The result is the best evaluated policy, or one fitted to the best single worker if that is better.
Each stage ends at its share of the time (`StageClock`). Settings that are not chosen here keep the
defaults of `TrainSettings`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio

from batuta.core import Pool, Task
from batuta.errors import ConfigError
from batuta.lab.evals.task_sets import open_tasks
from batuta.lab.task_sources import TASK_SOURCES
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.train.conductor_training import load_pool, train_conductor
from batuta.lab.train.device import set_threads
from batuta.lab.train.found_workflows import (
    ENOUGH_STEPS,
    LEAST_STEPS,
    SEARCH_CALLS,
    FitPlan,
    FoundWorkflows,
    add_random_lessons,
    fit_lessons,
    fit_single_worker,
    lesson_texts,
    plan_fitting,
    random_lessons,
    search_workflows,
)
from batuta.lab.train.questions import FILE_LIMIT, draw_held_out
from batuta.lab.train.settings import (
    CurriculumStage,
    EvaluationSettings,
    LogSettings,
    OptimiserSettings,
    PoolSettings,
    PromptSettings,
    RewardSettings,
    TrainSettings,
)
from batuta.lab.train.supervision import (
    END_REINFORCEMENT,
    AutoListener,
    AutoReport,
    StageClock,
    TimedSupervision,
)
from batuta.lab.tune.stages import BEST_SINGLE

END_SEARCH, END_FITTING = 0.4, 0.65
"""Shares of the time, 0 to 1, at which these stages end."""
END_FITTING_AT_MOST = 0.87
"""Share at which fitting ends if time is short: fitting then gains more than reinforcement."""
HELD_SHARE, MOST_HELD = 0.2, 100
"""Share of the questions that are held out for evaluation, and their maximum number, as each one
costs calls."""
LEAST_QUESTIONS = 32
"""Minimum number of different questions, as the search needs others than the held-out ones."""
_GROUP, _QUESTIONS = 8, 16
_STEPS_PER_MINUTE, _MOST_STEPS = 40, 1500
_LEAST_SEARCH = 5.0
"""Minimum duration of a search, in seconds."""

Choice = tuple[str, str, str]
"""A setting, its value, and the reason."""


def count_held_out(source: str) -> int:
    """Return how many questions of a source are held out for evaluation.

    Raises:
        ConfigError: the source has too few different questions.
        SourceError: the source cannot be used.
    """
    if source.partition(":")[0] in TASK_SOURCES:
        return MOST_HELD
    different = {text_key(task.question) for task in open_tasks(source, FILE_LIMIT, 0).tasks}
    if len(different) < LEAST_QUESTIONS:
        raise ConfigError(
            f"{source} has too few different questions, {len(different)}: a training needs "
            f"{LEAST_QUESTIONS}, as some are held out; add questions, if possible up to 300 or more"
        )
    return min(MOST_HELD, round(HELD_SHARE * len(different)))


def choose_settings(
    *, pool: str, source: str, held: int, minutes: float, cores: int, output: Path, seed: int = 1
) -> tuple[TrainSettings, list[Choice]]:
    """Return settings for a training of that many minutes, and each choice with its reason.

    `pool` and `source` name the workers and the questions, of which `held` are held out; `cores` is
    the number of CPU threads.
    """
    steps = max(1, min(_MOST_STEPS, round(_STEPS_PER_MINUTE * minutes)))
    optimiser = OptimiserSettings(
        sampler="own",
        steps=steps,
        questions=_QUESTIONS,
        group=_GROUP,
        micro_batch=_QUESTIONS * _GROUP,
        learning_rate=5e-4,
        schedule="constant",
        warmup=0.0,
        loss="dapo",
        scale="group-then-batch",
        max_grad_norm=0.5,
        entropy=0.02,
        threads=cores,
    )
    reward = RewardSettings(
        cost="calls", unit=1.0, coefficient=0.01, ceiling=0.1, from_step=20, ramp=20
    )
    settings = TrainSettings(
        name="chosen",
        seed=seed,
        output=output,
        curriculum=[CurriculumStage(tasks={source: 1.0})],
        pool=PoolSettings(source=pool, seconds=120.0),
        prompt=PromptSettings(compact=True),
        reward=reward,
        optimiser=optimiser,
        evaluation=EvaluationSettings(every=steps, questions=held),
        log=LogSettings(checkpoint_every=max(steps + 1, 2)),
    )
    return settings, _explain_choice(settings, cores)


def _explain_choice(settings: TrainSettings, cores: int) -> list[Choice]:
    o, reward = settings.optimiser, settings.reward
    return [
        (
            "search",
            f"at most {SEARCH_CALLS:,} calls of workers",
            f"without the held-out questions; ends by {END_SEARCH:.0%} of the time",
        ),
        (
            "fitting to what was found",
            "as large a network and as many steps as fit",
            f"measured on {cores} core{'' if cores == 1 else 's'}; ends by {END_FITTING:.0%}",
        ),
        (
            "reinforcement",
            f"{o.questions} questions x {o.group} a step, learning rate {o.learning_rate:g}",
            f"at most {o.steps:,} steps; ends by {END_REINFORCEMENT:.0%} of the time",
        ),
        ("entropy bonus", f"{o.entropy:g}", "without it one workflow wins everywhere"),
        (
            "cost of a call",
            f"{reward.coefficient:g} of a correct answer",
            f"from step {reward.from_step} on, when accuracy has risen",
        ),
    ]


def require_time(settings: TrainSettings, held: Sequence[Task], clock: StageClock) -> FitPlan:
    """Time steps of fitting on random workflows, before any worker is called.

    Returns:
        The network for which the time suffices, and its step time on this machine.

    Raises:
        ConfigError: the pool or the named model cannot be loaded, or the time is too short for even
            a small network to learn the syntax.
    """
    set_threads(settings)
    pool = anyio.run(load_pool, settings)
    texts = lesson_texts(settings, pool, random_lessons(held, pool, settings.seed))
    share = END_FITTING - END_SEARCH
    plan = plan_fitting(settings, texts, share * max(60 * clock.minutes - clock.used, 0.0))
    fitting = LEAST_STEPS * plan.step_seconds / share
    needed = clock.used + max(fitting, _LEAST_SEARCH / END_SEARCH)
    if needed > 60 * clock.minutes:
        raise ConfigError(
            f"--minutes {clock.minutes:g} is too short here: start-up took {clock.used:.0f} s, and "
            f"fitting a small network needs at least {LEAST_STEPS} steps of "
            f"{plan.step_seconds:.2f} s; allow --minutes {math.ceil(needed / 6) / 10:g}"
        )
    clock.begin_stages()
    return plan


def train_within(
    settings: TrainSettings, clock: StageClock, *, command: Sequence[str], on_progress: AutoListener
) -> AutoReport:
    """Run all stages within the clock's time; the best policy is in the report's folder.

    Raises:
        ConfigError: the settings cannot be carried out, or no worker answers.
        ExceptionGroup: a run failed; it has the first error.
        SandboxError: programs cannot be isolated here, which a grader needs.
        SourceError: there are too few different questions.
        StoreError: the run folder cannot be written.
        WorkerLostError: workers no longer answer.
    """
    set_threads(settings)
    pool, held = anyio.run(load_pool, settings), draw_held_out(settings)
    (source,) = settings.curriculum[0].tasks
    search = partial(
        search_workflows,
        minutes=clock.left(END_SEARCH) / 60,
        most_minutes=clock.left(END_FITTING) / 60,
        on_progress=on_progress,
    )
    found = anyio.run(search, settings, source, held)
    shares = [
        "not measured" if share is None else f"{share:.1%}"
        for share in (found.found_right, found.single_right)
    ]
    on_progress(
        f"the search ended after {clock.used:.0f} s and {found.calls:,} calls; accuracy on the "
        f"held-out questions: {shares[0]}, best single worker: {shares[1]}"
    )
    settings = _fit_found(settings, pool, found, clock, on_progress=on_progress)
    supervision = TimedSupervision(settings, clock, on_progress)
    report = supervision.report
    report.calls, report.usd, report.workflows = found.calls, float(found.usd), found.workflows
    report.folder = train_conductor(
        settings, command, lambda _figures: None, supervision=supervision
    )
    single = found.single_right
    if single is not None and report.best is not None and (report.best["right"] or 0.0) < single:
        lessons = [(task, found.single) for task, _ in found.lessons]
        over = clock.until(1.0)
        if fit_single_worker(settings, pool, lessons, held, folder=report.folder, is_over=over):
            report.judgements.append({"stage": BEST_SINGLE, "right": single, "steps": 1.0})
            outcome = "was worse than the best single worker: it now calls only that worker"
        else:
            outcome = "is worse than the best single worker, and could not be fitted to it"
        on_progress(f"the best policy {outcome}")
    report.seconds = clock.used
    return report


def _fit_found(
    settings: TrainSettings,
    pool: Pool,
    found: FoundWorkflows,
    clock: StageClock,
    *,
    on_progress: AutoListener,
) -> TrainSettings:
    lessons = add_random_lessons(found.targets, pool, settings.seed)
    texts = lesson_texts(settings, pool, lessons)
    plan = plan_fitting(settings, texts, max(clock.left(END_FITTING), 0.0))
    settings, end = plan.apply_to(settings), END_FITTING
    steps = plan.count_steps(clock.left(END_FITTING))
    if steps < ENOUGH_STEPS:  # take the time from reinforcement
        steps, end = ENOUGH_STEPS, END_FITTING_AT_MOST
    fit_lessons(settings, pool, lessons, steps=steps, is_over=clock.until(end))
    on_progress(
        f"fitting ended after {clock.used:.0f} s: {steps} steps, "
        f"{plan.network.layers} layers of {plan.network.hidden}, {plan.step_seconds:.2f} s a step"
    )
    return settings
