"""A conductor whose drafts are heard while it writes them; it decides as it would unheard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

from batuta.core import (
    Brief,
    Conductor,
    Decision,
    Delta,
    Failure,
    Listener,
    Request,
    Worker,
)
from batuta.core.conductor import SILENT

Hear = Callable[[str], Awaitable[None]]


@final
class Overheard:
    """The conductor `inner`, with somebody who listens."""

    def __init__(self, inner: Conductor, hear: Hear) -> None:
        self._inner = inner
        self._hear = hear

    @property
    def name(self) -> str:
        """The conductor's own."""
        return self._inner.name

    async def plan(self, brief: Brief, listener: Listener = SILENT) -> Decision:
        """The conductor's decision."""
        return await self._inner.plan(brief, _Ear(listener, self._hear))


@final
class _Ear:
    """Passes on what the engine must know, and tells the rest."""

    streaming = True

    def __init__(self, listener: Listener, hear: Hear) -> None:
        self._listener = listener
        self._hear = hear

    async def admit(self, request: Request, worker: Worker) -> Request:
        """The request as it may be made.

        Raises:
            LimitReached: it may cost more than is left.
        """
        return await self._listener.admit(request, worker)

    async def spoke(self, delta: Delta) -> None:
        """A fragment of the draft."""
        await self._listener.spoke(delta)
        if text := delta.text or delta.reasoning:
            await self._hear(text)

    async def failed(self, failure: Failure) -> None:
        """An attempt failed; the next one begins a new draft.

        Raises:
            LimitReached: no further attempt may be paid for.
        """
        await self._listener.failed(failure)
        await self._hear("\n")
