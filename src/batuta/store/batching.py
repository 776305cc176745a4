"""Things done in batches: whoever comes while one is under way shares the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, TypeVar, final

import anyio

_T = TypeVar("_T")
_R = TypeVar("_R")

LINGER_SECONDS = 0.002
"""Seconds that a batch waits for more when many come."""
_BUSY_SECONDS = 0.01
"""Seconds since the last batch within which the next one counts as one of many."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Batch(Generic[_T, _R]):
    """Items that are written at once."""

    items: list[_T] = field(default_factory=list[_T])
    results: dict[int, _R] = field(default_factory=dict[int, _R])
    """Results by the item's identity; empty until all are there."""
    is_led: bool = False
    """Whether one of those who wait does it, or waits for its turn to."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is done, or when whoever was to do it has gone."""


@final
class Batcher(Generic[_T, _R]):
    """Does items in batches, one batch after another.

    Of those who wait for a batch one does it; the others are woken once, when it is done.
    """

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
            while not batch.results:
                if batch.is_led:
                    await batch.changed.wait()
                else:
                    await self._lead(batch)
        except anyio.get_cancelled_exc_class():
            await self._leave(batch, item)
            raise
        return batch.results[id(item)]

    async def _lead(self, batch: _Batch[_T, _R]) -> None:
        """Does the batch in its turn; whoever goes before that leaves it to the others."""
        batch.is_led = True
        try:
            async with self._turn:
                await self._run_batch(batch)
        finally:
            batch.is_led = bool(batch.results)
            batch.changed.set()
            batch.changed = asyncio.Event()

    async def _run_batch(self, batch: _Batch[_T, _R]) -> None:
        """Does the batch, which nobody has begun."""
        if self._next is not batch:
            raise RuntimeError("a batch was given up while it was done")
        with anyio.CancelScope(shield=True):
            # Whoever is about to ask shares this batch. A thread woken for each costs more than
            # the database: under load it is worth a moment's wait.
            busy = monotonic() - self._ended < _BUSY_SECONDS
            await asyncio.sleep(LINGER_SECONDS if busy else 0)
            self._next = _Batch()
            results = await self._work(batch.items)
            batch.results = {
                id(item): result for item, result in zip(batch.items, results, strict=True)
            }
            self._ended = monotonic()

    async def _leave(self, batch: _Batch[_T, _R], item: _T) -> None:
        """Takes the item out of its batch; if that has begun, undoes what comes of it."""
        if self._next is batch:
            batch.items = [other for other in batch.items if other is not item]
            return
        if self._undo is None:
            return
        with anyio.CancelScope(shield=True):
            if not batch.results:
                await batch.changed.wait()
            if id(item) in batch.results:
                await self._undo(batch.results[id(item)])
