"""Sampling ahead: the policy writes the drafts of later steps while workers answer earlier ones.

A batch is written at most `staleness` steps before the step that learns from it. Steps learn from
batches in the order in which they were written, so a training is repeatable however long workers
take, and a step waits only for the answers to its own batch. The log-probabilities of the weights
that wrote a batch are kept, so that the loss has the ratio of new to old probabilities (PPO).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from batuta.errors import report_unwritable
from batuta.lab.train.shared_prompt import pad_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBatch:
    """The completions of one step, and the version of the weights that wrote them."""

    step: int
    """The step, from 0, that learns from the batch."""
    version: int
    """Number of optimiser steps before the batch was written."""
    rows: dict[str, Any]
    """One list for each column of TRL's batch, such as `prompt_ids`."""
    logprobs: list[list[float]] | None = None
    """Log-probability of each completion token, in nats; None if they were not computed."""


class AheadQueue:
    """Decides when the batch of each step is written.

    Invariant: the batch of step t is written by weights of a version with
    t - staleness <= version <= t. Each batch is written once and in order, also after `restore`.
    """

    def __init__(
        self, staleness: int, steps: int, write: Callable[[int, int], WrittenBatch]
    ) -> None:
        """Create an empty queue.

        A batch is written at most `staleness` steps before the policy learns from it; the training
        has `steps` steps. `write` is called with the batch's step and the number of finished steps.
        """
        self._staleness = staleness
        self._steps = steps
        self._write = write
        self._ready: deque[WrittenBatch] = deque()

    def take(self, step: int) -> WrittenBatch:
        """Write all batches that may be written now, and return the batch of that step."""
        while self._ready and self._ready[0].step < step:
            self._ready.popleft()
        last = max(step, min(step + self._staleness, self._steps - 1))
        for later in range(step + len(self._ready), last + 1):
            self._ready.append(self._write(later, step))
        return self._ready.popleft()

    def pending(self) -> tuple[WrittenBatch, ...]:
        """Return the batches that are written but not yet taken, in the order of steps."""
        return tuple(self._ready)

    def restore(self, batches: Iterable[WrittenBatch]) -> None:
        """Replace the queue by the pending batches of an interrupted run, in the order of steps."""
        self._ready = deque(batches)


def score_rows(
    trainer: Any, rows: dict[str, Any], *, pad: int, micro_batch: int
) -> list[list[float]]:
    """Return the log-probabilities, in nats, of each completion's tokens as the loss computes them.

    `pad` is the id of the padding token; `micro_batch` rows are computed at once.
    """
    found: list[list[float]] = []
    prompts, written = rows["prompt_ids"], rows["completion_ids"]
    with torch.no_grad(), trainer.compute_loss_context_manager():
        for at in range(0, len(prompts), micro_batch):
            some = slice(at, at + micro_batch)
            ids, mask, longest = pad_rows(prompts[some], written[some], pad)
            device = trainer.accelerator.device
            logps = trainer._get_per_token_logps_and_entropies(  # noqa: SLF001
                trainer.model, ids.to(device), mask.to(device), longest, batch_size=micro_batch
            )[0]
            lengths = map(len, written[some])
            found += [r[:n] for r, n in zip(logps.float().tolist(), lengths, strict=True)]
    return found


def pad_logprobs(logprobs: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities as a tensor (B, T), the shape of `like`; padding is 0."""
    found = torch.zeros(like.shape, dtype=torch.float32)
    for at, row in enumerate(logprobs):
        found[at, : len(row)] = torch.tensor(row)
    return found.to(like.device)


class KeepPendingBatches(TrainerCallback):
    """Writes this process's pending batches into each checkpoint's folder, by `write_pending`."""

    def __init__(self, pending: Callable[[int], Sequence[WrittenBatch]], rank: int) -> None:
        """Create the callback; `pending` returns the pending batches after a number of steps."""
        self._pending = pending
        self._rank = rank

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write this process's pending batches into the new checkpoint's folder."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        write_pending(pending_file(folder, self._rank), self._pending(int(state.global_step)))


def pending_file(checkpoint: Path, rank: int) -> Path:
    """Return the file in which a process keeps its pending batches."""
    return checkpoint / f"in_flight-{rank}.json"


def write_pending(file: Path, batches: Sequence[WrittenBatch]) -> None:
    """Write the batches; write nothing if one of them contains a second round.

    Without the file a resumed training samples the batches again.

    Raises:
        StoreError: the file cannot be written.
    """
    if any(root is not None for batch in batches for root in batch.rows["root"]):
        return
    part = file.with_suffix(".part")
    with report_unwritable(file):
        part.write_text(json.dumps([asdict(batch) for batch in batches]), encoding="utf-8")
        part.replace(file)


def read_pending(file: Path, step: int, staleness: int) -> list[WrittenBatch]:
    """Return the batches pending at that step.

    The list is empty if the file cannot be read, does not begin with that step, skips a step, or
    has a batch that is older than `staleness` allows.
    """
    try:
        lines = json.loads(file.read_text("utf-8"))
        batches = [WrittenBatch(**line) for line in lines]
    except (OSError, ValueError, TypeError):
        return []
    steps = list(range(step, step + len(batches)))
    fresh = all(batch.version >= batch.step - staleness for batch in batches)
    return batches if fresh and [batch.step for batch in batches] == steps else []
