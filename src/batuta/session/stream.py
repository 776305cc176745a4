"""Events of a run, streamed while it is executed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import final

import anyio
from anyio.abc import TaskGroup

from batuta.core import Event, EventHandler, Run

_EVENTS = 64
"""Number of events buffered for a slow consumer; then the run waits."""


@final
class RunStream:
    """The events of a run, which an `async for` can read once."""

    def __init__(
        self,
        execute: Callable[[EventHandler], Awaitable[Run]],
        tasks: TaskGroup,
        on_event: EventHandler | None = None,
    ) -> None:
        self._execute = execute
        self._tasks = tasks
        self._on_event = on_event
        self._send, self._receive = anyio.create_memory_object_stream[Event](_EVENTS)
        self._started = False
        self._error: Exception | None = None
        self.run: Run | None = None
        """The run, once all events have been read; None before, if the loop was left early, or if
        the run raised an error."""

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Execute the run and yield its events.

        Raises:
            Exception: any error of `Session.ask`, such as ValueError for an invalid question.
            RuntimeError: the events were read before.
        """
        if self._started:
            raise RuntimeError("a stream can be read only once: call session.stream(...) again")
        self._started, scope = True, anyio.CancelScope()
        self._tasks.start_soon(self._run_to_end, scope)
        try:
            async for event in self._receive:
                yield event
        finally:
            scope.cancel()
            self._receive.close()
        if self._error is not None:
            raise self._error

    async def _run_to_end(self, scope: anyio.CancelScope) -> None:
        """Execute the run; keep an error for the consumer, so that the session stays open."""
        with scope, self._send:
            try:
                self.run = await self._execute(self._forward)
            except Exception as error:  # noqa: BLE001 - raised again in `__aiter__`
                self._error = error

    async def _forward(self, event: Event) -> None:
        try:
            await self._send.send(event)
        except anyio.BrokenResourceError:
            return  # the consumer has left; the run is being cancelled
        if self._on_event is not None:
            await self._on_event(event)
