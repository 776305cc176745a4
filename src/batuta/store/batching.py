"""Things done in batches: whoever comes while one is under way shares the next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, final

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint

_T = TypeVar("_T")
_R = TypeVar("_R")

LINGER_SECONDS = 0.002
"""Seconds that a batch waits for more when many come."""
_BUSY_SECONDS = 0.01
"""Seconds since the last batch within which the next one counts as one of many."""


@dataclass(slots=True)
class _Batch(Generic[_T, _R]):
    """What is done at once."""

    items: list[_T] = field(default_factory=list[_T])
    results: dict[int, _R] = field(default_factory=dict[int, _R])
    """By the item's identity."""


@final
class Batcher(Generic[_T, _R]):
    """Does items in batches, one batch after another."""

    def __init__(
        self,
        work: Callable[[list[_T]], Awaitable[Sequence[_R]]],
        undo: Callable[[_R], Awaitable[None]] | None = None,
    ) -> None:
        """Does nothing yet.

        Args:
            work: does a batch, and gives the result of each item; never raises.
            undo: is told a result that nobody waits for any more.
        """
        self._work = work
        self._undo = undo
        self._turn = anyio.Lock(fast_acquire=True)
        self._next: _Batch[_T, _R] = _Batch()
        self._ended = float("-inf")

    async def submit(self, item: _T) -> _R:
        """The item's result, from the batch that it was done in."""
        batch = self._next
        batch.items.append(item)
        try:
            async with self._turn:
                await self._run_batch(batch)
        except anyio.get_cancelled_exc_class():
            await self._leave(batch, item)
            raise
        return batch.results[id(item)]

    async def _run_batch(self, batch: _Batch[_T, _R]) -> None:
        """Does the batch, if nobody has."""
        if self._next is not batch:
            return
        with anyio.CancelScope(shield=True):
            # Whoever is about to ask shares this batch. A thread woken for each costs more than
            # the database: under load it is worth a moment's wait.
            if anyio.current_time() - self._ended < _BUSY_SECONDS:
                await anyio.sleep(LINGER_SECONDS)
            else:
                await cancel_shielded_checkpoint()
            self._next = _Batch()
            for item, result in zip(batch.items, await self._work(batch.items), strict=True):
                batch.results[id(item)] = result
            self._ended = anyio.current_time()

    async def _leave(self, batch: _Batch[_T, _R], item: _T) -> None:
        """Takes the item out of its batch; if that has begun, undoes what comes of it."""
        if self._next is batch:
            batch.items = [other for other in batch.items if other is not item]
            return
        if self._undo is None:
            return
        with anyio.CancelScope(shield=True):
            async with self._turn:
                pass
            await self._undo(batch.results[id(item)])
