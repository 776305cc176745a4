"""The SFT warm-up, which teaches the syntax of workflows and how to read a prompt, but no strategy.

`batuta train warmup` makes a tokenizer and a network first, unless `policy.start` names a model.
Drafts are random well-formed workflows, or accept the first answer. Some prompts have hints that
disclose facts of the random workflow, so that the model learns to link names to numbers and words
to steps. Part of the loss is on the prompt itself, so that the model learns to read questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import anyio
import torch

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import (
    MAX_STEPS,
    Limits,
    PlanningContext,
    Pool,
    Question,
    Round,
    Sampling,
    Task,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.engine import RunSettings, conduct
from batuta.lab.learners.random_workflows import SUBTASK_TEMPLATES, RandomConductor, random_workflow
from batuta.lab.train.allocator import retain_freed_memory
from batuta.lab.train.device import bf16_autocast, set_threads
from batuta.lab.train.episodes import apply_word_dropout, render_user_prompt
from batuta.lab.train.fit_checkpoint import FitCheckpoint
from batuta.lab.train.fitting import FitLoss, TrainingExample, fit_examples
from batuta.lab.train.model import load_trainable, make_policy, save_stage
from batuta.lab.train.questions import draw_others, held_out_keys
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import TrainSettings, WarmupSettings
from batuta.language import ACCEPTED, PromptOptions, conductor_request, render_workflow
from batuta.language.prompt import PREFILL

ROLE_ASSIGNMENTS = 8
"""Number of arbitrary assignments of subtasks to workers."""
_ROLE_SHARE = 0.6
"""Share of drills that name such an assignment instead of the workflow's steps."""
_DRILL_SHARE = 0.25
"""Share of the batches after the first drills that are drills."""
_WHOLE_POOL_SHARE, _FEWER_STEPS_SHARE = 0.5, 0.15
"""Shares of first rounds over the whole pool, and with a limit on steps."""
_DISCLOSURE_SHARE = 0.3
"""Share of the prompts with hints whose hints disclose every step."""
_ACCEPT_SHARE = 0.4
"""Share of second rounds that accept the first answer."""
_MAX_HINTS = 3


def warmup_texts(
    tasks: Sequence[Task],
    pool: Pool,
    rendering: PromptOptions,
    settings: WarmupSettings,
    *,
    first_rounds: Sequence[tuple[Task, Pool, Round]],
    seed: int,
) -> Iterator[tuple[str, str]]:
    """Yield endless pairs of prompt and draft.

    The first batches are drills, whose prompts disclose every step or name an assignment of workers
    to subtasks; without drills a small network never attends to its prompt. Each later batch is of
    one kind: drills, second rounds or first rounds. With a free vocabulary only first rounds of
    real questions follow the drills. Second rounds continue the executed `first_rounds`.
    """
    rng = Random(f"warm start {seed}")
    further = dict.fromkeys(WorkerId(name) for name in settings.names)  # some may have joined
    names = (Worker(id=name, model=name) for name in further if name not in pool)
    anyone = Pool((*pool.workers, *names))
    for _ in range(int(settings.steps * settings.drills) * settings.batch):
        yield _make_drill(anyone, rendering, rng=rng)
    if settings.vocabulary == "free":
        yield from _free_texts(tasks, pool, rendering=rendering, settings=settings, rng=rng)
    while True:
        kind = rng.random()
        for _ in range(settings.batch):
            if kind < _DRILL_SHARE:
                yield _make_drill(anyone, rendering, rng)
            elif first_rounds and kind < _DRILL_SHARE + settings.revisions:
                yield _make_revision(*rng.choice(first_rounds), rendering, rng=rng)
            else:
                among = pool if rng.random() < _WHOLE_POOL_SHARE else _sample_workers(anyone, rng)
                yield _make_first_round(
                    rng.choice(tasks), among, rendering=rendering, settings=settings, rng=rng
                )


def _free_texts(
    tasks: Sequence[Task],
    pool: Pool,
    rendering: PromptOptions,
    settings: WarmupSettings,
    *,
    rng: Random,
) -> Iterator[tuple[str, str]]:
    """Yield endless prompts of real questions over parts of the pool, with free workflows."""
    while True:
        among = Pool(tuple(rng.sample(pool.workers, min(len(pool), rng.randint(2, 5)))))
        question = Question.of(rng.choice(tasks).question)
        prompt = _conductor_prompt(PlanningContext(question=question, pool=among), rendering)
        for _ in range(settings.drafts):
            flow = random_workflow(rng, among, free=True)
            yield prompt, render_workflow(flow, among, names=rendering.compact)


def _make_drill(pool: Pool, rendering: PromptOptions, rng: Random) -> tuple[str, str]:
    """Return a prompt whose question discloses the steps or names an assignment, and its draft."""
    has_roles = rng.random() < _ROLE_SHARE
    among = pool.shuffled(rng) if has_roles else _sample_workers(pool, rng)
    flow = random_workflow(rng, among)
    disclosed = describe_steps(flow)
    if has_roles:
        number = rng.randrange(ROLE_ASSIGNMENTS)
        flow = apply_role_assignment(flow, number, pool)
        disclosed = f"Custom {number}."
    context = PlanningContext(question=Question.of(disclosed), pool=among)
    return _text_pair(context, flow, rendering)


def apply_role_assignment(flow: Workflow, number: int, pool: Pool) -> Workflow:
    """Return the workflow with each subtask given to the worker that the assignment names.

    The assignments are arbitrary, so none of them is a strategy. They teach that the worker of a
    step can depend on its subtask; without them a small network writes the two lists independently
    and later finds no division of labour.
    """
    names = sorted(worker.id for worker in pool)
    assigned = {
        template.instruction: Random(f"{number} {template.instruction}").choice(names)
        for template in SUBTASK_TEMPLATES
    }
    return Workflow(
        tuple(
            replace(step, worker=next(w for d, w in assigned.items() if step.subtask.startswith(d)))
            for step in flow.steps
        )
    )


def _sample_workers(pool: Pool, rng: Random) -> Pool:
    return Pool(tuple(rng.sample(pool.workers, rng.randint(1, len(pool)))))


def _make_first_round(
    task: Task, pool: Pool, rendering: PromptOptions, settings: WarmupSettings, *, rng: Random
) -> tuple[str, str]:
    among = pool.shuffled(rng)
    step_limit = rng.randint(1, MAX_STEPS) if rng.random() < _FEWER_STEPS_SHARE else MAX_STEPS
    flow = random_workflow(rng, among, step_limit)
    question = task.question
    if rng.random() < settings.hints:
        whole = rng.random() < _DISCLOSURE_SHARE
        question = (
            f"{question} {describe_steps(flow) if whole else ' '.join(draw_hints(flow, rng))}"
        )
    context = PlanningContext(question=Question.of(question), pool=among, max_steps=step_limit)
    return _text_pair(context, flow, rendering)


def _make_revision(
    task: Task, pool: Pool, first_round: Round, rendering: PromptOptions, *, rng: Random
) -> tuple[str, str]:
    context = PlanningContext(
        question=Question.of(task.question), pool=pool, previous=(first_round,)
    )
    if rng.random() < _ACCEPT_SHARE:
        return _conductor_prompt(context, rendering), ACCEPTED
    return _text_pair(context, random_workflow(rng, pool, revise=True), rendering)


def _conductor_prompt(context: PlanningContext, rendering: PromptOptions) -> str:
    return conductor_request(context, rendering, Sampling()).messages[0].text


def _text_pair(
    context: PlanningContext, flow: Workflow, rendering: PromptOptions
) -> tuple[str, str]:
    draft = render_workflow(flow, context.pool, names=rendering.compact)
    return _conductor_prompt(context, rendering), draft


def describe_steps(flow: Workflow) -> str:
    """Return every step of the workflow in words."""
    return " ".join(f"{step.worker}: {step.subtask}" for step in flow.steps)


def draw_hints(flow: Workflow, rng: Random) -> list[str]:
    """Return some random facts of the workflow in words."""
    facts = [f"Take {len(flow)} steps."]
    for index, step in enumerate(flow.steps):
        facts.append(f"Step {index} {step.worker}.")
        facts.append(f"Step {index}: {step.subtask}")
        if step.access:
            facts.append(f"Let step {index} read {', '.join(map(str, step.access))}.")
    return rng.sample(facts, min(len(facts), rng.randint(1, _MAX_HINTS)))


def fit_warmup(
    model: Any,
    tokenizer: Any,
    pairs: Iterator[tuple[str, str]],
    settings: WarmupSettings,
    *,
    on_step: Callable[[int, FitLoss], None],
    prefill: str = "",
    autocast: AbstractContextManager[Any] | None = None,
    checkpoint: FitCheckpoint | None = None,
) -> None:
    """Fit `model` to pairs of prompt and draft by maximum likelihood, as `fit_examples` does.

    `prefill` is the text between each prompt and its draft.
    """
    examples = (
        TrainingExample(f"{render_user_prompt(tokenizer, prompt)}{prefill}", draft)
        for prompt, draft in pairs
    )
    batches = iter(lambda: list(islice(examples, settings.batch)), [])
    fit_examples(
        model,
        tokenizer,
        batches=batches,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        on_step=on_step,
        prompt_weight=settings.prompt_weight,
        autocast=autocast,
        checkpoint=checkpoint,
    )


QUESTION_COUNT = 8000
"""Number of questions in prompts; their answers are not graded."""
TOKENIZER_EXAMPLES = 4000
"""Number of pairs of prompt and draft on which the tokenizer is trained."""
RANDOM_ROUNDS = 600
"""Number of random workflows that are executed for the prompts of second rounds."""


def run_warmup(
    settings: TrainSettings, on_step: Callable[[int, float], None], *, resume: bool = False
) -> Path:
    """Train a policy that writes random well-formed workflows, from scratch or from `policy.start`.

    `on_step` is called with each step's number, from 0, and mean loss in nats a token. With
    `resume` an interrupted warm-up continues. The policy's folder is returned.

    Raises:
        ConfigError: a source, the pool or the checkpoint cannot be used.
        SourceError: the questions cannot be used.
        StoreError: the policy, the checkpoint or the log cannot be written, or a store of questions
            cannot be read.
    """
    warm, rendering = settings.warmup, settings.prompt.rendering()
    retain_freed_memory()
    log = RunFolder(settings.output).log_losses("warmup")
    torch.manual_seed(settings.seed)
    set_threads(settings)
    asked = _draw_questions(settings)
    pool, first_rounds = anyio.run(
        _run_random_rounds, settings, asked[: RANDOM_ROUNDS if warm.revisions else 0]
    )
    texts = partial(
        warmup_texts,
        _hide_words(asked, settings),
        pool,
        rendering=rendering,
        first_rounds=first_rounds,
        seed=settings.seed,
    )
    if settings.policy.start:
        model, tokenizer = load_trainable(settings.policy.start, settings)
    else:
        read = texts(settings=warm.model_copy(update={"drills": 0.0}))
        model, tokenizer = make_policy(islice(read, TOKENIZER_EXAMPLES), settings.policy.network)

    def report_step(step: int, loss: FitLoss) -> None:
        log(step, loss.shown, loss.drills)
        on_step(step, loss.shown)

    checkpoint = FitCheckpoint.of_stage(settings, "warmup", "", resume=resume)
    fit_warmup(
        model,
        tokenizer,
        pairs=texts(settings=warm),
        settings=warm,
        on_step=report_step,
        prefill="" if rendering.compact else PREFILL,
        autocast=bf16_autocast(settings),
        checkpoint=checkpoint,
    )
    return checkpoint.end(save_stage(model, tokenizer, settings, "warmup"))


def _draw_questions(settings: TrainSettings) -> list[Task]:
    names = list(settings.curriculum[0].tasks)
    count, seed = QUESTION_COUNT // len(names), settings.seed + 90_001
    without = held_out_keys(settings)
    return [task for name in names for task in draw_others(name, count, seed, without)]


def _hide_words(asked: Sequence[Task], settings: TrainSettings) -> list[Task]:
    rng, hidden = Random(f"veil {settings.seed}"), settings.prompt.hidden
    return [
        replace(task, question=apply_word_dropout(task.question, hidden, rng)) for task in asked
    ]


async def _run_random_rounds(
    settings: TrainSettings, tasks: list[Task]
) -> tuple[Pool, list[tuple[Task, Pool, Round]]]:
    """Return the pool, and an executed random workflow per task; none if workers are real."""
    async with HttpTransport() as http:
        loaded = await load_config(
            http, pool=settings.pool.source, conductor="best", time_scale=0.0
        )
        if not loaded.simulated:
            return loaded.pool, []
        rng = Random(settings.seed)
        rounds: list[tuple[Task, Pool, Round]] = []
        for task in tasks:
            pool = loaded.pool.shuffled(rng)
            run = await conduct(
                Question.of(task.question),
                RandomConductor(),
                pool,
                loaded.clients,
                limits=Limits(),
                seed=rng.randrange(2**31),
                settings=RunSettings(fallback=False),
            )
            rounds.append((task, pool, run.rounds[0]))
        return loaded.pool, rounds
