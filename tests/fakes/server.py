"""What the fake providers share: a loopback server, its record, its faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

import anyio
from aiohttp import web

KEY = "sk-test-loopback-0123456789abcdef"


class Fault(Enum):
    """How the next request is mistreated."""

    RATE_LIMIT = "429 with retry-after"
    NO_CREDIT = "quota used up"
    SERVER_ERROR = "500"
    OVERLOADED = "529"
    UNAUTHORISED = "401 that repeats the key"
    NOT_FOUND = "404"
    TOO_LONG = "400, context length"
    CUT = "the connection breaks in the middle"
    EARLY_END = "the body ends cleanly in the middle of the reply"
    SILENCE = "nothing is sent"
    SILENCE_AFTER = "nothing more is sent after the first fragment"
    MALFORMED = "JSON that is none"
    MISSHAPEN = "JSON of another shape"
    HTML = "a page instead of JSON"
    ERROR_INSIDE = "an error object inside a 200"
    NO_USAGE = "no usage is told"
    REDIRECT = "307 elsewhere"


Fine = None
"""In a list of faults: this request is treated well."""


@dataclass(frozen=True)
class Said:
    """What a fake model answers; plain text is `Said(text)`."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    """(id, name, arguments)."""
    finish: str = ""
    """In the provider's words; empty: the natural one."""
    usage: dict[str, Any] | None = None
    """In the provider's words; None: a default one."""


@dataclass
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    query: dict[str, str] = field(default_factory=dict)


class RuleError(Exception):
    """What was received breaks the provider's rules."""


def need(condition: object, message: str) -> None:
    if not condition:
        raise RuleError(message)


def only(found: dict[str, Any], allowed: set[str], where: str) -> None:
    unknown = set(found) - allowed
    need(not unknown, f"{where}: unknown fields {sorted(unknown)}")


Answer = Callable[[dict[str, Any]], Said | str]


class FakeServer:
    """One fake provider; `async with` runs it."""

    def __init__(
        self,
        reply: Answer | Said | str = "Hello from the fake model.",
        faults: Sequence[Fault | None] = (),
        *,
        key: str = KEY,
        latency: float = 0.0,
        chunk: int = 5,
        gap: float = 0.0,
        retry_after: dict[str, str] | None = None,
        check: bool = True,
    ) -> None:
        self._reply = reply
        self.faults = list(faults)
        self.key = key
        self.latency = latency
        self.chunk = chunk
        self.gap = gap
        self.retry_after = {"retry-after": "0"} if retry_after is None else retry_after
        self.check = check
        self.requests: list[Received] = []
        self.wrong: list[str] = []
        """What was wrong with the requests; a test expects it empty."""
        self.connections: set[int] = set()
        self.started = asyncio.Event()
        """Set when a request has begun to be answered."""
        self.closed = asyncio.Event()
        """Set when a client went away before its answer was complete."""

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    def refuse(self, status: int, kind: str, code: str | None, message: str) -> dict[str, Any]:
        """An error body in the provider's form."""
        raise NotImplementedError

    def validate(self, received: Received) -> None:
        raise NotImplementedError

    def whole(self, said: Said, received: Received, *, usage: bool) -> dict[str, Any]:
        raise NotImplementedError

    def events(self, said: Said, received: Received, *, usage: bool) -> list[bytes]:
        """The stream, fragment by fragment; the last two belong to the end."""
        raise NotImplementedError

    def streams(self, received: Received) -> bool:
        return bool(received.body.get("stream"))

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """The base URL that a client of this dialect is given."""
        return self.origin

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        self.connections.add(transport.get_extra_info("peername")[1] if transport else 0)
        received = Received(
            request.path,
            {name.lower(): value for name, value in request.headers.items()},
            json.loads(await request.read()),
            dict(request.query),
        )
        self.requests.append(received)
        try:
            return await self._answer(request, received)
        except (asyncio.CancelledError, ConnectionResetError):
            self.closed.set()
            raise

    async def _answer(self, request: web.Request, received: Received) -> web.StreamResponse:
        if self.check:
            try:
                self.validate(received)
            except RuleError as error:
                self.wrong.append(str(error))
                body = self.refuse(400, "invalid_request_error", None, str(error))
                return web.json_response(body, status=400)
        fault = self.faults.pop(0) if self.faults else None
        self.started.set()
        if self.latency:
            await anyio.sleep(self.latency)
        refused = self._refused(fault)
        if refused is not None:
            return refused
        if fault is Fault.SILENCE:
            await anyio.sleep(60)
        said = self._reply(received.body) if callable(self._reply) else self._reply
        said = Said(said) if isinstance(said, str) else said
        if self.streams(received):
            return await self._stream(request, received, said, fault)
        return await self._whole(request, received, said, fault)

    def _refused(self, fault: Fault | None) -> web.Response | None:
        rows = {
            Fault.RATE_LIMIT: (429, "rate_limit_error", None, "slow down"),
            Fault.NO_CREDIT: (429, "insufficient_quota", "insufficient_quota", "no money left"),
            Fault.SERVER_ERROR: (500, "server_error", None, "it broke"),
            Fault.OVERLOADED: (529, "overloaded_error", None, "busy"),
            Fault.UNAUTHORISED: (401, "authentication_error", None, f"wrong key {self.key}"),
            Fault.NOT_FOUND: (404, "not_found_error", None, "no such model"),
            Fault.TOO_LONG: (
                400,
                "invalid_request_error",
                "context_length_exceeded",
                "maximum context length is 10",
            ),
        }
        if fault is Fault.HTML:
            return web.Response(text="<html>hello</html>", content_type="text/html")
        if fault is Fault.REDIRECT:
            return web.Response(status=307, headers={"location": "http://127.0.0.1:1/elsewhere"})
        if fault not in rows:
            return None
        status, kind, code, message = rows[fault]
        headers = self.retry_after if status in {429, 529} else {}
        return web.json_response(
            self.refuse(status, kind, code, message), status=status, headers=headers
        )

    async def _whole(
        self, request: web.Request, received: Received, said: Said, fault: Fault | None
    ) -> web.StreamResponse:
        if fault is Fault.ERROR_INSIDE:
            return web.json_response(self.refuse(529, "overloaded_error", None, "busy inside"))
        if fault is Fault.MISSHAPEN:
            return web.json_response({"type": "message", "something": "else"})
        body = json.dumps(self.whole(said, received, usage=fault is not Fault.NO_USAGE)).encode()
        if fault is Fault.MALFORMED:
            body = body[:-5]
        if fault not in {Fault.CUT, Fault.SILENCE_AFTER}:
            return web.Response(body=body, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "application/json"})
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[:10])
        return await self._abandon(request, response, fault)

    async def _stream(
        self, request: web.Request, received: Received, said: Said, fault: Fault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        events = self.events(said, received, usage=fault is not Fault.NO_USAGE)
        strange = {
            Fault.MALFORMED: b"data: {no json\n\n",
            Fault.MISSHAPEN: b'data: ["something else"]\n\n',
            Fault.ERROR_INSIDE: self._inside(),
        }
        for number, event in enumerate(events):
            if number == 3 and fault in {
                Fault.CUT,
                Fault.EARLY_END,
                Fault.SILENCE_AFTER,
                *strange,
            }:
                if fault is Fault.EARLY_END:
                    await response.write_eof()
                    return response
                if fault not in strange:
                    return await self._abandon(request, response, fault)
                await response.write(strange[fault])
                await anyio.sleep(0.05)
                await response.write_eof()
                return response
            await response.write(event)
            if self.gap:
                await anyio.sleep(self.gap)
        await response.write_eof()
        return response

    def _inside(self) -> bytes:
        body = self.refuse(529, "overloaded_error", None, "busy inside")
        return b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"

    async def _abandon(
        self, request: web.Request, response: web.StreamResponse, fault: Fault
    ) -> web.StreamResponse:
        if fault is Fault.SILENCE_AFTER:
            await anyio.sleep(60)
        await anyio.sleep(0.02)  # let what was written arrive first
        assert request.transport is not None
        request.transport.abort()
        return response

    def pieces(self, text: str) -> list[str]:
        return [text[at : at + self.chunk] for at in range(0, len(text), self.chunk)]


def sse(data: dict[str, Any], event: str = "") -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()
