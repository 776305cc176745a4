"""POST /v1/responses."""

from __future__ import annotations

from functools import partial
from time import time
from typing import Any, final

from starlette.types import Receive, Scope, Send

from batuta.core import Reply, Run
from batuta.gateway.background import Background
from batuta.gateway.caller import Caller, caller_of
from batuta.gateway.deliver import streamed, whole
from batuta.gateway.models import Orchestra
from batuta.gateway.play import Booking, Player
from batuta.gateway.reply import ReaderGone, read_fields, send_json
from batuta.gateway.response_events import send_events
from batuta.gateway.response_stream import Listening, ResponseTeller
from batuta.gateway.shelf import Shelf
from batuta.gateway.wire.fields import Fields
from batuta.gateway.wire.response import begun, ended, response_id
from batuta.gateway.wire.response_script import Script
from batuta.gateway.wire.responses import Past, ResponseCall, parse_response, sought


@final
class ResponsesEndpoint:
    """Answers a Responses body: whole, streamed, or in the background."""

    def __init__(
        self, orchestra: Orchestra, player: Player, shelf: Shelf, background: Background
    ) -> None:
        self._orchestra = orchestra
        self._player = player
        self._shelf = shelf
        self._background = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Refusal: before anything was said.
        """
        try:
            body = await read_fields(scope, receive)
        except ReaderGone:
            return
        caller = caller_of(scope)
        past = await self._shelf.past(sought(body), caller)
        asked = parse_response(body, past)
        if asked.background:
            await self._later(asked, body, past, caller, receive, send)
            return
        async with self._player.book(asked.call, caller) as booking:
            base = begun(asked.echo, response_id(booking.run_id), int(time()))
            keep = partial(self._shelf.keep, asked, caller)
            script = Script(base)
            if asked.call.stream:
                ear = Listening(send, self._orchestra.timing, script.alive, keeps=asked.call.store)
                teller = ResponseTeller(ear, script, booking, keep)
                flights = self._orchestra.flights
                await streamed(self._player, flights, booking, teller, ear.line, receive)
                return
            await self._whole(asked, booking, script, caller, receive, send)

    async def _whole(
        self,
        asked: ResponseCall,
        booking: Booking,
        script: Script,
        caller: Caller,
        receive: Receive,
        send: Send,
    ) -> None:
        async def render(run: Run, reply: Reply) -> dict[str, Any]:
            script.rest(reply, reasoning=booking.served.direct)
            trace = asked.call.wishes.trace
            response = ended(script.base, script.output, run, reply, trace=trace)
            await self._shelf.keep(asked, caller, response)
            return response

        await whole(self._player, self._orchestra.flights, booking, render, receive, send)

    async def _later(
        self,
        asked: ResponseCall,
        body: Fields,
        past: Past,
        caller: Caller,
        receive: Receive,
        send: Send,
    ) -> None:
        queued = await self._background.submit(asked, body, past, caller)
        if not asked.call.stream:
            await send_json(send, queued)
            return
        events = self._background.events(queued["id"], caller, -1)
        await send_events(self._orchestra, events, queued, receive, send)
