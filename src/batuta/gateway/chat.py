"""POST /v1/chat/completions."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import anyio
from starlette.types import Receive, Scope, Send

from batuta.baselines import Players, Solver
from batuta.baselines.solver import Stage
from batuta.core import (
    Client,
    Emit,
    Limits,
    Listener,
    Pool,
    Reply,
    Request,
    Run,
    RunId,
    WorkerId,
)
from batuta.core.conductor import SILENT
from batuta.engine import Recorder, conduct, new_run_id
from batuta.errors import ClientError, StoreError
from batuta.gateway.flight import Cut
from batuta.gateway.middleware import log_fault
from batuta.gateway.models import Orchestra, Served
from batuta.gateway.refusal import Refusal, closing, no_model, server_fault, wrong_value
from batuta.gateway.reply import ReaderGone, read_fields, send_json, send_refusal
from batuta.gateway.stream import ChatStream, Line
from batuta.gateway.verdict import refusal_of, response_headers
from batuta.gateway.wire.chat import ChatCall, parse_chat, parse_model
from batuta.gateway.wire.completion import chat_completion
from batuta.gateway.wire.orchestration import FIELD
from batuta.solvers import Fixed

_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@final
class Witness:
    """A client that remembers how long its provider asked to wait."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.retry_after: float | None = None

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """The client's reply.

        Raises:
            ClientError: as the client does.
        """
        try:
            return await self._client.complete(request, listener)
        except ClientError as error:
            self.retry_after = error.retry_after
            raise


@dataclass(frozen=True, slots=True)
class Booking:
    """A call that can be played: everything was looked up and found."""

    call: ChatCall
    served: Served
    pool: Pool
    limits: Limits
    clients: Mapping[WorkerId, Client]
    witness: Witness | None
    run_id: RunId

    @property
    def live(self) -> bool:
        """Whether words can be shown as they come: no later round will replace them."""
        return self.call.stream and self.limits.rounds == 1 and self.served.solver is None

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's headers say before anything is played."""
        headers = {"x-batuta-run-id": str(self.run_id)}
        ignored = [name for name in self.call.ignored if _SAFE.fullmatch(name)]
        if ignored:
            headers["x-batuta-ignored"] = ", ".join(ignored)
        return headers

    def verdict(self, run: Run) -> Refusal | None:
        """The error that the caller gets; None if the run has an answer."""
        retry_after = self.witness.retry_after if self.witness else None
        return refusal_of(run, direct=self.served.direct, retry_after=retry_after)


@final
class ChatEndpoint:
    """Answers a chat body, whole or streamed."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Refusal: before anything was played.
        """
        try:
            body = await read_fields(scope, receive)
        except ReaderGone:
            return
        name = parse_model(body)
        served = self._orchestra.find(name)
        call = parse_chat(body)
        if served is None:
            raise no_model(name, self._orchestra.absent.get(name))
        booking = self._book(call, served)
        if call.stream:
            await self._stream(booking, receive, send)
        else:
            await self._whole(booking, receive, send)

    def _book(self, call: ChatCall, served: Served) -> Booking:
        clients: Mapping[WorkerId, Client] = self._orchestra.clients
        pool = call.wishes.cast(served.pool)
        limits = call.wishes.limits(served.limits)
        workflow = call.wishes.workflow
        if workflow is not None:
            call.wishes.check(pool, limits)
            by_hand = Fixed("by-hand", lambda _: workflow)
            served = replace(served, conductor=by_hand, solver=None, direct=False)
        elif served.calls is not None and limits.steps < served.calls:
            raise wrong_value(f"{FIELD}.max_steps", f"{served.name} makes {served.calls} calls.")
        witness = None
        if served.direct:
            first = pool.ranked()[0].id
            witness = Witness(clients[first])
            clients = {**clients, first: witness}
        return Booking(call, served, pool, limits, clients, witness, new_run_id())

    async def _whole(self, booking: Booking, receive: Receive, send: Send) -> None:
        runs: list[Run] = []

        async def work() -> None:
            runs.append(await self._play(booking))

        cut = await self._orchestra.flights.fly(receive, work)
        if not runs:
            if cut is Cut.CLOSING:
                raise closing()
            return
        run = runs[0]
        headers = {**booking.headers, **response_headers(run)}
        refusal = booking.verdict(run)
        if refusal is not None or run.reply is None:
            await send_refusal(send, refusal or server_fault(), headers)
            return
        call = booking.call
        body = chat_completion(run, run.reply, call.model, trace=call.wishes.trace)
        await send_json(send, body, 200, headers)

    async def _stream(self, booking: Booking, receive: Receive, send: Send) -> None:
        call, orchestra = booking.call, self._orchestra
        line = Line(send, orchestra.timing)
        stream = ChatStream(
            line, booking.run_id, call.model, direct=booking.served.direct, live=booking.live
        )
        refusals: list[Refusal] = []

        async def work() -> None:
            await stream.open(booking.headers)
            run = await self._play(booking, stream.hear)
            refusal = booking.verdict(run)
            if refusal is None and (run.reply is None or not stream.agrees(run.reply)):
                refusal = Refusal(502, "upstream_error", "The answer broke off.")
            if refusal is not None or run.reply is None:
                refusals.append(refusal or server_fault())
                return
            usage, trace = call.include_usage, call.wishes.trace
            await stream.finish(run, run.reply, include_usage=usage, trace=trace)

        try:
            cut = await orchestra.flights.fly(receive, work, line)
        except Exception as error:  # noqa: BLE001 - the 200 is out: say it in the stream
            log_fault(error)
            cut = None
            refusals.append(server_fault())
        if cut is Cut.CLOSING:
            refusals.append(closing())
        for refusal in refusals:
            await stream.fail(refusal)

    async def _play(self, booking: Booking, emit: Emit | None = None) -> Run:
        """Conducts and keeps the run, also if this is cancelled."""
        recorder = Recorder()
        question, served = booking.call.question, booking.served
        if served.solver is not None:
            return await self._solve(booking, served.solver, emit)
        assert served.conductor is not None  # noqa: S101 - one of the two is there
        try:
            return await conduct(
                question,
                served.conductor,
                booking.pool,
                booking.clients,
                limits=booking.limits,
                seed=question.sampling.seed,
                emit=emit,
                live=booking.live,
                fallback=served.fallback,
                model=served.name,
                run_id=booking.run_id,
                recorder=recorder,
            )
        finally:
            if recorder.ended is not None and booking.call.store:
                await self._keep(recorder.run())

    async def _solve(self, booking: Booking, solver: Solver, emit: Emit | None) -> Run:
        """The solver's run, kept also if this is cancelled."""
        question, recorder = booking.call.question, Recorder()
        stage = Stage(booking.run_id, booking.served.name, emit, recorder)
        players = Players(booking.pool, booking.clients, booking.limits, stage)
        wanted = question.sampling.seed
        seed = secrets.randbits(31) if wanted is None else wanted
        run: Run | None = None
        try:
            run = await solver.answer(question, players, seed)
            return run
        finally:
            if recorder.ended is not None and booking.call.store:
                await self._keep(run or recorder.run())

    async def _keep(self, run: Run) -> None:
        """Stores the run; an answer is not lost because the disk fails."""
        if self._orchestra.store is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await self._orchestra.store.append(run)
            except StoreError as error:
                log_fault(error)
