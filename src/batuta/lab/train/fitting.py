"""Fits a policy to examples by maximum likelihood: SFT warm-up, distilling, rejection sampling.

An example is a prompt with its draft, or a drill: a text of which some parts are learned. A drill
trains one skill, such as ranking three numbers, at a tenth of the cost of a draft, for which a
whole prompt must be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from batuta.lab.train.allocator import MemoryTrimmer
from batuta.lab.train.device import without_adapters
from batuta.lab.train.fit_checkpoint import FitCheckpoint
from batuta.lab.train.shared_prompt import completion_logprobs, pad_rows

BATCH_PARTS = 3
"""Maximum number of parts into which a batch is split, by length."""
PROMPTS_AT_ONCE = 8
"""Maximum number of prompts, of similar length, in one forward pass."""


class TrainingExample(NamedTuple):
    """A prompt in the policy's chat format, and the draft to be learned after it."""

    prompt: str
    draft: str
    weight: float = 1.0


class Drill(NamedTuple):
    """A text in parts that are alternately given and learned; the first part is given."""

    parts: tuple[str, ...]
    weight: float = 1.0


Example = TrainingExample | Drill


class FitLoss(NamedTuple):
    """Mean losses of a step's examples before its update, in nats a token.

    A loss is None if the step has no such examples.
    """

    drafts: float | None
    drills: float | None = None

    @property
    def shown(self) -> float:
        """The loss of the drafts, or of the drills if there are no drafts; 0 for an empty batch."""
        return next((loss for loss in self if loss is not None), 0.0)


def fit_examples(
    model: Any,
    tokenizer: Any,
    batches: Iterator[Sequence[Example]],
    steps: int,
    learning_rate: float,
    on_step: Callable[[int, FitLoss], None] = lambda _step, _loss: None,
    *,
    prompt_weight: float = 0.0,
    autocast: AbstractContextManager[Any] | None = None,
    is_over: Callable[[float], bool] = lambda _: False,
    checkpoint: FitCheckpoint | None = None,
) -> None:
    """Maximise the likelihood of drafts and drills, and with `prompt_weight` that of prompts.

    Args:
        model: a causal language model, changed in place; with adapters, only they change.
        tokenizer: the model's tokenizer.
        batches: at least `steps` of them.
        steps: the number of optimiser steps.
        learning_rate: the maximum; the rate rises for 8 % of the steps and then falls almost to 0.
        on_step: called with each step's number, from 0, and losses.
        prompt_weight: the weight of each token of a prompt; tokens of a draft have the weight of
            their example. With 0 a prompt is read once for all of its drafts in a batch.
        autocast: a context that sets the precision; None: the precision of the weights.
        is_over: takes a share of the time, 0 to 1, and returns True once that share is used. On a
            slow machine steps are skipped evenly, so that the learning rate still falls in time.
        checkpoint: the file to resume from and to write; None: no checkpoints.

    Raises:
        ConfigError: the checkpoint is damaged or belongs to another fit.
        StoreError: the checkpoint cannot be written.
    """
    learning = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(learning, learning_rate, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, learning_rate, total_steps=steps, pct_start=0.08
    )
    done, memory = 0, MemoryTrimmer()
    if checkpoint is not None:
        done = checkpoint.restore(learning, optimiser, schedule)
        for _ in range(done):
            next(batches)
    model.train()
    while schedule.last_epoch < steps and not is_over(1.0):
        optimiser.zero_grad(set_to_none=True)
        batch = next(batches)
        with autocast or nullcontext():
            loss = add_gradients(model, tokenizer, batch, prompt_weight)
        if torch.nn.utils.clip_grad_norm_(learning, 1.0).isfinite():  # else all weights turn NaN
            optimiser.step()
        schedule.step()
        while schedule.last_epoch < steps - 1 and is_over((schedule.last_epoch + 1) / steps):
            schedule.step()
        on_step(done, loss)
        done += 1
        memory.trim_growth()
        if checkpoint is not None and schedule.last_epoch < steps:
            checkpoint.keep(done, learning, optimiser, schedule)
    model.eval()


def add_gradients(
    model: Any, tokenizer: Any, batch: Sequence[Example], prompt_weight: float = 0.0
) -> FitLoss:
    """Add the gradients of the batch's weighted mean loss, and return the unweighted losses.

    Drafts of one prompt share one pass over the prompt, unless the prompt itself is learned.
    """
    drafts = [one for one in batch if isinstance(one, TrainingExample)]
    rows = [_tokenize_example(one, tokenizer, prompt_weight) for one in drafts]
    drills = [_tokenize_example(one, tokenizer) for one in batch if isinstance(one, Drill)]
    pad = int(tokenizer.pad_token_id)
    weight_sum = sum(sum(row.weights[1:]) for row in (*rows, *drills))
    if prompt_weight or len({one.prompt for one in drafts}) == len(drafts):
        drafted = _add_rows(model, rows, pad, weight_sum)
    else:
        drafted = _add_shared(model, tokenizer, drafts, weight_sum)
    return FitLoss(drafted, _add_rows(model, drills, pad, weight_sum))


class _Row(NamedTuple):
    """The token ids of an example, the weight of each token, and whether it is learned text."""

    ids: list[int]
    weights: list[float]
    written: list[bool]


def _tokenize_example(one: Example, tokenizer: Any, prompt_weight: float = 0.0) -> _Row:
    ids: list[int] = []
    weights: list[float] = []
    written: list[bool] = []
    if isinstance(one, Drill):
        texts, given = one.parts, 0.0
    else:
        texts, given = (one.prompt, f"{one.draft}{tokenizer.eos_token}"), prompt_weight
    for number, text in enumerate(texts):
        more = tokenizer(text, add_special_tokens=False)["input_ids"]
        learned = number % 2 == 1
        ids += more
        weights += [one.weight if learned else given] * len(more)
        written += [learned] * len(more)
    return _Row(ids, weights, written)


def _add_rows(model: Any, rows: Sequence[_Row], pad: int, weight_sum: float) -> float | None:
    """Add the gradients of the rows' part of the loss, and return their mean loss.

    The mean is over learned tokens, in nats; None without rows. `weight_sum` is that of the batch.
    Rows are split by length, so that short rows need little padding, and logits are computed only
    for tokens with a weight.
    """
    if not rows:
        return None
    ordered = sorted(rows, key=lambda row: len(row.ids))
    size = -(-len(ordered) // BATCH_PARTS)
    bare = without_adapters(model)
    lost, tokens = 0.0, 0
    for at in range(0, len(ordered), size):
        padded = _pad_rows(ordered[at : at + size], pad)
        ids_BT, weights_BT, written_BT, mask_BT = (part.to(bare.device) for part in padded)
        counted = weights_BT > 0
        hidden_BTD = bare.get_decoder()(
            ids_BT, attention_mask=mask_BT, use_cache=False
        ).last_hidden_state[:, :-1]
        logits_NV = bare.get_output_embeddings()(hidden_BTD[counted]).float()
        losses = functional.cross_entropy(logits_NV, ids_BT[:, 1:][counted], reduction="none")
        ((losses * weights_BT[counted]).sum() / weight_sum).backward()
        written = written_BT[counted]
        lost += float(losses.detach()[written].sum())
        tokens += int(written.sum())
    return lost / max(1, tokens)


def _pad_rows(
    rows: Sequence[_Row], pad: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad the rows on the right to the longest.

    Returns:
        Token ids (B, T); the weight of each next token and whether it is learned text, both
        (B, T - 1); the attention mask (B, T).
    """
    shape = len(rows), max(len(row.ids) for row in rows)
    ids = torch.full(shape, pad)
    weights = torch.zeros(shape)
    written = torch.zeros(shape, dtype=torch.bool)
    mask = torch.zeros(shape, dtype=torch.long)
    for at, row in enumerate(rows):
        end = len(row.ids)
        ids[at, :end] = torch.tensor(row.ids)
        weights[at, :end] = torch.tensor(row.weights)
        written[at, :end] = torch.tensor(row.written)
        mask[at, :end] = 1
    return ids, weights[:, 1:], written[:, 1:], mask


def _add_shared(
    model: Any, tokenizer: Any, batch: Sequence[TrainingExample], weight_sum: float
) -> float:
    """Add gradients as `_add_rows` does, but read each distinct prompt once for its drafts."""
    by_prompt: dict[str, list[TrainingExample]] = {}
    for one in batch:
        by_prompt.setdefault(one.prompt, []).append(one)
    lost, tokens = 0.0, 0
    bare = without_adapters(model)
    by_length = sorted(by_prompt, key=len)
    for at in range(0, len(by_length), PROMPTS_AT_ONCE):
        prompts = by_length[at : at + PROMPTS_AT_ONCE]
        ordered = [one for prompt in prompts for one in by_prompt[prompt]]
        texts = [f"{one.draft}{tokenizer.eos_token}" for one in ordered]
        asked, drafts = (
            [tokenizer(text, add_special_tokens=False)["input_ids"] for text in part]
            for part in ([one.prompt for one in ordered], texts)
        )
        ids, mask, longest = pad_rows(asked, drafts, int(tokenizer.pad_token_id))
        logps_BT, _ = completion_logprobs(bare, ids.to(bare.device), mask.to(bare.device), longest)
        weights_B1 = torch.tensor([[one.weight] for one in ordered], device=bare.device)
        (-(logps_BT * weights_B1).sum() / weight_sum).backward()
        lost -= float(logps_BT.detach().sum())
        tokens += sum(map(len, drafts))
    return lost / tokens
