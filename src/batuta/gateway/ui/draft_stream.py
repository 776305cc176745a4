"""A conductor whose drafts are heard while it writes them; it decides as it would unheard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

from batuta.core import (
    CallListener,
    Conductor,
    Decision,
    Delta,
    Failure,
    PlanningContext,
    Request,
    Worker,
)
from batuta.core.conductor import NULL_LISTENER

ShowDraft = Callable[[str], Awaitable[None]]


@final
class StreamedConductor:
    """The conductor `inner`, with somebody who listens."""

    def __init__(self, inner: Conductor, show_draft: ShowDraft) -> None:
        self._inner = inner
        self._show_draft = show_draft

    @property
    def name(self) -> str:
        """The conductor's own."""
        return self._inner.name

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The conductor's decision."""
        return await self._inner.plan(context, _DraftListener(listener, self._show_draft))


@final
class _DraftListener:
    """Passes on what the engine must know, and tells the rest."""

    streaming = True

    def __init__(self, listener: CallListener, show_draft: ShowDraft) -> None:
        self._listener = listener
        self._show_draft = show_draft

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """The request as it may be made.

        Raises:
            LimitReachedError: it may cost more than is left.
        """
        return await self._listener.before_call(request, worker)

    async def on_delta(self, delta: Delta) -> None:
        """A fragment of the draft."""
        await self._listener.on_delta(delta)
        if text := delta.text or delta.reasoning:
            await self._show_draft(text)

    async def on_failure(self, failure: Failure) -> None:
        """An attempt failed; the next one begins a new draft.

        Raises:
            LimitReachedError: no further attempt may be paid for.
        """
        await self._listener.on_failure(failure)
        await self._show_draft("\n")
