"""The checkpoint of a job: clients and a conductor whose finished calls are kept."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import final

import anyio
import orjson
from pydantic import TypeAdapter

from batuta.clients import request_fingerprint
from batuta.clients.scripted_client import split_reply
from batuta.core import (
    CallListener,
    Client,
    Conductor,
    Decision,
    Event,
    EventHandler,
    MalformedPlan,
    PlanningContext,
    Pool,
    Reply,
    Request,
    RunHeader,
    StepStarted,
    WorkerId,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import StoreError
from batuta.jobs.protocol import Job, JobEnding, Json
from batuta.jobs.records import CallKey, JobRecords

logger = logging.getLogger(__name__)

_RETRY_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0, 0.0)
"""Seconds between attempts to keep a call that was paid for, or to read what was kept."""
_CALL_PLACE: ContextVar[str] = ContextVar("batuta_job_place", default="call")
"""The present task's place in its run; the engine runs each step within one task."""


async def _ignore_event(_: Event) -> None:
    """Do nothing."""


@dataclass(slots=True)
class _SavedCalls:
    """Equal calls of one place."""

    left: deque[str]
    """Kept before the crash and not yet given back."""
    count: int
    """Kept in all."""


@final
class Checkpoint:
    """Keeps a job's finished calls in `JobRecords`, so that a crash repeats none of them.

    The runner conducts with what `wrap_conductor`, `wrap_clients` and `wrap_emit` make of its own.
    """

    def __init__(
        self,
        job: Job,
        records: JobRecords,
        stored_events: int,
        notify: Callable[[str], Awaitable[None]],
        *,
        scope: anyio.CancelScope,
    ) -> None:
        self._job = job
        self._records = records
        self._event_count = stored_events
        self._notify = notify
        self._scope = scope
        self._next = 0
        self._order = anyio.Lock()
        self._saved_calls: dict[CallKey, _SavedCalls] = {}
        self._models: dict[WorkerId, str] = {}

    @property
    def job(self) -> Job:
        """The job."""
        return self._job

    @property
    def will_resume(self) -> bool:
        """Return True if the job is taken up again if it is cut off now.

        So it is where the process ends, not where the job was cancelled.
        """
        return not self._scope.cancel_called

    def wrap_conductor(self, conductor: Conductor) -> Conductor:
        """Return the conductor, whose decisions are kept."""
        return CachedConductor(conductor, self)

    def wrap_clients(self, clients: Mapping[WorkerId, Client]) -> Mapping[WorkerId, Client]:
        """Return the clients, whose replies are kept."""
        return {worker: CachedClient(worker, client, self) for worker, client in clients.items()}

    def wrap_emit(self, emit: EventHandler | None = None) -> EventHandler:
        """Return a hearer that notes where the call that comes next belongs."""
        then = emit or _ignore_event

        async def record_event(event: Event) -> None:
            match event:
                case RunHeader():
                    self._learn_models(event.pool)
                case StepStarted():
                    _CALL_PLACE.set(f"call:{event.round}:{event.index}")
                case _:
                    pass
            await then(event)

        return record_event

    async def add_event(self, event: Json) -> None:
        """Keep an event for the job's readers, unless it was kept before a crash.

        A job that is run again repeats its events, from the first. So what is told must follow
        from finished calls alone: no fragment of a reply is told before the reply is complete.

        Raises:
            StoreError: it cannot be kept.
        """
        async with self._order:
            number, self._next = self._next, self._next + 1
            if number >= self._event_count:
                await self._records.add_event(self._job.id, number, event)
                self._event_count = number + 1
        await self._notify(self._job.id)

    def call_key(self, worker: WorkerId, request: Request) -> CallKey:
        """Return the key of the call that this task makes now.

        The cap on its output is no part of it: that follows from the money that was left.
        """
        model, asked = self._models.get(worker, ""), replace(request, max_output=None)
        return CallKey(
            job=self._job.id,
            place=_CALL_PLACE.get(),
            worker=worker,
            model=model,
            request=request_fingerprint(asked),
        )

    async def load_call(self, key: CallKey) -> str | None:
        """Return the call's result from before the crash; each result is given back once.

        Raises:
            StoreError: it cannot be read, for minutes.
        """
        async with self._order:
            if key not in self._saved_calls:
                bodies = await self._find_calls(key)
                self._saved_calls[key] = _SavedCalls(deque(bodies), len(bodies))
        left = self._saved_calls[key].left
        return left.popleft() if left else None

    async def _find_calls(self, key: CallKey) -> list[str]:
        """Read what was kept; while the database fails, again: else the step would have failed."""
        for pause in _RETRY_PAUSES[:-1]:
            try:
                return await self._records.find_calls(key)
            except StoreError as error:
                logger.warning("job %s waits for the database: %s", self._job.id, error)
            await anyio.sleep(pause)
        return await self._records.find_calls(key)

    async def save_call(self, key: CallKey, given: Reply | Decision) -> None:
        """Keep what the call gave: it was paid for, so a cancellation waits.

        While the database fails, it is tried again. What cannot be kept is not lost for that: the
        run goes on, and a crash would repeat it.
        """
        saved_calls = self._saved_calls[key]
        saved_calls.count += 1
        try:
            text = orjson.dumps(given, default=str).decode()
        except orjson.JSONEncodeError as error:
            logger.warning("a finished call of job %s is not kept: %s", self._job.id, error)
            return
        for pause in _RETRY_PAUSES:
            try:
                with anyio.CancelScope(shield=True):
                    await self._records.keep_call(key, saved_calls.count - 1, text)
            except StoreError as error:
                logger.warning("a finished call of job %s is not kept: %s", self._job.id, error)
                await anyio.sleep(pause)
            else:
                return

    def _learn_models(self, pool: Pool) -> None:
        self._models |= {worker.id: worker.model for worker in pool}


JobHandler = Callable[[Job, Checkpoint], Awaitable[JobEnding]]
"""Runs a job. It is cancelled when the job is; what it raises makes the job fail."""


@final
class CachedClient:
    """A client whose replies are kept; failures are not, and are tried anew."""

    def __init__(self, worker: WorkerId, client: Client, checkpoint: Checkpoint) -> None:
        self._worker = worker
        self._client = client
        self._checkpoint = checkpoint

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the kept reply, with the usage and cost of the time it was paid.

        A reply that is not kept is the client's.

        Raises:
            StoreError: what is kept cannot be read.
        """
        key = self._checkpoint.call_key(self._worker, request)
        body = await self._checkpoint.load_call(key)
        if body is None:
            reply = await self._client.complete(request, listener)
            await self._checkpoint.save_call(key, reply)
            return reply
        reply = _reply_adapter().validate_json(body)
        if listener.streaming:
            for delta in split_reply(reply, 0):
                await listener.on_delta(delta)
        return reply


@final
class CachedConductor:
    """A conductor whose decisions are kept; that its model failed is not, and it is asked anew."""

    def __init__(self, conductor: Conductor, checkpoint: Checkpoint) -> None:
        self._conductor = conductor
        self._checkpoint = checkpoint

    @property
    def name(self) -> str:
        """The conductor's."""
        return self._conductor.name

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Return the kept decision; else the conductor's.

        Raises:
            StoreError: what is kept cannot be read.
        """
        place = f"plan:{len(context.previous)}:{context.sample}:{context.seed}"
        pool = orjson.dumps([(worker.id, worker.model) for worker in context.pool])
        key = CallKey(
            job=self._checkpoint.job.id, place=place, worker=self.name, model="", request=pool
        )
        body = await self._checkpoint.load_call(key)
        if body is not None:
            return _decision_adapter().validate_json(body)
        decision = await self._conductor.plan(context, listener)
        if not (isinstance(decision, MalformedPlan) and decision.outage):
            await self._checkpoint.save_call(key, decision)
        return decision


@cache
def _reply_adapter() -> TypeAdapter[Reply]:
    """Return the adapter of replies, built on first use: it takes a part of the start."""
    return TypeAdapter(Reply)


@cache
def _decision_adapter() -> TypeAdapter[Decision]:
    return TypeAdapter(Decision)
