"""The running runs that can be watched or stopped on the page.

A run started on the page continues until it ends or a user stops it, whether it is watched or not.
A run started by an API client is watched by that client; the page can stop it but not show it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from time import monotonic, time
from typing import final

import anyio
from starlette.types import Message

from batuta.core import (
    Event,
    Image,
    Part,
    Reply,
    RoundPlanned,
    Run,
    RunHeader,
    StepDelta,
    StepFinished,
    StepRetried,
    Text,
    ToolCall,
    ToolResult,
)
from batuta.gateway.errors import APIError
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.deliver import CancelReason, RequestScope, RequestScopes
from batuta.gateway.serving.tenant_memory import TenantMemory
from batuta.gateway.ui.session import WebSession

_SECONDS_TO_END = 5.0
"""Maximum number of seconds that a request waits until a stopped run has been stored."""
_ENDED_CHARACTERS = 8_000_000
"""Maximum total size of the ended runs whose events are kept in memory, in characters of their
questions including images and files; other runs are loaded from the store."""
_LEAST_CHARACTERS = 500_000
"""The size that is counted for a run with a shorter question, because its events need memory too.
"""


@dataclass(frozen=True, slots=True)
class Drafted:
    """The conductor wrote a fragment of its draft."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The run ended."""

    run: Run


@dataclass(frozen=True, slots=True)
class Failed:
    """The run failed without an answer."""

    error: APIError


@dataclass(frozen=True, slots=True)
class Stopped:
    """A user stopped the run."""


PageEvent = Event | Drafted | Ended | Failed | Stopped


@final
class PageRun:
    """A run and all its events so far, for pages that may connect at any time.

    It is the stream renderer of the run's execution, but only stores the events; each connected
    page renders them for itself.
    """

    has_screen = True
    """Whether the run can be watched on its own screen."""

    def __init__(self, prepared: PreparedCall) -> None:
        self.id = str(prepared.run_id)
        self.tenant = prepared.caller.tenant
        """The tenant that owns the run."""
        self.session = prepared.session
        """The id of the conversation; None if the run belongs to none."""
        self.model = prepared.served_model.name
        self.question = prepared.call.question.title
        """The text of the question, as lists of runs show it."""
        parts = (part for message in prepared.call.question.messages for part in message.parts)
        self.size = sum(len(_content_of(part)) for part in parts)
        """Number of characters of the question, including images and files."""
        self.started = time()
        """Seconds since the epoch."""
        self._is_kept = prepared.call.store
        self.is_stopped = False
        """True if a user has requested a stop."""
        self._events: list[PageEvent | None] = []
        """The events; an event that a later event replaced is None."""
        self._fragments: dict[tuple[int, int], list[int]] = {}
        """Indexes into `_events` of each unfinished step's texts and retries, by round and step."""
        self._news = anyio.Event()
        self._stop = anyio.Event()
        self._ended = anyio.Event()

    @property
    def has_ended(self) -> bool:
        """True if no more events will come."""
        return self._ended.is_set()

    @property
    def is_recorded(self) -> bool:
        """True if the run has ended, and a server with a store has it until it is deleted."""
        has_begun = any(isinstance(event, RunHeader) for event in self._events)
        return self.has_ended and self._is_kept and has_begun

    def elapsed(self) -> float:
        """Return the seconds since the run began."""
        return time() - self.started

    def stop(self) -> None:
        """Stop the run and its paid calls; this has no effect on a run that has ended."""
        self.is_stopped = True
        self._stop.set()

    async def wait_for_stop(self) -> Message:
        """Wait until a user stops the run; return the ASGI message of a disconnected client."""
        await self._stop.wait()
        return {"type": "http.disconnect"}

    async def wait_for_end(self) -> None:
        """Wait until the run is stored, for a few seconds at most."""
        with anyio.move_on_after(_SECONDS_TO_END):
            await self._ended.wait()

    def close(self) -> None:
        """Mark the run as ended, so that followers stop waiting for events."""
        if self.is_stopped and not self.has_ended:
            self._add(Stopped())
        self._ended.set()
        self._news.set()

    async def follow(self) -> AsyncIterator[PageEvent]:
        """Yield the run's past events from the beginning, then its new events until it ends."""
        number = 0
        while True:
            while number < len(self._events):
                event = self._events[number]
                number += 1
                if event is not None:
                    yield event
            if self.has_ended:
                return
            self._news = self._news if not self._news.is_set() else anyio.Event()
            await self._news.wait()

    async def show_draft(self, text: str) -> None:
        """Store a fragment of the conductor's draft."""
        self._add(Drafted(text))

    async def open(self, headers: dict[str, str]) -> None:
        """Do nothing: pages know the run's URL before it begins."""

    async def on_event(self, event: Event) -> None:
        """Store an event of the run, and drop the fragments that it replaces."""
        if isinstance(event, StepFinished):
            for number in self._fragments.pop((event.round, event.step.index), ()):
                self._events[number] = None
        number = self._add(event)
        if isinstance(event, StepDelta | StepRetried):
            self._fragments.setdefault((event.round, event.index), []).append(number)

    def matches(self, reply: Reply) -> bool:
        """Return True: any answer may replace what was shown."""
        return True

    async def finish(self, run: Run, reply: Reply) -> None:
        """Add the final event of the run."""
        self._add(Ended(run))
        self._ended.set()

    async def fail(self, error: APIError) -> None:
        """Add the error as the final event."""
        self._add(Failed(error))
        self._ended.set()

    def _add(self, event: PageEvent) -> int:
        self._events.append(event)
        self._news.set()
        return len(self._events) - 1


@final
class ClientRun:
    """A run started by an API client: the page can stop it but not watch it."""

    has_screen = False

    def __init__(self, request: RequestScope, prepared: PreparedCall) -> None:
        self._request = request
        self.id = str(prepared.run_id)
        self.tenant = prepared.caller.tenant
        """The tenant that owns the run."""
        self.session = prepared.session
        """The id of the run's session; None if the run belongs to none."""
        self.model = prepared.served_model.name
        self.question = prepared.call.question.title if prepared.call.store else ""
        """The text of the question, as lists of runs show it; empty if it must not be stored."""
        self.started = request.started
        """Seconds since the epoch."""

    def elapsed(self) -> float:
        """Return the seconds since the run began."""
        return time() - self.started

    def stop(self) -> None:
        """Stop the run and its paid calls; the client gets an error."""
        self._request.end(CancelReason.STOPPED)

    async def wait_for_end(self) -> None:
        """Wait until the run is stored, for a few seconds at most."""
        with anyio.move_on_after(_SECONDS_TO_END):
            await self._request.wait_for_end()


@final
class PageRuns:
    """The runs started on the page in this process: the running and the latest ended ones."""

    def __init__(self, requests: RequestScopes) -> None:
        """Begin without runs.

        Args:
            requests: the requests that the server is answering.
        """
        self._requests = requests
        self._running: OrderedDict[str, PageRun] = OrderedDict()
        self._ended = TenantMemory[str, PageRun](_ENDED_CHARACTERS, inf, monotonic)

    @contextmanager
    def track(self, prepared: PreparedCall) -> Generator[PageRun]:
        """Register the run as running during the block, and keep its events afterwards.

        The run must be stored before the block ends.
        """
        run = PageRun(prepared)
        self._running[run.id] = run
        try:
            yield run
        finally:
            run.close()
            del self._running[run.id]
            size = max(run.size, _LEAST_CHARACTERS)
            self._ended.put(run.tenant, run.id, run, size)

    def find(self, run_id: str, session: WebSession) -> PageRun | None:
        """Return the run if the visitor may see it and its events are still in memory."""
        run = self._find(run_id)
        return run if run is not None and session.tenant in {None, run.tenant} else None

    def running(self, session: WebSession) -> list[PageRun]:
        """Return the running runs of the page that the visitor may see, newest first."""
        known = reversed(self._running.values())
        return [run for run in known if session.tenant in {None, run.tenant}]

    def unfinished(self, session: WebSession) -> list[PageRun | ClientRun]:
        """Return the running runs, also of API clients, that the visitor may see, newest first."""
        client_runs = [
            ClientRun(request, request.prepared)
            for request in self._requests
            if request.prepared is not None and self._find(str(request.prepared.run_id)) is None
        ]
        visible = [run for run in client_runs if session.tenant in {None, run.tenant}]
        return sorted([*self.running(session), *visible], key=lambda run: -run.started)

    def _find(self, run_id: str) -> PageRun | None:
        running = self._running.get(run_id)
        if running is not None:
            return running
        return next((ended for ended in self._ended.values() if ended.id == run_id), None)

    async def find_running(self, run_id: str, session: WebSession) -> PageRun | None:
        """Return the run if it was started on the page, still runs and may be seen; else None.

        If the run is being stopped, wait for its end first.
        """
        run = self.find(run_id, session)
        if run is not None and run.is_stopped:
            await run.wait_for_end()
        return None if run is None or run.has_ended else run

    async def check_ended(self, run_id: str, session: WebSession) -> None:
        """Check that `find_running` finds no run of that id.

        Raises:
            APIError: the run is still running.
        """
        if await self.find_running(run_id, session) is not None:
            message = "This run is still running: wait until it ends, or open and stop it."
            raise APIError(409, "conflict", message)


def _content_of(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case Image():
            return part.url
        case ToolCall():
            return part.arguments
        case ToolResult():
            return part.content
        case _:
            return part.data


async def replay_run(run: Run) -> AsyncIterator[PageEvent]:
    """Yield the events of a stored run, as far as they are recorded."""
    yield run.header
    for number, round_ in enumerate(run.rounds):
        yield RoundPlanned(number, replace(round_, steps=()))
        for step in round_.steps:
            yield StepFinished(number, step)
    yield Ended(run)
