"""Searches for good workflows and fits a policy to them.

A search needs far fewer calls than reinforcement learning from scratch, so it is the first stage
of a training with a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import cycle, islice, repeat
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import torch

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Pool, Task, Workflow
from batuta.lab.learners.random_workflows import random_workflow
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.train.device import choose_attention, place_model
from batuta.lab.train.distil_stage import draw_groups, make_tuned_examples
from batuta.lab.train.episodes import make_episodes, render_user_prompt
from batuta.lab.train.fitting import TrainingExample, fit_examples
from batuta.lab.train.model import load_policy, make_policy, save_model, save_stage
from batuta.lab.train.sampler import open_sampler
from batuta.lab.train.settings import NetworkSettings, TrainSettings
from batuta.lab.train.supervision import AutoListener
from batuta.lab.tune.candidate_runner import CandidateRunner
from batuta.lab.tune.context import TuneContext, TuneSettings
from batuta.lab.tune.judge import describe_system
from batuta.lab.tune.library import Candidate, write_workflow
from batuta.lab.tune.opening import (
    TuneQuestions,
    is_labelled,
    open_questions,
    open_runner,
    start_clock,
)
from batuta.lab.tune.parts import split_questions
from batuta.lab.tune.result import TuneResult
from batuta.lab.tune.spending import Allowance
from batuta.lab.tune.stages import BEST_SINGLE, ULTRA, TuneStage
from batuta.lab.tune.tuning import run_tuning
from batuta.language import render_workflow

FOLDER = "tuned"
"""Name of the search's folder in the training's folder."""
SEARCH_CALLS = 6000
"""Maximum number of calls of workers in the search."""
LEAST_STEPS = 100
"""Minimum steps of fitting: with fewer, even the small network does not learn the syntax."""
ENOUGH_STEPS = 300
"""Steps after which the policy writes nearly all found workflows; further steps gain little."""
SMALL = NetworkSettings(vocabulary=512, hidden=64, layers=2, inner=128)
LARGE = NetworkSettings()
BATCH = 16
"""Examples per step of fitting."""
_QUESTIONS = 2000
"""Maximum number of questions to learn from."""
_RANDOM_EVERY = 9
"""For one in this many questions a random workflow is learned too: reinforcement learning cannot
prefer what the policy never writes."""
_GOOD_STEPS, _MOST_STEPS = 400, 1200
"""Steps for which the time must suffice if the larger network is chosen, and maximum steps."""
_RATES = {SMALL.hidden: 6e-3, LARGE.hidden: 3e-3}
"""Learning rate by width of a network made from scratch."""
_START_RATE, _SINGLE_RATE = 1e-4, 2e-3
"""Learning rates for a named model, and for the final fit to one worker."""
_SINGLE_STEPS = 200
_TIMED_STEPS = 3
_ROOM = 16
"""Tokens that a completion may have beyond the longest workflow found."""
_SAMPLED = 2000
"""Approximate number of texts from which a tokenizer is made, if there are more."""

Lesson = tuple[Task, Workflow]
"""A question, and the workflow to write for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWorkflows:
    """The result of a search."""

    lessons: tuple[Lesson, ...]
    """Each question to learn from, with its workflow."""
    single: Workflow
    """The workflow of the best single worker."""
    single_right: float | None
    """Accuracy of the best single worker on the held-out questions; None if not measured."""
    found_right: float | None
    """Accuracy of the found workflows on the held-out questions; None if not measured."""
    workflows: int
    """Number of workflows executed on the held-out questions."""
    calls: int
    usd: Decimal

    @property
    def targets(self) -> tuple[Lesson, ...]:
        """The lessons, all with the best single worker's workflow if that was more accurate."""
        if None in {self.single_right, self.found_right}:
            return self.lessons
        worse = (self.found_right or 0.0) < (self.single_right or 0.0)
        return tuple((task, self.single if worse else flow) for task, flow in self.lessons)


async def search_workflows(
    settings: TrainSettings,
    source: str,
    held: Sequence[Task],
    *,
    minutes: float,
    most_minutes: float,
    on_progress: AutoListener,
) -> FoundWorkflows:
    """Search for workflows on the questions of `source`, and measure them on the questions `held`.

    The search ends after `minutes`, and search and measurement together after `most_minutes`.

    Raises:
        ConfigError: no worker answers, or the time is too short to call each.
        ExceptionGroup: a run failed; it has the first error.
        SandboxError: programs cannot be isolated here, which a grader needs.
        SourceError: there are too few different questions.
        StoreError: the search's folder cannot be read or written.
        WorkerLostError: a worker no longer answers.
    """
    questions = _search_questions(source, held, settings.seed)
    tuning = TuneSettings(
        allowance=Allowance(calls=SEARCH_CALLS, minutes=max(minutes, 0.01)),
        labelled=is_labelled(questions),
        call_weight=settings.reward.coefficient,
        seed=settings.seed,
        last=TuneStage.SELECT,
    )
    ends = Allowance(calls=SEARCH_CALLS, minutes=max(most_minutes, minutes, 0.01))
    # the search needs no questions for a final judgement, so it uses these too
    parts = split_questions(questions.tasks, questions.family, settings.seed)
    parts = replace(parts, search=(*parts.search, *parts.judgement), judgement=())
    async with HttpTransport() as http:
        loaded = await load_config(http, pool=settings.pool.source, time_scale=0.0)
        async with open_runner(
            loaded.pool,
            loaded.clients,
            questions=questions,
            settings=replace(tuning, allowance=ends),
            folder=settings.output / FOLDER,
        ) as (runner, _):
            context = TuneContext(
                parts=parts,
                family=questions.family,
                runner=runner,
                settings=tuning,
                used_minutes=start_clock(),
                report=lambda stage, found: on_progress(f"search, {stage}: {found}"),
            )
            result = await run_tuning(context)
            return await _measure_found(runner, result, questions.tasks, held)


def _search_questions(source: str, held: Sequence[Task], seed: int) -> TuneQuestions:
    without = {text_key(task.question) for task in held}
    questions = open_questions(source, _QUESTIONS, seed)
    kept = tuple(task for task in questions.tasks if text_key(task.question) not in without)
    return replace(questions, tasks=kept)


async def _measure_found(
    runner: CandidateRunner, result: TuneResult, tasks: Sequence[Task], held: Sequence[Task]
) -> FoundWorkflows:
    assert result.nominees is not None  # noqa: S101 - tuning ended with their selection
    system, best = result.nominees[ULTRA], Candidate.single(result.pool.ranked()[0].id)
    assignments = {BEST_SINGLE: {task.id: best for task in held}, ULTRA: system.assign(held)}
    share: dict[str, float | None] = {}
    for name, execute in assignments.items():
        await runner.run_all((task, execute[task.id]) for task in held)
        share[name] = describe_system(name, runner, held, execute).share
    chosen = system.assign(tasks)
    return FoundWorkflows(
        lessons=tuple((task, _write_plain(chosen[task.id])) for task in tasks),
        single=_write_plain(best),
        single_right=share[BEST_SINGLE],
        found_right=share[ULTRA],
        workflows=len(assignments) * len(held),
        calls=runner.meter.calls,
        usd=runner.meter.usd,
    )


def _write_plain(candidate: Candidate) -> Workflow:
    """Return the candidate as a workflow that always runs all of its steps, in one round."""
    return write_workflow(candidate.without_look())


# -- fitting ------------------------------------------------------------------------------


def random_lessons(tasks: Sequence[Task], pool: Pool, seed: int) -> list[Lesson]:
    """Return a random workflow for each question."""
    rng = Random(f"random {seed}")
    return [(task, random_workflow(rng, pool)) for task in tasks]


def lesson_texts(
    settings: TrainSettings, pool: Pool, lessons: Sequence[Lesson]
) -> list[tuple[str, str]]:
    """Return pairs of the policy's prompt, not yet in its chat format, and the draft to write."""
    rendering = settings.prompt.rendering()
    episodes = make_episodes([task for task, _ in lessons], pool, settings.pool, settings.seed)
    return [
        (
            episode.request(rendering).messages[0].text,
            render_workflow(flow, episode.pool, names=rendering.compact),
        )
        for episode, (_, flow) in zip(episodes, lessons, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """The size of a network made from scratch, and its measured time per step."""

    network: NetworkSettings
    """Not used if the settings name a model to start from."""
    step_seconds: float
    completion: int
    """Maximum tokens of a completion."""

    def count_steps(self, seconds: float) -> int:
        """Return the number of steps that fit in `seconds`, at most `_MOST_STEPS`."""
        return max(0, min(_MOST_STEPS, int(seconds / self.step_seconds)))

    def apply_to(self, settings: TrainSettings) -> TrainSettings:
        """Return the settings with the planned network and maximum length of completions."""
        network = settings.policy.model_copy(update={"network": self.network})
        optimiser = settings.optimiser.model_copy(update={"completion": self.completion})
        return settings.model_copy(update={"policy": network, "optimiser": optimiser})


def plan_fitting(
    settings: TrainSettings, texts: Sequence[tuple[str, str]], seconds: float
) -> FitPlan:
    """Plan a fit with the larger of two networks if `seconds` suffice, else with the smaller one.

    A few steps on some of the texts are timed, so other load on the machine counts too. A model
    that the settings name is only timed.

    Raises:
        ConfigError: the model that the settings name cannot be loaded.
    """
    if settings.policy.start:
        return _plan_network(settings, texts, LARGE)
    small = _plan_network(settings, texts, SMALL)
    if small.count_steps(seconds) < _GOOD_STEPS:  # then the larger one is too slow as well
        return small
    large = _plan_network(settings, texts, LARGE)
    return large if large.count_steps(seconds) >= _GOOD_STEPS else small


def _plan_network(
    settings: TrainSettings, texts: Sequence[tuple[str, str]], network: NetworkSettings
) -> FitPlan:
    some = _sample_texts(texts, _SAMPLED)
    model, tokenizer = open_new_policy(settings, network, some)
    longest = _count_longest(tokenizer, [render_user_prompt(tokenizer, one) for one, _ in some])
    completion = _count_longest(tokenizer, [draft for _, draft in some]) + _ROOM
    positions = network.positions
    while positions < longest + completion + _ROOM:
        positions *= 2
    return FitPlan(
        network=network.model_copy(update={"positions": positions}),
        step_seconds=_time_step(model, tokenizer, some),
        completion=completion,
    )


def open_new_policy(
    settings: TrainSettings, network: NetworkSettings, texts: Sequence[tuple[str, str]]
) -> tuple[Any, Any]:
    """Make a network and a tokenizer from the texts, or load those that the settings name.

    Raises:
        ConfigError: the named model cannot be loaded.
    """
    torch.manual_seed(settings.seed)
    if settings.policy.start:
        model, tokenizer = load_policy(settings.policy.start, settings.policy.revision)
        choose_attention(model, settings)
        return place_model(model), tokenizer
    return make_policy(_sample_texts(texts, _SAMPLED), network)


def _sample_texts(texts: Sequence[tuple[str, str]], count: int) -> Sequence[tuple[str, str]]:
    return texts[:: max(1, len(texts) // count)]


def _count_longest(tokenizer: Any, texts: Sequence[str]) -> int:
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return max(map(len, ids))


def _time_step(model: Any, tokenizer: Any, texts: Sequence[tuple[str, str]]) -> float:
    """Return the mean seconds of a step; the first, slower one does not count."""
    batch = [
        TrainingExample(render_user_prompt(tokenizer, prompt), draft)
        for prompt, draft in islice(cycle(_sample_texts(texts, BATCH)), BATCH)
    ]
    ended: list[float] = []
    fit_examples(
        model,
        tokenizer,
        batches=repeat(batch),
        steps=_TIMED_STEPS + 1,
        learning_rate=1e-6,
        on_step=lambda _step, _loss: ended.append(monotonic()),
    )
    return (ended[-1] - ended[0]) / _TIMED_STEPS


def fit_lessons(
    settings: TrainSettings,
    pool: Pool,
    lessons: Sequence[Lesson],
    *,
    steps: int,
    is_over: Callable[[float], bool],
) -> Path:
    """Fit a policy to the lessons, and return its folder.

    Raises:
        ConfigError: the named model cannot be loaded, or all lessons are left out.
        StoreError: the policy cannot be written.
    """
    network = settings.policy.network
    model, tokenizer = open_new_policy(settings, network, lesson_texts(settings, pool, lessons))
    rate = _START_RATE if settings.policy.start else _RATES[network.hidden]
    groups = make_tuned_examples(settings, tokenizer, pool, lessons)
    batches = draw_groups(groups, BATCH, Random(f"teach {settings.seed}"))
    fit_examples(model, tokenizer, batches, steps, learning_rate=rate, is_over=is_over)
    return save_stage(model, tokenizer, settings, "distilled")


def add_random_lessons(lessons: Sequence[Lesson], pool: Pool, seed: int) -> list[Lesson]:
    """Return the lessons, and a random workflow for every ninth of their questions."""
    some = [task for task, _ in lessons[::_RANDOM_EVERY]]
    return [*lessons, *random_lessons(some, pool, seed)]


def fit_single_worker(
    settings: TrainSettings,
    pool: Pool,
    lessons: Sequence[Lesson],
    held: Sequence[Task],
    *,
    folder: Path,
    is_over: Callable[[float], bool],
) -> bool:
    """Fit the policy in the folder to one workflow for all questions; save it if that succeeds.

    Returns:
        True if the policy then writes exactly that workflow for all held-out questions; otherwise
        the folder is not changed.

    Raises:
        ConfigError: the policy cannot be loaded, or all lessons are left out.
        StoreError: the policy cannot be written.
    """
    model, tokenizer = load_policy(str(folder), None)
    place_model(model)
    groups = make_tuned_examples(settings, tokenizer, pool, lessons)
    batches = draw_groups(groups, BATCH, Random(f"teach {settings.seed}"))
    fit_examples(
        model, tokenizer, batches, _SINGLE_STEPS, learning_rate=_SINGLE_RATE, is_over=is_over
    )
    (_, flow), *_ = lessons
    texts = lesson_texts(settings, pool, [(task, flow) for task in held])
    prompts = [render_user_prompt(tokenizer, prompt) for prompt, _ in texts]
    ids: list[list[int]] = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    rows = open_sampler(model, tokenizer).sample(
        ids,
        1,
        max_tokens=settings.optimiser.completion,
        temperature=0.0,
        generator=torch.Generator().manual_seed(0),
    )
    drafts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    if any(draft != lesson for draft, (_, lesson) in zip(drafts, texts, strict=True)):
        return False
    save_model(model, tokenizer, folder)
    return True
