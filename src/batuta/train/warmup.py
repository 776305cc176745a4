"""The SFT warm-up: the syntax of workflows and how to read a prompt, never a strategy.

Drafts are random well-formed workflows. Some prompts carry hints that merely disclose facts of the
random workflow behind them, so that the model learns to bind names to numbers and words to steps;
part of the loss is on the prompt itself, so that it learns to read questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any, NamedTuple

import torch
from torch.nn import functional

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
from batuta.language import ACCEPTED, PromptOptions, conductor_request, render_workflow
from batuta.solvers.random_workflows import SUBTASK_TEMPLATES, random_workflow
from batuta.train.allocator import MemoryTrimmer
from batuta.train.model import without_adapters
from batuta.train.settings import WarmupSettings
from batuta.train.shared_prompt import completion_logprobs

ROLE_ASSIGNMENTS = 8
_ROLE_SHARE = 0.6
_WHOLE_POOL_SHARE = 0.5
_DRILL_SHARE = 0.25
_DISCLOSURE_SHARE = 0.3
_ACCEPT_SHARE = 0.4
_FEWER_STEPS_SHARE = 0.15
_MAX_HINTS = 3
BATCH_PARTS = 3
"""Of a batch that is fitted."""


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


class TrainingExample(NamedTuple):
    """A prompt in the policy's chat format, and the draft that is to follow it."""

    prompt: str
    draft: str
    weight: float = 1.0


def fit_warmup(
    model: Any,
    tokenizer: Any,
    pairs: Iterator[tuple[str, str]],
    settings: WarmupSettings,
    *,
    on_step: Callable[[int, float], None],
    prefill: str = "",
    autocast: AbstractContextManager[Any] | None = None,
) -> None:
    """Fit `model` to the drafts by their likelihood.

    Args:
        model: changed in place.
        tokenizer: of its texts.
        pairs: prompts and drafts.
        settings: how long and how fast.
        on_step: is told each step's number and loss, nats a token of the drafts.
        prefill: how every reply begins before its draft.
        autocast: the precision that is computed in; None: that of the weights.
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
    )


def fit_examples(
    model: Any,
    tokenizer: Any,
    batches: Iterator[Sequence[TrainingExample]],
    steps: int,
    learning_rate: float,
    on_step: Callable[[int, float], None],
    *,
    prompt_weight: float = 0.0,
    autocast: AbstractContextManager[Any] | None = None,
    is_over: Callable[[float], bool] = lambda _: False,
) -> None:
    """Raise the likelihood of drafts, and with `prompt_weight` of their prompts.

    Args:
        model: a causal language model, changed in place; with adapters, only they change.
        tokenizer: of its texts.
        batches: at least `steps` of them.
        steps: how many.
        learning_rate: at its highest; it rises for 8 % of the steps and then falls to 0.
        on_step: is told each step's number and loss, nats a token of the drafts.
        prompt_weight: of a prompt's token, where a draft's has its example's weight; with 0 a
            prompt is read once for all of its drafts in a batch.
        autocast: the precision that is computed in; None: that of the weights.
        is_over: whether a part of the time is over. Where the machine is slower than was thought,
            steps are left out evenly, so that the learning rate has fallen to 0 in time.
    """
    learning = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(learning, learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, learning_rate, total_steps=steps, pct_start=0.08
    )
    model.train()
    done, memory = 0, MemoryTrimmer()
    while schedule.last_epoch < steps and not is_over(1.0):
        optimiser.zero_grad(set_to_none=True)
        batch = next(batches)
        with autocast or nullcontext():
            if prompt_weight or len({one.prompt for one in batch}) == len(batch):
                loss = _add_gradients(model, tokenizer, batch, prompt_weight)
            else:
                loss = _add_shared_gradients(model, tokenizer, batch)
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimiser.step()
        schedule.step()
        while schedule.last_epoch < steps - 1 and is_over((schedule.last_epoch + 1) / steps):
            schedule.step()
        on_step(done, loss)
        done += 1
        memory.trim_growth()
    model.eval()


def _add_gradients(
    model: Any, tokenizer: Any, batch: Sequence[TrainingExample], prompt_weight: float
) -> float:
    """The gradients of the batch's weighted loss; returns the mean over its drafts' tokens, nats.

    In parts by length, so that short examples are not padded to the longest, and with the logits of
    those tokens only that have a weight.
    """
    ordered = sorted(batch, key=lambda one: len(one.prompt) + len(one.draft))
    size = -(-len(ordered) // BATCH_PARTS)
    parts = [
        _tokenize_batch(ordered[at : at + size], tokenizer, prompt_weight)
        for at in range(0, len(ordered), size)
    ]
    bare = without_adapters(model)
    whole = sum(float(weights_BT.sum()) for _, weights_BT, _, _ in parts)
    lost, tokens = 0.0, 0
    for ids_BT, weights_BT, drafts_BT, mask_BT in parts:
        counted = weights_BT > 0
        hidden_BTD = bare.get_decoder()(
            ids_BT, attention_mask=mask_BT, use_cache=False
        ).last_hidden_state[:, :-1]
        logits_NV = bare.get_output_embeddings()(hidden_BTD[counted]).float()
        losses = functional.cross_entropy(logits_NV, ids_BT[:, 1:][counted], reduction="none")
        ((losses * weights_BT[counted]).sum() / whole).backward()
        drafted = drafts_BT[counted]
        lost += float(losses.detach()[drafted].sum())
        tokens += int(drafted.sum())
    return lost / tokens


def _add_shared_gradients(model: Any, tokenizer: Any, batch: Sequence[TrainingExample]) -> float:
    """As `_add_gradients`, of the drafts alone, each distinct prompt read once."""
    by_prompt: dict[str, list[TrainingExample]] = {}
    for one in batch:
        by_prompt.setdefault(one.prompt, []).append(one)
    whole = sum(one.weight * len(_draft_ids(tokenizer, one)) for one in batch)
    lost, tokens = 0.0, 0
    for prompts in _split_prompts(sorted(by_prompt, key=len)):
        ordered = [one for prompt in prompts for one in by_prompt[prompt]]
        asked: list[list[int]] = [
            tokenizer(one.prompt, add_special_tokens=False)["input_ids"] for one in ordered
        ]
        drafts = [_draft_ids(tokenizer, one) for one in ordered]
        before, after = max(map(len, asked)), max(map(len, drafts))
        ids = torch.full((len(ordered), before + after), int(tokenizer.pad_token_id))
        mask = torch.zeros(len(ordered), before + after, dtype=torch.long)
        for row, (prompt, draft) in enumerate(zip(asked, drafts, strict=True)):
            start, end = before - len(prompt), before + len(draft)
            ids[row, start:end] = torch.tensor(prompt + draft)
            mask[row, start:end] = 1
        logps_BT, _ = completion_logprobs(without_adapters(model), ids, mask, after)
        weights_B1 = torch.tensor([[one.weight] for one in ordered])
        (-(logps_BT * weights_B1).sum() / whole).backward()
        lost -= float(logps_BT.detach().sum())
        tokens += sum(map(len, drafts))
    return lost / tokens


PROMPTS_AT_ONCE = 8
"""Prompts of one forward pass, of about the same length."""


def _split_prompts(prompts: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(prompts), PROMPTS_AT_ONCE):
        yield prompts[at : at + PROMPTS_AT_ONCE]


def _draft_ids(tokenizer: Any, one: TrainingExample) -> list[int]:
    return tokenizer(f"{one.draft}{tokenizer.eos_token}", add_special_tokens=False)["input_ids"]


def _tokenize_batch(
    batch: Sequence[TrainingExample], tokenizer: Any, prompt_weight: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, each next token's weight and whether it is a draft's, and what is no padding."""
    after = [f"{one.draft}{tokenizer.eos_token}" for one in batch]
    prompts: list[list[int]] = tokenizer([one.prompt for one in batch], add_special_tokens=False)[
        "input_ids"
    ]
    drafts: list[list[int]] = tokenizer(after, add_special_tokens=False)["input_ids"]
    longest = max(len(p) + len(d) for p, d in zip(prompts, drafts, strict=True))
    ids = torch.full((len(batch), longest), int(tokenizer.pad_token_id))
    weights = torch.zeros(len(batch), longest)
    drafted = torch.zeros(len(batch), longest, dtype=torch.bool)
    mask = torch.zeros(len(batch), longest, dtype=torch.long)
    for row, (prompt, draft) in enumerate(zip(prompts, drafts, strict=True)):
        end = len(prompt) + len(draft)
        ids[row, :end] = torch.tensor(prompt + draft)
        weights[row, : len(prompt)] = prompt_weight
        weights[row, len(prompt) : end] = batch[row].weight
        drafted[row, len(prompt) : end] = True
        mask[row, :end] = 1
    return ids, weights[:, 1:], drafted[:, 1:], mask


def render_user_prompt(tokenizer: Any, prompt: str) -> str:
    """One user message in the policy's chat format, up to where the reply begins."""
    messages = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
