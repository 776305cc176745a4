"""The warm start: the syntax of workflows and how to read a prompt, never a strategy.

Drafts are random well-formed workflows. Some prompts carry hints that merely disclose facts of the
random workflow behind them, so that the model learns to bind names to numbers and words to steps;
part of the loss is on the prompt itself, so that it learns to read questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import torch
from torch.nn import functional

from batuta.core import (
    MAX_STEPS,
    Brief,
    Pool,
    Question,
    Round,
    Sampling,
    Task,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.language import Rendering, conductor_request, render
from batuta.solvers.random import random_workflow
from batuta.train.settings import WarmupSettings

ACCEPTED = "model_id = []\nsubtasks = []\naccess_list = []"
_WHOLE = 0.5
_DRILLED = 0.25
_DISCLOSED = 0.3
_STANDS = 0.4
_FEWER_STEPS = 0.15
_MOST_HINTS = 3


def texts(
    asked: Sequence[Task],
    pool: Pool,
    rendering: Rendering,
    settings: WarmupSettings,
    played: Sequence[tuple[Task, Pool, Round]],
    seed: int,
) -> Iterator[tuple[str, str]]:
    """Prompts and drafts without end; a batch of them at a time is of one kind.

    First come drills that disclose everything, until copying from the prompt is learned; without
    them a small network never comes to look at its prompt. Then all kinds, mixed.
    """
    rng = Random(f"warm start {seed}")
    names = (Worker(WorkerId(name), name) for name in settings.names)
    anyone = Pool((*pool.workers, *names))
    for _ in range(int(settings.steps * settings.drills) * settings.batch):
        yield _drill(anyone, rendering, rng)
    while True:
        kind = rng.random()
        for _ in range(settings.batch):
            if kind < _DRILLED:
                yield _drill(anyone, rendering, rng)
            elif played and kind < _DRILLED + settings.revisions:
                yield _revision(*rng.choice(played), rendering, rng)
            else:
                among = pool if rng.random() < _WHOLE else _some(anyone, rng)
                yield _first(rng.choice(asked), among, rendering, settings, rng)


def _drill(pool: Pool, rendering: Rendering, rng: Random) -> tuple[str, str]:
    """A prompt that asks nothing and discloses the whole workflow."""
    among = _some(pool, rng)
    flow = random_workflow(rng, among)
    prompt = _prompt(Brief(Question.of(disclosed(flow)), among), rendering)
    return prompt, render(flow, among, names=True)


def _some(pool: Pool, rng: Random) -> Pool:
    """Part of the pool, in any order."""
    return Pool(tuple(rng.sample(pool.workers, rng.randint(1, len(pool)))))


def _first(
    task: Task, pool: Pool, rendering: Rendering, settings: WarmupSettings, rng: Random
) -> tuple[str, str]:
    among = pool.shuffled(rng)
    most = rng.randint(1, MAX_STEPS) if rng.random() < _FEWER_STEPS else MAX_STEPS
    flow = random_workflow(rng, among, most)
    question = task.question
    if rng.random() < settings.hints:
        whole = rng.random() < _DISCLOSED
        question = f"{question} {disclosed(flow) if whole else ' '.join(hints(flow, rng))}"
    brief = Brief(Question.of(question), among, max_steps=most)
    return _prompt(brief, rendering), render(flow, among, names=True)


def _revision(
    task: Task, pool: Pool, played: Round, rendering: Rendering, rng: Random
) -> tuple[str, str]:
    brief = Brief(Question.of(task.question), pool, previous=(played,))
    if rng.random() < _STANDS:
        return _prompt(brief, rendering), ACCEPTED
    flow = random_workflow(rng, pool, MAX_STEPS, revise=True)
    return _prompt(brief, rendering), render(flow, pool, names=True)


def _prompt(brief: Brief, rendering: Rendering) -> str:
    return conductor_request(brief, rendering, Sampling()).messages[0].text


def disclosed(flow: Workflow) -> str:
    """Every step of the workflow, in words."""
    return " ".join(f"{step.worker}: {step.subtask}" for step in flow.steps)


def hints(flow: Workflow, rng: Random) -> list[str]:
    """Some facts of the workflow, in words."""
    facts = [f"Take {len(flow)} steps."]
    for index, step in enumerate(flow.steps):
        facts.append(f"Step {index} {step.worker}.")
        facts.append(f"Step {index}: {step.subtask}")
        if step.access:
            facts.append(f"Let step {index} read {', '.join(map(str, step.access))}.")
    return rng.sample(facts, min(len(facts), rng.randint(1, _MOST_HINTS)))


def warm_up(
    model: Any,
    tokenizer: Any,
    pairs: Iterator[tuple[str, str]],
    settings: WarmupSettings,
    heard: Callable[[int, float], None],
) -> None:
    """Fit `model` to the drafts by their likelihood.

    Args:
        model: changed in place.
        tokenizer: of its texts.
        pairs: prompts and drafts.
        settings: how long and how fast.
        heard: is told each step's number and loss, nats a token of the drafts.
    """
    optimiser = torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, settings.learning_rate, total_steps=settings.steps, pct_start=0.08
    )
    model.train()
    for step in range(settings.steps):
        batch = [next(pairs) for _ in range(settings.batch)]
        ids_BT, weights_BT, mask_BT = _batched(batch, tokenizer, settings.prompt_weight)
        logits_BTV = model(ids_BT, attention_mask=mask_BT).logits[:, :-1]
        counted = weights_BT > 0
        losses = functional.cross_entropy(
            logits_BTV[counted], ids_BT[:, 1:][counted], reduction="none"
        )
        weights = weights_BT[counted]
        loss = (losses * weights).sum() / weights.sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        heard(step, float(losses.detach()[weights == 1].mean()))
    model.eval()


def _batched(
    batch: Sequence[tuple[str, str]], tokenizer: Any, prompt_weight: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, the weight of each next token's loss, and what is not padding."""
    before = [chat(tokenizer, prompt) for prompt, _ in batch]
    after = [f"{draft}{tokenizer.eos_token}" for _, draft in batch]
    prompts: list[list[int]] = tokenizer(before)["input_ids"]
    drafts: list[list[int]] = tokenizer(after)["input_ids"]
    longest = max(len(p) + len(d) for p, d in zip(prompts, drafts, strict=True))
    ids = torch.full((len(batch), longest), int(tokenizer.pad_token_id))
    weights = torch.zeros(len(batch), longest)
    for row, (prompt, draft) in enumerate(zip(prompts, drafts, strict=True)):
        end = len(prompt) + len(draft)
        ids[row, :end] = torch.tensor(prompt + draft)
        weights[row, : len(prompt)] = prompt_weight
        weights[row, len(prompt) : end] = 1.0
    return ids, weights[:, 1:], ids.ne(int(tokenizer.pad_token_id)).long()


def chat(tokenizer: Any, prompt: str) -> str:
    """One user message in the policy's chat format, up to where the reply begins."""
    messages = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
