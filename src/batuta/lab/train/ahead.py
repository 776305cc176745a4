"""Batches that are written ahead of their step: the policy writes on while workers still answer.

Step t learns from a batch that the weights of step t - `staleness` wrote, or newer ones. Batches
are learned from in the order in which they were written: that makes a training repeatable however
long workers take, and it waits for a slow answer only once it is `staleness` steps late. What the
old weights thought of a completion is kept, so that the loss has the ratio of new to old (PPO).
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

from batuta.errors import StoreError


class WrittenFor(Protocol):
    """What is known of a batch that was written for a later step."""

    @property
    def step(self) -> int:
        """The step that learns from it."""
        ...


BatchT = TypeVar("BatchT", bound=WrittenFor)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBatch:
    """Completions, and which weights wrote them."""

    step: int
    """The step that learns from them."""
    version: int
    """Steps that the weights had learned which wrote them."""
    rows: dict[str, Any]
    """In TRL's form, a list for each column."""
    logprobs: list[list[float]] | None = None
    """Of each token by those weights, in nats; None: TRL corrects by what the engine says."""


class AheadQueue(Generic[BatchT]):
    """Decides when each batch is written.

    Law: the batch of step t is written when t - staleness <= version <= t, each batch once and in
    order, whatever was restored at the beginning.
    """

    def __init__(self, staleness: int, steps: int, write: Callable[[int, int], BatchT]) -> None:
        """Writes nothing yet.

        Args:
            staleness: steps between writing and learning, at most.
            steps: of the training; nothing is written for later ones.
            write: writes the batch of a step (first) with the weights after so many steps (second).
        """
        self._staleness = staleness
        self._steps = steps
        self._write = write
        self._ready: deque[BatchT] = deque()

    def take(self, step: int) -> BatchT:
        """The batch of that step, after everything that may be written now has been."""
        while self._ready and self._ready[0].step < step:
            self._ready.popleft()
        upto = max(step, min(step + self._staleness, self._steps - 1))
        for later in range(step + len(self._ready), upto + 1):
            self._ready.append(self._write(later, step))
        return self._ready.popleft()

    def pending(self) -> tuple[BatchT, ...]:
        """What is written and not learned from yet, in order."""
        return tuple(self._ready)

    def restore(self, batches: Iterable[BatchT]) -> None:
        """Go on with what a killed training had written; in order, from the next step on."""
        self._ready = deque(batches)


def score_rows(
    trainer: Any, rows: dict[str, Any], *, pad: int, micro_batch: int
) -> list[list[float]]:
    """What the present weights think of each completion's tokens, as the loss will compute it.

    Args:
        trainer: TRL's, whose policy it is.
        rows: `prompt_ids` and `completion_ids`.
        pad: token that fills up.
        micro_batch: rows of one forward pass.

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
    """Ids and mask (B, P + T), prompts to the left and completions to the right; and T."""
    before, after = max(map(len, prompts)), max(map(len, written))
    ids = torch.full((len(prompts), before + after), pad)
    mask = torch.zeros_like(ids)
    for at, (prompt, row) in enumerate(zip(prompts, written, strict=True)):
        where = slice(before - len(prompt), before + len(row))
        ids[at, where] = torch.tensor([*prompt, *row])
        mask[at, where] = 1
    return ids, mask, after


def pad_logprobs(logprobs: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
    """The same as a tensor (B, T) beside completion ids (B, T), 0 where there is no token."""
    found = torch.zeros(like.shape, dtype=torch.float32)
    for at, row in enumerate(logprobs):
        found[at, : len(row)] = torch.tensor(row)
    return found.to(like.device)


class KeepPendingBatches(TrainerCallback):
    """Writes what is in flight beside each checkpoint, each process its own."""

    def __init__(self, pending: Callable[[int], Sequence[WrittenBatch]], rank: int) -> None:
        """`pending` gives what is not learned from yet after so many steps."""
        self._pending = pending
        self._rank = rank

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint is whole already: one without this file begins its batches anew."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        write_pending(pending_file(folder, self._rank), self._pending(int(state.global_step)))


def pending_file(checkpoint: Path, rank: int) -> Path:
    """Where a process keeps what is in flight."""
    return checkpoint / f"in_flight-{rank}.json"


def write_pending(file: Path, batches: Sequence[WrittenBatch]) -> None:
    """Write the batches; none where a second round is among them, whose first is not kept.

    Raises:
        StoreError: the file cannot be written.
    """
    if any(root is not None for batch in batches for root in batch.rows["root"]):
        return
    part = file.with_suffix(".part")
    try:
        part.write_text(json.dumps([asdict(batch) for batch in batches]), encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror}") from None


def read_pending(file: Path, step: int, staleness: int) -> list[WrittenBatch]:
    """What was in flight at that step and may still be learned from; none if there is no file."""
    try:
        lines = json.loads(file.read_text("utf-8"))
        batches = [WrittenBatch(**line) for line in lines]
    except (OSError, ValueError, TypeError):
        return []
    wanted = range(step, step + len(batches))
    fresh = all(batch.version >= batch.step - staleness for batch in batches)
    return batches if fresh and [batch.step for batch in batches] == list(wanted) else []
