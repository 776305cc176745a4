"""The runs that go on and can be stopped on the page.

Those that the page has asked for continue unless a user stops them, watched or not; those that a
client of the API waits for are watched by that client.
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
    Question,
    Reply,
    RoundPlanned,
    Run,
    StepDelta,
    StepFinished,
    StepRetried,
    Text,
    ToolCall,
    ToolResult,
)
from batuta.gateway.errors import APIError
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.deliver import DisconnectReason, RequestScope, RequestScopes
from batuta.gateway.serving.tenant_memory import TenantMemory
from batuta.gateway.ui.session import WebSession

_SECONDS_TO_END = 5.0
"""Seconds that a reader waits at most for a stopped run to be stored."""
_ENDED_CHARACTERS = 8_000_000
"""The most characters in the questions of ended runs whose events are kept, including pictures and
files; other runs are shown from the store."""
_LEAST_CHARACTERS = 500_000
"""The characters that a run counts as at least, for its events."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """The conductor wrote a piece of its draft."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The run ended and is stored."""

    run: Run


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no answer."""

    error: APIError


@dataclass(frozen=True, slots=True)
class Stopped:
    """A user stopped the run; its spending is stored."""


PageEvent = Event | Drafted | Ended | Failed | Stopped


@final
class PageRun:
    """A run and all its events so far, for readers who come and go.

    It is the renderer of its own execution: it keeps the run's events, and each reader's page is
    made from them.
    """

    has_screen = True
    """Whether it can be watched at an address of its own."""

    def __init__(self, prepared: PreparedCall, *, tenant: str | None) -> None:
        self.id = str(prepared.run_id)
        self.tenant = tenant
        """The tenant that owns the run; never the admin's None, as the admin starts no runs."""
        self.session = prepared.session
        """The id of the conversation; None: of none."""
        self.model = prepared.served_model.name
        self.question = prepared.call.question.title
        self.size = _count_characters(prepared.call.question)
        self.started = time()
        self.is_stopped = False
        """True if a user has asked it to stop."""
        self._events: list[PageEvent | None] = []
        """The events; None: one that a later event has made superfluous."""
        self._fragments: dict[tuple[int, int], list[int]] = {}
        """The places of the fragments of each unfinished step among the events."""
        self._news = anyio.Event()
        self._stop = anyio.Event()
        self._ended = anyio.Event()

    @property
    def has_ended(self) -> bool:
        """True if no more events will come."""
        return self._ended.is_set()

    def elapsed(self) -> float:
        """Return the seconds since the run began."""
        return time() - self.started

    def stop(self) -> None:
        """End the run and its paid calls; nothing, if it has ended."""
        self.is_stopped = True
        self._stop.set()

    async def wait_for_stop(self) -> Message:
        """Wait until somebody stops the run, and return what a server says of a gone reader."""
        await self._stop.wait()
        return {"type": "http.disconnect"}

    async def wait_for_end(self) -> None:
        """Wait until the run is stored, for some seconds at most."""
        with anyio.move_on_after(_SECONDS_TO_END):
            await self._ended.wait()

    def close(self) -> None:
        """Let the readers go: nothing more will be told."""
        if self.is_stopped and not self.has_ended:
            self._add(Stopped())
        self._ended.set()
        self._news.set()

    async def follow(self) -> AsyncIterator[PageEvent]:
        """Yield what the run has told, from its beginning, and what it tells until it ends."""
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
        """Keep what the conductor has just written of its draft."""
        self._add(Drafted(text))

    async def open(self, headers: dict[str, str]) -> None:
        """Tell nothing: readers know the run's address before it begins."""

    async def on_event(self, event: Event) -> None:
        """Keep an event of the run, and forget the fragments that it completes."""
        if isinstance(event, StepFinished):
            for number in self._fragments.pop((event.round, event.step.index), ()):
                self._events[number] = None
        number = self._add(event)
        if isinstance(event, StepDelta | StepRetried):
            self._fragments.setdefault((event.round, event.index), []).append(number)

    def matches(self, reply: Reply) -> bool:
        """Accept any answer: it replaces whatever was shown."""
        return True

    async def finish(self, run: Run, reply: Reply) -> None:
        """Keep the run's end; it is stored already."""
        self._add(Ended(run))
        self._ended.set()

    async def fail(self, error: APIError) -> None:
        """Keep why there is no answer."""
        self._add(Failed(error))
        self._ended.set()

    def _add(self, event: PageEvent) -> int:
        self._events.append(event)
        self._news.set()
        return len(self._events) - 1


@final
class ClientRun:
    """A run that a client of the API waits for: it can be stopped here, and is watched there."""

    has_screen = False

    def __init__(self, request: RequestScope, prepared: PreparedCall) -> None:
        self._request = request
        self.id = str(prepared.run_id)
        self.tenant = prepared.caller.tenant
        """The tenant that owns the run."""
        self.session = prepared.session
        """The id of its session; None: of none."""
        self.model = prepared.served_model.name
        self.question = prepared.call.question.title if prepared.call.store else ""
        """The question that it answers; empty where its content is not to be kept."""
        self.started = request.started

    def elapsed(self) -> float:
        """Return the seconds since the run began."""
        return time() - self.started

    def stop(self) -> None:
        """End the run and its paid calls; its client is told so."""
        self._request.end(DisconnectReason.STOPPED)

    async def wait_for_end(self) -> None:
        """Wait until the run is stored, for some seconds at most."""
        with anyio.move_on_after(_SECONDS_TO_END):
            await self._request.wait_for_end()


@final
class PageRuns:
    """The runs of one process that the page has asked for: the unfinished and the latest ones."""

    def __init__(self, requests: RequestScopes) -> None:
        """Begin without a run.

        Args:
            requests: the requests that the server is answering.
        """
        self._requests = requests
        self._going_on: OrderedDict[str, PageRun] = OrderedDict()
        self._ended = TenantMemory[str, PageRun](_ENDED_CHARACTERS, inf, monotonic)

    @contextmanager
    def track(self, prepared: PreparedCall, session: WebSession) -> Generator[PageRun]:
        """Keep the run while the block lasts, at whose end the run is stored."""
        run = PageRun(prepared, tenant=session.tenant)
        self._going_on[run.id] = run
        try:
            yield run
        finally:
            run.close()
            del self._going_on[run.id]
            size = max(run.size, _LEAST_CHARACTERS)
            self._ended.put(run.tenant or "", run.id, run, size)

    def find(self, run_id: str, session: WebSession) -> PageRun | None:
        """Return the run of that id, if the visitor may see it and its events are still here."""
        run = self._find(run_id)
        return run if run is not None and session.tenant in {None, run.tenant} else None

    def going_on(self, session: WebSession) -> list[PageRun]:
        """Return the visitor's runs that have not ended, newest first."""
        known = reversed(self._going_on.values())
        return [run for run in known if session.tenant in {None, run.tenant}]

    def unfinished(self, session: WebSession) -> list[PageRun | ClientRun]:
        """Return the visitor's runs that have not ended, also those of clients, newest first."""
        called = [
            ClientRun(request, request.prepared)
            for request in self._requests
            if request.prepared is not None and self._find(str(request.prepared.run_id)) is None
        ]
        seen = [run for run in called if session.tenant in {None, run.tenant}]
        return sorted([*self.going_on(session), *seen], key=lambda run: -run.started)

    def _find(self, run_id: str) -> PageRun | None:
        going_on = self._going_on.get(run_id)
        if going_on is not None:
            return going_on
        return next((ended for ended in self._ended.values() if ended.id == run_id), None)

    async def find_going_on(self, run_id: str, session: WebSession) -> PageRun | None:
        """Return the visitor's run of that id if it goes on; wait for one that is being stopped."""
        run = self.find(run_id, session)
        if run is not None and run.is_stopped:
            await run.wait_for_end()
        return None if run is None or run.has_ended else run

    async def check_ended(self, run_id: str, session: WebSession) -> None:
        """Raise APIError if the visitor's run of that id goes on.

        Raises:
            APIError: it goes on.
        """
        if await self.find_going_on(run_id, session) is not None:
            message = "This run goes on: open it to watch or to stop it, and repeat this then."
            raise APIError(409, "conflict", message)


def _count_characters(question: Question) -> int:
    return sum(len(_content_of(part)) for message in question.messages for part in message.parts)


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


async def retell_run(run: Run) -> AsyncIterator[PageEvent]:
    """Yield what a stored run would have told, as far as it is recorded."""
    yield run.header
    for number, round_ in enumerate(run.rounds):
        yield RoundPlanned(number, replace(round_, steps=()))
        for step in round_.steps:
            yield StepFinished(number, step)
    yield Ended(run)
