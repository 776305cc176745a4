"""Responses that outlive their request: submitted, played by a job, read while and after."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from time import time
from typing import Any, final

from batuta.engine import new_run_id
from batuta.errors import StoreError
from batuta.gateway.caller import Caller
from batuta.gateway.deliver import told
from batuta.gateway.models import Orchestra
from batuta.gateway.play import Booking, Player
from batuta.gateway.refusal import Refusal, unsupported
from batuta.gateway.response_stream import Ear, Keep, ResponseTeller
from batuta.gateway.shelf import Shelf, body_of
from batuta.gateway.wire.encoding import encode, plain
from batuta.gateway.wire.fields import Fields
from batuta.gateway.wire.response import begun, failed, response_id, run_of
from batuta.gateway.wire.response_script import Script
from batuta.gateway.wire.responses import Past, ResponseCall, parse_response
from batuta.jobs import Desk, Ending, Job, JobState
from batuta.store.responses import StoredResponse

Json = dict[str, Any]
_LOST = "The server was stopped before the response was finished."
_UNAVAILABLE = 503
_FAULT = "The server failed to finish the response."


@final
class Background:
    """Submits responses to the jobs, plays them there, and says where they stand."""

    def __init__(self, orchestra: Orchestra, player: Player, shelf: Shelf) -> None:
        self._jobs = orchestra.jobs
        self._gate = orchestra.gate
        self.player = player
        self.shelf = shelf

    @staticmethod
    def of(orchestra: Orchestra) -> Background:
        """With a player and a shelf of its own, which every endpoint is to share."""
        return Background(orchestra, Player(orchestra), Shelf(orchestra))

    async def work(self) -> None:
        """Plays jobs until cancelled."""
        await self._jobs.work(self.perform)

    async def submit(self, asked: ResponseCall, body: Fields, past: Past, caller: Caller) -> Json:
        """The response as it waits for its turn.

        Raises:
            Refusal: it cannot be played, or there is no background here.
        """
        if self.shelf.responses is None:
            raise unsupported("background", "this server keeps no responses.")
        run_id, created = new_run_id(), int(time())
        async with self.player.book(asked.call, caller, run_id=run_id):
            pass  # what cannot be played is told now; the job books it again
        queued = begun(asked.echo, response_id(run_id), created, "queued")
        found = {"items": list(past.items), "named": dict(past.named)}
        job = {"request": dict(body.raw), "past": found, "created": created, "key": caller.key}
        await self.shelf.keep(asked, caller, queued)
        await self._jobs.submit(Job(queued["id"], caller.tenant, job))
        return queued

    async def perform(self, job: Job, desk: Desk) -> Ending:
        """Plays a job; what it tells and how it ends follows from its body and finished calls.

        Raises:
            StoreError: the database fails; it can be played again.
        """
        past = Past(tuple(job.body["past"]["items"]), job.body["past"]["named"])
        asked = parse_response(Fields(job.body["request"]), past)
        ear, script = _Desked(desk), Script(begun(asked.echo, job.id, job.body["created"]))
        keep = partial(self.shelf.keep, asked, Caller(job.tenant))
        live = asked.call.stream and not self._jobs.durable
        call = replace(asked.call, stream=live)
        try:
            caller = await self._gate.restore(job.tenant, job.body["key"])
            async with self.player.book(
                call, caller, run_id=run_of(job.id), counted=True, lasting=self._jobs.durable
            ) as booking:
                response = await self._played(_staged(booking, desk), desk, ear, script, keep)
        except Refusal as refusal:
            if refusal.status == _UNAVAILABLE:
                raise StoreError(refusal.message) from refusal
            response = failed(script.base, [], refusal)
            for event in (*script.begin(), script.end(response)):
                await ear.hear(event)
            await keep(response)
        return Ending(JobState(response["status"]), plain(response))

    async def stands(self, row: StoredResponse) -> Json:
        """The response as it is now."""
        body = body_of(row)
        if JobState(row.status).final:
            return body
        status = await self._jobs.status(row.id, row.tenant)
        if status is None:
            return failed(body, [], Refusal(500, "server_error", _LOST))
        if status.state is JobState.FAILED and status.error is not None:
            return failed(body, [], Refusal(500, "server_error", _FAULT))
        result = await self._jobs.result(row.id, row.tenant) if status.state.final else None
        return result or {**body, "status": status.state.value}

    async def cancel(self, row: StoredResponse) -> Json:
        """The response once it is cancelled; as it is if it had ended."""
        body = await self.stands(row)
        if JobState(body["status"]).final:
            return body
        await self._jobs.cancel(row.id, row.tenant)
        body = await self.stands(row)
        responses = self.shelf.responses
        if body["status"] == JobState.CANCELLED.value and responses is not None:
            await responses.put(replace(row, status=body["status"], body=encode(body)))
        return body

    async def forget(self, row: StoredResponse) -> None:
        """Cancels and erases the response's job, if there is one."""
        await self._jobs.forget(row.id, row.tenant)

    async def known(self, row: StoredResponse) -> bool:
        """Whether a job still has the response's events."""
        return await self._jobs.status(row.id, row.tenant) is not None

    async def events(self, name: str, caller: Caller, after: int) -> AsyncIterator[Json]:
        """The events numbered above `after`, as they come; the last one tells the end."""
        number, ended = after, False
        async for event in self._jobs.events(name, caller.tenant, after):
            number, ended = event.number, event.body["type"] in _ENDS
            yield event.body
        row = await self.shelf.find(name, caller)
        if row is None or ended:
            return
        body = await self.stands(row)
        if body["status"] in {JobState.CANCELLED.value, JobState.FAILED.value}:
            # Its player could not tell the end.
            yield {"type": "response.failed", "sequence_number": number + 1, "response": body}

    async def _played(
        self, booking: Booking, desk: Desk, ear: Ear, script: Script, keep: Keep
    ) -> Json:
        teller = ResponseTeller(ear, script, booking, keep)
        await teller.open(booking.headers)
        refusal = await told(self.player, booking, teller, desk.emit(teller.hear))
        if refusal is not None:
            await teller.fail(refusal)
        assert teller.response is not None  # noqa: S101 - it was finished or failed
        return teller.response


_ENDS = {"response.completed", "response.incomplete", "response.failed"}


@final
class _Desked:
    """A desk as where events go; it keeps them itself."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.told: list[bytes] | None = None

    async def open(self, headers: dict[str, str]) -> None:
        """A desk has no headers."""

    async def hear(self, event: Json, *, last: bool = False) -> None:
        """The next event; a copy, since items are filled as the run goes on."""
        await self._desk.tell(plain(event))


def _staged(booking: Booking, desk: Desk) -> Booking:
    """The booking whose finished calls survive a crash."""
    served, conductor = booking.served, booking.served.conductor
    if conductor is not None:
        served = replace(served, conductor=desk.conductor(conductor))
    clients = desk.clients(booking.clients)
    return replace(booking, served=served, clients=clients, goes_on=lambda: desk.goes_on)
