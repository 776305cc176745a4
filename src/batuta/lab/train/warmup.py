"""The SFT warm-up: the syntax of workflows and how to read a prompt, never a strategy.

Drafts are random well-formed workflows. Some prompts carry hints that merely disclose facts of the
random workflow behind them, so that the model learns to bind names to numbers and words to steps;
part of the loss is on the prompt itself, so that it learns to read questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

from batuta.core import (
    MAX_STEPS,
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
from batuta.lab.learners.random_workflows import SUBTASK_TEMPLATES, random_workflow
from batuta.lab.train.fit_checkpoint import FitCheckpoint
from batuta.lab.train.fitting import FitLoss, TrainingExample, fit_examples
from batuta.lab.train.settings import WarmupSettings
from batuta.language import ACCEPTED, PromptOptions, conductor_request, render_workflow

ROLE_ASSIGNMENTS = 8
_ROLE_SHARE = 0.6
_WHOLE_POOL_SHARE = 0.5
_DRILL_SHARE = 0.25
_DISCLOSURE_SHARE = 0.3
_ACCEPT_SHARE = 0.4
_FEWER_STEPS_SHARE = 0.15
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
    """Prompts and drafts without end; a batch of them at a time is of one kind.

    First come drills that disclose everything, until copying from the prompt is learned; without
    them a small network never comes to look at its prompt. Then all kinds, mixed.
    """
    rng = Random(f"warm start {seed}")
    names = (Worker(id=WorkerId(name), model=name) for name in settings.names)
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
    """Prompts of real questions over parts of the pool, each with some freely worded workflows."""
    while True:
        among = Pool(tuple(rng.sample(pool.workers, min(len(pool), rng.randint(2, 5)))))
        question = Question.of(rng.choice(tasks).question)
        prompt = _conductor_prompt(PlanningContext(question=question, pool=among), rendering)
        for _ in range(settings.drafts):
            flow = random_workflow(rng, among, free=True)
            yield prompt, render_workflow(flow, among, names=rendering.compact)


def _make_drill(pool: Pool, rendering: PromptOptions, rng: Random) -> tuple[str, str]:
    """A prompt that asks nothing: it discloses the whole workflow, or names a custom."""
    customary = rng.random() < _ROLE_SHARE
    among = pool.shuffled(rng) if customary else _sample_workers(pool, rng)
    flow = random_workflow(rng, among)
    said = describe_steps(flow)
    if customary:
        number = rng.randrange(ROLE_ASSIGNMENTS)
        flow = apply_role_assignment(flow, number, pool)
        said = f"Custom {number}."
    return _conductor_prompt(
        PlanningContext(question=Question.of(said), pool=among), rendering
    ), render_workflow(flow, among, names=rendering.compact)


def apply_role_assignment(flow: Workflow, number: int, pool: Pool) -> Workflow:
    """The workflow with each subtask given to the worker that this assignment names for it.

    Role assignments are arbitrary and there are several, so that none is a strategy. They teach
    that who does a step can depend on what it is to do; without them a small network writes the
    two lists independently of each other, and later finds no division of labour.
    """
    names = sorted(worker.id for worker in pool)
    offices = {
        deed.instruction: Random(f"{number} {deed.instruction}").choice(names)
        for deed in SUBTASK_TEMPLATES
    }
    return Workflow(
        tuple(
            replace(step, worker=next(w for d, w in offices.items() if step.subtask.startswith(d)))
            for step in flow.steps
        )
    )


def _sample_workers(pool: Pool, rng: Random) -> Pool:
    """Part of the pool, in any order."""
    return Pool(tuple(rng.sample(pool.workers, rng.randint(1, len(pool)))))


def _make_first_round(
    task: Task, pool: Pool, rendering: PromptOptions, settings: WarmupSettings, *, rng: Random
) -> tuple[str, str]:
    among = pool.shuffled(rng)
    most = rng.randint(1, MAX_STEPS) if rng.random() < _FEWER_STEPS_SHARE else MAX_STEPS
    flow = random_workflow(rng, among, most)
    question = task.question
    if rng.random() < settings.hints:
        whole = rng.random() < _DISCLOSURE_SHARE
        question = (
            f"{question} {describe_steps(flow) if whole else ' '.join(draw_hints(flow, rng))}"
        )
    context = PlanningContext(question=Question.of(question), pool=among, max_steps=most)
    return _conductor_prompt(context, rendering), render_workflow(
        flow, among, names=rendering.compact
    )


def _make_revision(
    task: Task, pool: Pool, first_round: Round, rendering: PromptOptions, *, rng: Random
) -> tuple[str, str]:
    context = PlanningContext(
        question=Question.of(task.question), pool=pool, previous=(first_round,)
    )
    if rng.random() < _ACCEPT_SHARE:
        return _conductor_prompt(context, rendering), ACCEPTED
    flow = random_workflow(rng, pool, MAX_STEPS, revise=True)
    return _conductor_prompt(context, rendering), render_workflow(
        flow, pool, names=rendering.compact
    )


def _conductor_prompt(context: PlanningContext, rendering: PromptOptions) -> str:
    return conductor_request(context, rendering, Sampling()).messages[0].text


def describe_steps(flow: Workflow) -> str:
    """Every step of the workflow, in words."""
    return " ".join(f"{step.worker}: {step.subtask}" for step in flow.steps)


def draw_hints(flow: Workflow, rng: Random) -> list[str]:
    """Some facts of the workflow, in words."""
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
    """Fit `model` to the drafts by their likelihood.

    Args:
        model: changed in place.
        tokenizer: of its texts.
        pairs: prompts and drafts.
        settings: how long and how fast.
        on_step: is told each step's number and losses.
        prefill: how every reply begins before its draft.
        autocast: the precision that is computed in; None: that of the weights.
        checkpoint: from where it goes on, and where it is kept on the way.
    """
    examples = (
        TrainingExample(f"{render_user_prompt(tokenizer, prompt)}{prefill}", draft)
        for prompt, draft in pairs
    )
    batches = iter(lambda: list(islice(examples, settings.batch)), [])
    rate, weight = settings.learning_rate, settings.prompt_weight
    fit_examples(
        model,
        tokenizer,
        batches=batches,
        steps=settings.steps,
        learning_rate=rate,
        on_step=on_step,
        prompt_weight=weight,
        autocast=autocast,
        checkpoint=checkpoint,
    )


def render_user_prompt(tokenizer: Any, prompt: str) -> str:
    """One user message in the policy's chat format, up to where the reply begins."""
    messages = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
