"""The checkpoint of a job: wrappers that store each finished call and reuse it after a crash."""

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
"""Seconds between attempts to store a finished call or to read the stored calls."""
_CALL_POSITION: ContextVar[str] = ContextVar("batuta_job_position", default="call")
"""The current task's position in its run; the engine runs each step within one task."""


@dataclass(slots=True)
class _SavedCalls:
    """Stored results of equal calls at one position of the run."""

    unused: deque[str]
    """Results from before the crash that have not been reused yet."""
    count: int
    """Number of stored results, including reused results."""


@final
class Checkpoint:
    """Stores a job's finished calls in `JobRecords`, so that they are not repeated after a crash.

    The job handler runs with the results of `wrap_conductor`, `wrap_clients` and `wrap_emit` in
    place of its own conductor, clients and event handler.
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
        """Start with the job's first call and event.

        Args:
            job: the job.
            records: stores calls and events.
            stored_events: the number of events that were stored before a crash.
            notify: is called with the job's id after each event.
            scope: is cancelled when the job is cancelled.
        """
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
        """The job that is being run."""
        return self._job

    @property
    def will_resume(self) -> bool:
        """Return True if the job will be run again when it is interrupted now.

        A job is run again if its process ends, but not if the job itself was cancelled.
        """
        return not self._scope.cancel_called

    def wrap_conductor(self, conductor: Conductor) -> Conductor:
        """Return a conductor that stores and reuses the decisions of `conductor`."""
        return CachedConductor(conductor, self)

    def wrap_clients(self, clients: Mapping[WorkerId, Client]) -> Mapping[WorkerId, Client]:
        """Return clients that store and reuse the replies of `clients`."""
        return {worker: CachedClient(worker, client, self) for worker, client in clients.items()}

    def wrap_emit(self, emit: EventHandler) -> EventHandler:
        """Return a handler that notes workers' models and calls' positions, then calls `emit`."""

        async def record_event(event: Event) -> None:
            match event:
                case RunHeader():
                    self._models |= {worker.id: worker.model for worker in event.pool}
                case StepStarted():
                    _CALL_POSITION.set(f"call:{event.round}:{event.index}")
                case _:
                    pass
            await emit(event)

        return record_event

    async def add_event(self, event: Json) -> None:
        """Store an event for the readers of the job's stream, unless it was stored before a crash.

        A job that is run again repeats its events from the first. Events must therefore follow
        from finished calls alone: no fragment of a reply is sent before the reply is complete.

        Raises:
            StoreError: the event cannot be stored.
        """
        async with self._order:
            number, self._next = self._next, self._next + 1
            if number >= self._event_count:
                await self._records.add_event(self._job.id, number, event)
                self._event_count = number + 1
        await self._notify(self._job.id)

    def call_key(self, worker: WorkerId, request: Request) -> CallKey:
        """Return the key of the call that the current task is about to make.

        The output limit is not part of the key, since it depends on the remaining budget.
        """
        return CallKey(
            job=self._job.id,
            place=_CALL_POSITION.get(),
            worker=worker,
            model=self._models.get(worker, ""),
            request=request_fingerprint(replace(request, max_output=None)),
        )

    async def load_call(self, key: CallKey) -> str | None:
        """Return the call's result from before the crash, each result once; None: none is left.

        Raises:
            StoreError: the stored calls could not be read for two minutes.
        """
        async with self._order:
            if key not in self._saved_calls:
                bodies = await self._find_calls(key)
                self._saved_calls[key] = _SavedCalls(deque(bodies), len(bodies))
        unused = self._saved_calls[key].unused
        return unused.popleft() if unused else None

    async def _find_calls(self, key: CallKey) -> list[str]:
        """Return the stored calls; retry if the database fails, so that the step does not fail."""
        for pause in _RETRY_PAUSES[:-1]:
            try:
                return await self._records.find_calls(key)
            except StoreError as error:
                logger.warning("job %s waits for the database: %s", self._job.id, error)
            await anyio.sleep(pause)
        return await self._records.find_calls(key)

    async def save_call(self, key: CallKey, result: Reply | Decision) -> None:
        """Store the result of a call for which `load_call` returned None.

        The call was paid for, so a cancellation waits for the end of a write. Failed writes are
        retried for two minutes. If the result cannot be stored, the run continues with it, and a
        crash would repeat the call.
        """
        saved_calls = self._saved_calls[key]
        saved_calls.count += 1
        try:
            text = orjson.dumps(result, default=str).decode()
        except orjson.JSONEncodeError as error:
            logger.warning("a finished call of job %s is not stored: %s", self._job.id, error)
            return
        for pause in _RETRY_PAUSES:
            try:
                with anyio.CancelScope(shield=True):
                    await self._records.keep_call(key, saved_calls.count - 1, text)
            except StoreError as error:
                logger.warning(
                    "a finished call of job %s is not stored yet: %s", self._job.id, error
                )
                await anyio.sleep(pause)
            else:
                return


JobHandler = Callable[[Job, Checkpoint], Awaitable[JobEnding]]
"""Runs a job. It is cancelled when the job is cancelled or no longer belongs to this process. After
StoreError it is called again; any other exception makes the job fail."""


@final
class CachedClient:
    """A client that stores its replies; a failed call is not stored and is made again."""

    def __init__(self, worker: WorkerId, client: Client, checkpoint: Checkpoint) -> None:
        self._worker = worker
        self._client = client
        self._checkpoint = checkpoint

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the stored reply, with its original usage and cost, or else the client's reply.

        Raises:
            ClientError: the client's call failed.
            StoreError: the stored replies cannot be read.
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
    """A conductor that stores its decisions, except a decision due to an outage of its model."""

    def __init__(self, conductor: Conductor, checkpoint: Checkpoint) -> None:
        self._conductor = conductor
        self._checkpoint = checkpoint

    @property
    def name(self) -> str:
        """The name of the wrapped conductor."""
        return self._conductor.name

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Return the stored decision, or else the conductor's decision.

        Raises:
            StoreError: the stored decisions cannot be read.
        """
        position = f"plan:{len(context.previous)}:{context.sample}:{context.seed}"
        pool = orjson.dumps([(worker.id, worker.model) for worker in context.pool])
        key = CallKey(
            job=self._checkpoint.job.id, place=position, worker=self.name, model="", request=pool
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
    """Return the pydantic adapter of replies, built on first use as that is slow."""
    return TypeAdapter(Reply)


@cache
def _decision_adapter() -> TypeAdapter[Decision]:
    return TypeAdapter(Decision)
