"""Sampling ahead: the policy writes later steps' batches while workers still answer earlier ones.

Step t learns from a batch written by the weights of step t - `staleness` or newer ones. Batches are
learned from in the order in which they were written, so a training is repeatable however long
workers take; it waits for a slow answer only when that is `staleness` steps late. The
log-probabilities of the weights that wrote a batch are kept, so that the loss has the ratio of new
to old (PPO).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from transformers import TrainerCallback

from batuta.errors import report_unwritable


class WrittenFor(Protocol):
    """The part of a batch that the queue reads."""

    @property
    def step(self) -> int:
        """The step that learns from it."""
        ...


BatchT = TypeVar("BatchT", bound=WrittenFor)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBatch:
    """Completions of one step, and which weights wrote them."""

    step: int
    """The step that learns from them."""
    version: int
    """Optimiser steps that the weights which wrote them had taken."""
    rows: dict[str, Any]
    """In TRL's form, a list for each column."""
    logprobs: list[list[float]] | None = None
    """Log-probabilities of the tokens, in nats; None if TRL uses the inference engine's."""


class AheadQueue(Generic[BatchT]):
    """Decides when each batch is written.

    Invariant: the batch of step t is written by weights of a version with
    t - staleness <= version <= t. Each batch is written once and in order, also after `restore`.
    """

    def __init__(self, staleness: int, steps: int, write: Callable[[int, int], BatchT]) -> None:
        """Create an empty queue.

        A batch is written at most `staleness` steps before it is learned from, and never for a step
        after the last. `write` is called with the batch's step and the number of optimiser steps
        taken.
        """
        self._staleness = staleness
        self._steps = steps
        self._write = write
        self._ready: deque[BatchT] = deque()

    def take(self, step: int) -> BatchT:
        """Write all batches that may be written now, and return the one of that step."""
        while self._ready and self._ready[0].step < step:
            self._ready.popleft()
        upto = max(step, min(step + self._staleness, self._steps - 1))
        for later in range(step + len(self._ready), upto + 1):
            self._ready.append(self._write(later, step))
        return self._ready.popleft()

    def pending(self) -> tuple[BatchT, ...]:
        """Return the batches that are written but not yet learned from, in order."""
        return tuple(self._ready)

    def restore(self, batches: Iterable[BatchT]) -> None:
        """Continue with the pending batches of an interrupted run, in order from the next step."""
        self._ready = deque(batches)


def score_rows(
    trainer: Any, rows: dict[str, Any], *, pad: int, micro_batch: int
) -> list[list[float]]:
    """Compute the log-probabilities of each completion's tokens as the loss will compute them.

    Returns:
        Log-probabilities in nats, a list for each completion.
    """
    found: list[list[float]] = []
    prompts, written = rows["prompt_ids"], rows["completion_ids"]
    with torch.no_grad(), trainer.compute_loss_context_manager():
        for at in range(0, len(prompts), micro_batch):
            some = slice(at, at + micro_batch)
            ids, mask, most = _pad_rows(prompts[some], written[some], pad)
            device = trainer.accelerator.device
            logps = trainer._get_per_token_logps_and_entropies(  # noqa: SLF001
                trainer.model, ids.to(device), mask.to(device), most, batch_size=micro_batch
            )[0]
            lengths = map(len, written[some])
            found += [r[:n] for r, n in zip(logps.float().tolist(), lengths, strict=True)]
    return found


def _pad_rows(
    prompts: Sequence[Sequence[int]], written: Sequence[Sequence[int]], pad: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return ids and mask (B, P + T), prompts padded on the left, and T."""
    before, after = max(map(len, prompts)), max(map(len, written))
    ids = torch.full((len(prompts), before + after), pad)
    mask = torch.zeros_like(ids)
    for at, (prompt, row) in enumerate(zip(prompts, written, strict=True)):
        where = slice(before - len(prompt), before + len(row))
        ids[at, where] = torch.tensor([*prompt, *row])
        mask[at, where] = 1
    return ids, mask, after


def pad_logprobs(logprobs: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities as a tensor (B, T), 0 where a row of `like` has no token."""
    found = torch.zeros(like.shape, dtype=torch.float32)
    for at, row in enumerate(logprobs):
        found[at, : len(row)] = torch.tensor(row)
    return found.to(like.device)


class KeepPendingBatches(TrainerCallback):
    """Writes the pending batches next to each checkpoint, one file per process."""

    def __init__(self, pending: Callable[[int], Sequence[WrittenBatch]], rank: int) -> None:
        """Create the callback; `pending` returns the pending batches after a number of steps."""
        self._pending = pending
        self._rank = rank

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the file; resuming from a checkpoint without it samples the batches again."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        write_pending(pending_file(folder, self._rank), self._pending(int(state.global_step)))


def pending_file(checkpoint: Path, rank: int) -> Path:
    """Return the file in which a process keeps its pending batches."""
    return checkpoint / f"in_flight-{rank}.json"


def write_pending(file: Path, batches: Sequence[WrittenBatch]) -> None:
    """Write the batches, or nothing if one of them contains a second round."""
    if any(root is not None for batch in batches for root in batch.rows["root"]):
        return
    part = file.with_suffix(".part")
    with report_unwritable(file):
        part.write_text(json.dumps([asdict(batch) for batch in batches]), encoding="utf-8")
        part.replace(file)


def read_pending(file: Path, step: int, staleness: int) -> list[WrittenBatch]:
    """Return the batches pending at that step; none if the file is unusable or out of order."""
    try:
        lines = json.loads(file.read_text("utf-8"))
        batches = [WrittenBatch(**line) for line in lines]
    except (OSError, ValueError, TypeError):
        return []
    wanted = range(step, step + len(batches))
    fresh = all(batch.version >= batch.step - staleness for batch in batches)
    return batches if fresh and [batch.step for batch in batches] == list(wanted) else []
