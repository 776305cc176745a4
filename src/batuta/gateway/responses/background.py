"""Background responses: each is run by a job, and can be read during and after the run."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from time import time
from typing import Any, final

import anyio

from batuta.engine import new_run_id
from batuta.errors import StoreError
from batuta.gateway.access.caller import Authenticator, Caller
from batuta.gateway.access.concurrency import ConcurrencyCounter
from batuta.gateway.access.rate_limit import retry_headers
from batuta.gateway.errors import APIError, unsupported_parameter
from batuta.gateway.http.body import Fields, encode_json, plain_json
from batuta.gateway.responses.events import ResponseEventWriter
from batuta.gateway.responses.request import ResponseCall, ResponseHistory, parse_with_history
from batuta.gateway.responses.response import failed_response, new_response
from batuta.gateway.responses.store import ResponseStore, body_of
from batuta.gateway.responses.stream import EventSink, ResponsesStreamRenderer, SaveResponse
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.deliver import execute_and_render
from batuta.gateway.serving.execute import RunService
from batuta.jobs import (
    OPEN_GATE,
    Checkpoint,
    Job,
    JobEnding,
    JobGate,
    JobOwner,
    Jobs,
    JobState,
    JobStatus,
)
from batuta.store.budgets import Budgets
from batuta.store.responses import StoredResponse, response_id, run_id_of

Json = dict[str, Any]
_LOG = logging.getLogger(__name__)
_ORPHAN_SECONDS = 30.0
"""Seconds between checks for reservations whose jobs have ended."""
_LOST_MESSAGE = "The server was stopped before the response was finished."
_UNAVAILABLE = 503
_QUEUE_RETRY_SECONDS = 15.0
"""The `retry-after` of a request that found the queue full."""
_FAULT_MESSAGE = "The server failed to finish the response."


@final
class BackgroundResponses:
    """Submits responses as jobs, runs those jobs, and reports their status.

    Each method except `work` raises `StoreError` if the database fails.
    """

    def __init__(
        self,
        service: RunService,
        responses: ResponseStore,
        jobs: Jobs | None,
        authenticator: Authenticator,
        *,
        gate: JobGate = OPEN_GATE,
        orphan_seconds: float = _ORPHAN_SECONDS,
    ) -> None:
        """Store the arguments; jobs are run by `work`.

        Args:
            service: executes runs.
            responses: stores responses.
            jobs: queues and runs the jobs; None: background responses are refused.
            authenticator: restores the callers of the jobs.
            gate: enforces the keys' concurrency limits.
            orphan_seconds: seconds between checks for reservations whose jobs have ended.
        """
        self._orphan_seconds = orphan_seconds
        self._service = service
        self._responses = responses
        self._jobs = jobs
        self._authenticator = authenticator
        self._gate = gate

    async def work(self) -> None:
        """Execute jobs until cancelled; end the budget reservations of jobs that no longer run.

        Return immediately if this server runs no jobs.
        """
        if self._jobs is None:
            return
        async with anyio.create_task_group() as tasks:
            if self._responses.budgets is not None:
                tasks.start_soon(self._release_orphans, self._responses.budgets)
            await self._jobs.work(self.run_job, self._gate)
            tasks.cancel_scope.cancel()

    async def _release_orphans(self, budgets: Budgets) -> None:
        """End the reservations of jobs that ended or were erased; renew those of the others.

        A job that is cancelled while no process runs it leaves its reservation behind. A job that
        was just cancelled may still be settling, so a reservation is ended only if two consecutive
        checks find that its job has ended.
        """
        before: set[str] = set()
        while True:
            try:
                living, found = await self.sort_reservations(budgets)
                await budgets.renew_job_reservations(living, time())
                if ended := found & before:
                    await budgets.end_job_reservations(ended)
                before = found
            except StoreError as error:
                _LOG.warning("the budget reservations of jobs cannot be checked now: %s", error)
            await anyio.sleep(self._orphan_seconds)

    async def sort_reservations(self, budgets: Budgets) -> tuple[set[str], set[str]]:
        """Return the ids of the reservations whose jobs wait or run, and those of the others."""
        living, orphans = set[str](), set[str]()
        for held in await budgets.job_reservations():
            status = await self._find_status(response_id(held.run_id), held.tenant)
            is_over = status is None or status.state.is_final
            (orphans if is_over else living).add(held.id)
        return living, orphans

    async def submit(
        self, response_call: ResponseCall, body: Fields, history: ResponseHistory, caller: Caller
    ) -> tuple[Json, dict[str, str]]:
        """Queue the response as a job; return it with the status `queued`, and its headers.

        Raises:
            APIError: the call cannot run, this server stores no responses or runs no jobs, or the
                queue is full.
        """
        if self._responses.responses is None or self._jobs is None:
            raise unsupported_parameter("background", "this server keeps no responses.")
        async with self._jobs.enter_queue(caller.tenant) as has_room:
            if not has_room:
                raise _queue_full(self._jobs.most_waiting)
            return await self._submit(
                self._jobs, response_call, body, history=history, caller=caller
            )

    async def _submit(
        self,
        jobs: Jobs,
        response_call: ResponseCall,
        body: Fields,
        *,
        history: ResponseHistory,
        caller: Caller,
    ) -> tuple[Json, dict[str, str]]:
        """Check the call as far as possible before it is run, and submit it."""
        run_id, created = new_run_id(), int(time())
        async with self._service.prepare_call(
            response_call.call, caller, run_id=run_id, in_background=True
        ) as prepared:  # raises if the call cannot be run; the job reserves its budget again
            headers = prepared.headers
        queued = new_response(response_call.echo, response_id(run_id), created, "queued")
        past = {
            "items": list(history.items),
            "named": dict(history.by_id),
            "files": list(history.files),
        }
        job = {
            "request": dict(body.raw),
            "past": past,
            "created": created,
            "session": body.session,
            "files": list(body.files),
            "key": caller.shown_key,
        }
        await self._responses.save(response_call, caller, queued)
        await jobs.submit(Job(queued["id"], caller.tenant, job, key=caller.key))
        return queued, headers

    async def run_job(self, job: Job, checkpoint: Checkpoint) -> JobEnding:
        """Run a job and return how it ended.

        A job that is run again repeats the events of its first run, because these depend only on
        its body and on its finished calls.

        Raises:
            APIError: the stored request cannot be parsed.
            StoreError: the database fails, or the call is refused with status 503; the job can be
                run again.
        """
        stored = job.body["past"]  # without files if an earlier version stored it
        past = ResponseHistory(
            tuple(stored["items"]), stored["named"], tuple(stored.get("files", ()))
        )
        request = Fields(
            job.body["request"],
            is_large=True,  # its size is not known here
            session=job.body.get("session", ""),
            files=tuple(job.body.get("files", ())),
        )
        parsed = await parse_with_history(request, past)
        base = new_response(parsed.echo, job.id, job.body["created"])
        sink = _CheckpointSink(checkpoint)
        event_writer = ResponseEventWriter(base, compacts=parsed.compacts)
        save = partial(self._responses.save, parsed, Caller(tenant=job.tenant))
        call = replace(parsed.call, stream=False)
        try:
            shown_key = job.body.get("key") or job.key
            caller = await self._authenticator.restore_caller(job.tenant, shown_key)
            async with self._service.prepare_call(
                call,
                caller,
                run_id=run_id_of(job.id),
                in_background=True,
                already_counted=True,
                durable=True,
            ) as prepared_call:
                response = await self._execute(
                    _with_checkpoint(prepared_call, checkpoint),
                    checkpoint,
                    sink=sink,
                    event_writer=event_writer,
                    save=save,
                )
        except APIError as refusal:
            if refusal.status == _UNAVAILABLE:
                raise StoreError(refusal.message) from refusal
            response = failed_response(event_writer.base, [], refusal)
            for event in (*event_writer.begin(), event_writer.end(response)):
                await sink.send(event)
            await save(response)
        # Runs are written before the ending is stored: an ended job is not run again, so its cost
        # would be lost if the process died in between.
        await self._service.flush_runs()
        return JobEnding(JobState(response["status"]), plain_json(response))

    async def current_response(self, row: StoredResponse) -> Json:
        """Return the response with its current status: `failed` if its job was lost or failed."""
        body = await body_of(row)
        if JobState(row.status).is_final:
            return body
        status = await self._find_status(row.id, row.tenant)
        if status is None or self._jobs is None:
            return failed_response(body, [], APIError(500, "server_error", _LOST_MESSAGE))
        if status.state is JobState.FAILED and status.error is not None:
            return failed_response(body, [], APIError(500, "server_error", _FAULT_MESSAGE))
        result = await self._jobs.result(row.id, row.tenant) if status.state.is_final else None
        return result or {**body, "status": status.state.value}

    async def cancel(self, row: StoredResponse) -> Json:
        """Cancel the response and return it; a response that has ended is returned unchanged."""
        body = await self.current_response(row)
        if JobState(body["status"]).is_final or self._jobs is None:
            return body
        await self._jobs.cancel(row.id, row.tenant)
        body = await self.current_response(row)
        responses = self._responses.responses
        if body["status"] == JobState.CANCELLED.value and responses is not None:
            await responses.put(replace(row, status=body["status"], body=encode_json(body)))
        return body

    async def has_job(self, row: StoredResponse) -> bool:
        """Return True if a job exists that holds the response's events."""
        return await self._find_status(row.id, row.tenant) is not None

    async def _find_status(self, job_id: str, tenant: str) -> JobStatus | None:
        return None if self._jobs is None else await self._jobs.status(job_id, tenant)

    async def events(self, name: str, caller: Caller, after: int) -> AsyncIterator[Json]:
        """Yield the events numbered above `after` as they occur, up to the final event."""
        number, ended = after, False
        if self._jobs is None:
            return
        async for event in self._jobs.events(name, caller.tenant, after):
            number, ended = event.number, event.body["type"] in _END_EVENTS
            yield event.body
        row = None if ended else await self._responses.read_again(name, caller.tenant)
        if row is None:
            return
        body = await self.current_response(row)
        if body["status"] in {JobState.CANCELLED.value, JobState.FAILED.value}:
            # The job stopped before it could send the final event.
            yield {"type": "response.failed", "sequence_number": number + 1, "response": body}

    async def _execute(
        self,
        prepared: PreparedCall,
        checkpoint: Checkpoint,
        sink: EventSink,
        event_writer: ResponseEventWriter,
        *,
        save: SaveResponse,
    ) -> Json:
        renderer = ResponsesStreamRenderer(sink, event_writer, prepared, save)
        await renderer.open(prepared.headers)
        refusal = await execute_and_render(
            self._service, prepared, renderer, checkpoint.wrap_emit(renderer.on_event)
        )
        if refusal is not None:
            await renderer.fail(refusal)
        assert renderer.response is not None  # noqa: S101 - it was finished or failed
        return renderer.response


def _queue_full(most: int) -> APIError:
    message = (
        f"This tenant has {most} background responses in the queue; "
        "try again when some have started."
    )
    return APIError(
        429, "rate_limit_exceeded", message, headers=retry_headers(_QUEUE_RETRY_SECONDS)
    )


_END_EVENTS = {"response.completed", "response.incomplete", "response.failed"}


@final
class _CheckpointSink:
    """Event sink that stores the events in a job's checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.kept_events: list[bytes] | None = None

    async def open(self, headers: dict[str, str]) -> None:
        """Do nothing: a checkpoint has no headers."""

    async def send(self, event: Json, *, last: bool = False) -> None:
        """Store a copy of the event, because the run keeps changing its items."""
        await self._checkpoint.add_event(plain_json(event))


def _with_checkpoint(prepared: PreparedCall, checkpoint: Checkpoint) -> PreparedCall:
    """Return the prepared call with its conductor and clients wrapped by the checkpoint."""
    served, conductor = prepared.served_model, prepared.served_model.conductor
    if conductor is not None:
        served = replace(served, conductor=checkpoint.wrap_conductor(conductor))
    clients = checkpoint.wrap_clients(prepared.clients)
    admission = prepared.admission
    return replace(
        prepared,
        served_model=served,
        clients=clients,
        will_resume=lambda: checkpoint.will_resume and not admission.has_lost_key,
    )


@final
class KeyLimitGate:
    """Counts a key's jobs together with its requests, against the key's current limit."""

    def __init__(self, authenticator: Authenticator, counter: ConcurrencyCounter) -> None:
        self._authenticator = authenticator
        self._counter = counter

    async def enter(self, owner: JobOwner, token: str) -> bool:
        """Count a job of the key and return True; a job without a key needs no count.

        Return False if the key is at its limit, or if its limit cannot be read now.
        """
        if owner.key is None:
            return True
        try:
            caller = await self._authenticator.restore_caller(owner.tenant, owner.key)
            most = caller.permissions.concurrency
        except APIError:
            most = None  # the key is not valid any more; the job itself will fail with that error
        except StoreError as error:
            _LOG.warning("a job has to wait, because its key's limit cannot be read: %s", error)
            return False
        return await self._counter.enter(owner.key, token, most)

    async def leave(self, owner: JobOwner, token: str) -> None:
        """Stop counting the job of the token."""
        if owner.key is not None:
            await self._counter.leave(owner.key, token)
