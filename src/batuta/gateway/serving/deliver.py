"""Runs a prepared call for its reader, whole or streamed, and tells how its answer came about.

A request in flight ends when its reader goes away, reads too slowly, or the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from time import monotonic, time
from typing import Any, Protocol, final

import anyio
import orjson
from starlette.types import Receive, Send

from batuta.core import Cropping, Event, EventHandler, MalformedPlan, Outcome, Reply, Run
from batuta.gateway.access.caller import Caller
from batuta.gateway.errors import (
    APIError,
    internal_error,
    log_exception,
    request_stopped,
    server_closing,
)
from batuta.gateway.http.body import encode_json, raw_headers, send_json
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.execute import RunService
from batuta.store import encode_run

_UNPLANNED_OUTCOMES = {Outcome.DEGRADED, Outcome.FALLBACK, Outcome.LIMITED, Outcome.UNSURE}
"""Outcomes of answers that are told without being asked for."""


def response_headers(run: Run) -> dict[str, str]:
    """Return the headers about a run; an unknown cost is left out, not shown as zero."""
    headers = {"x-batuta-run-id": str(run.id), "x-batuta-outcome": run.outcome.value}
    cost = run.cost
    if cost.unpriced_calls:
        headers["x-batuta-unpriced-calls"] = str(cost.unpriced_calls)
    if cost.usd or not cost.unpriced_calls:
        headers["x-batuta-cost-usd"] = f"{cost.usd:f}"
    if run.confidence is not None:
        headers["x-batuta-confidence"] = f"{run.confidence:g}"
    if (fault := _conductor_fault(run)) is not None:
        headers["x-batuta-conductor"] = fault
    return headers


def _conductor_fault(run: Run) -> str | None:
    """Return why the last round has no workflow of the conductor; None if it has, or needs none."""
    decided = (round_ for round_ in reversed(run.rounds) if not round_.is_aside)
    decision = next((round_.decision for round_ in decided), None)
    if not isinstance(decision, MalformedPlan):
        return None
    if decision.outage and not decision.again:
        return "left-alone"
    return "unreachable" if decision.outage else "no-workflow"


def usage_of(run: Run) -> dict[str, Any]:
    """Return the tokens as the API counts them.

    `prompt_tokens` and `completion_tokens` are those of the call that gave the answer; all other
    calls (the conductor's, the other steps', failed attempts') are `orchestration_…`; and
    `total_tokens` is everything.
    """
    every = run.usage
    visible = run.reply.usage if run.reply else None
    prompt, cached = (visible.input, visible.cached) if visible else (0, 0)
    completion = visible.output if visible else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": every.total,
        "prompt_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": visible.cache_write if visible else 0,
            "orchestration_input_tokens": every.input - prompt,
            "orchestration_input_cached_tokens": every.cached - cached,
        },
        "completion_tokens_details": {
            "reasoning_tokens": visible.reasoning if visible else 0,
            "orchestration_output_tokens": every.output - completion,
        },
    }


def orchestration_field(run: Run, *, trace: bool) -> dict[str, Any]:
    """Return the field that says how an answer came about; no field if there is nothing to say.

    Of a dry run it is the plan and what it is expected to take, whether or not a trace was
    asked for; with a trace the whole run, as it is stored; and without one the outcome, where
    the answer is not the one that was planned, how sure it is, where that is known, and how much of
    a long conversation the conductor was shown, where that was not the whole, and the files that
    programs wrote in any of its steps.
    """
    if run.outcome is Outcome.PLANNED:
        return {"orchestration": plan_of(run)}
    if trace:
        return {"orchestration": trace_of(run)}
    cropping = next((c for round_ in run.rounds if (c := round_.decision.draft.cropping)), None)
    repeated = {} if run.rounds or run.header.parent is None else {"answer_of": run.header.parent}
    sure = {} if run.confidence is None else {"confidence": run.confidence}
    files = written_files(run)
    extra = {**repeated, **sure, **({"files": files} if files else {})}
    if run.outcome not in _UNPLANNED_OUTCOMES and cropping is None and not extra:
        return {}
    summary = {"run_id": run.id, "outcome": run.outcome.value, "limit": run.limit, **extra}
    cropped = {} if cropping is None else {"cropped": cropping_json(cropping)}
    return {"orchestration": {**summary, **cropped}}


def written_files(run: Run) -> list[dict[str, Any]]:
    """Return the files that programs wrote in the steps of a run."""
    return [
        {"id": file.id, "filename": file.name, "bytes": file.size}
        for step in run.steps
        if isinstance(step.result, Reply)
        for call in step.result.server_calls
        for file in call.files
    ]


def cropping_json(cropping: Cropping) -> dict[str, int]:
    """Return how much of a conversation was shown."""
    return {
        "shown_characters": cropping.shown,
        "characters": cropping.whole,
        "turns_left_out": cropping.turns,
    }


def trace_of(run: Run) -> orjson.Fragment:
    """Return the whole run, as it is stored."""
    return orjson.Fragment(encode_run(run))


def plan_of(run: Run) -> dict[str, Any]:
    """Return the workflow of a dry run, and what executing it is expected to take.

    Unknown is null.
    """
    round_, expected = run.rounds[-1], run.expected
    steps = round_.workflow.steps if round_.workflow else ()
    plan: dict[str, Any] = {
        "dry_run": True,
        "run_id": run.id,
        "conductor": run.header.conductor,
        "plan": [
            {"worker": step.worker, "subtask": step.subtask, "access": step.access}
            for step in steps
        ],
        "fallback": round_.decision.kind == "malformed",
        "planning_seconds": run.seconds,
    }
    if expected is not None:
        cost = expected.cost
        plan["estimate"] = {
            "calls": expected.usage.calls,
            "input_tokens": expected.usage.input,
            "output_tokens": expected.usage.output,
            "cost_usd": str(cost.usd) if cost.usd or not cost.unpriced_calls else None,
            "unpriced_calls": cost.unpriced_calls,
            "seconds": expected.seconds,
        }
    return plan


class DisconnectReason(Enum):
    """Why a request was ended before its work was done."""

    CLIENT_GONE = "the reader closed the connection"
    CLIENT_SLOW = "the reader did not read"
    SERVER_CLOSING = "the server is shutting down"
    STOPPED = "somebody stopped it on the page"


def _end_error(ended: DisconnectReason | None) -> APIError | None:
    """Return what a reader who is still there is told of an early end."""
    if ended is DisconnectReason.SERVER_CLOSING:
        return server_closing()
    return request_stopped() if ended is DisconnectReason.STOPPED else None


class KeepAlive(Protocol):
    """Work that must be done from time to time while a request lasts."""

    def seconds_until_due(self) -> float:
        """Return the seconds until `tick` is wanted."""
        ...

    async def tick(self) -> DisconnectReason | None:
        """Do it; a reason if the request must end."""
        ...


@final
class RequestScope:
    """One request's work, and what can end it."""

    __slots__ = ("_ended", "_is_done", "prepared", "reason", "scope", "started")

    def __init__(self, scope: anyio.CancelScope, prepared: PreparedCall | None) -> None:
        self.scope = scope
        """Around the work."""
        self.prepared = prepared
        """The call that it runs; None: it tells of a run that goes on without it."""
        self.started = time()
        """Seconds since the epoch."""
        self._is_done = False
        self._ended: anyio.Event | None = None
        self.reason: DisconnectReason | None = None
        """Why it was ended early; None if it was not."""

    def end(self, reason: DisconnectReason) -> None:
        """Cancel the work; the first reason counts."""
        self.reason = self.reason or reason
        self.scope.cancel()

    def close(self) -> None:
        """Let those go who wait for the end."""
        self._is_done = True
        if self._ended is not None:
            self._ended.set()

    async def wait_for_end(self) -> None:
        """Wait until the work is done or has been cancelled, and what it spent is stored."""
        if not self._is_done:
            self._ended = self._ended or anyio.Event()
            await self._ended.wait()


@final
class RequestScopes:
    """The requests that one server is answering."""

    def __init__(self) -> None:
        self._scopes: set[RequestScope] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._scopes)

    def __iter__(self) -> Iterator[RequestScope]:
        return iter(tuple(self._scopes))

    def close(self) -> None:
        """End every request, and each that begins later at once."""
        self._closing = True
        for request in tuple(self._scopes):
            request.end(DisconnectReason.SERVER_CLOSING)

    async def run(
        self,
        receive: Receive,
        work: Callable[[], Awaitable[None]],
        keep_alive: KeepAlive | None = None,
        prepared: PreparedCall | None = None,
    ) -> DisconnectReason | None:
        """Do `work` while somebody waits for it.

        Args:
            receive: of the request.
            work: what is done.
            keep_alive: what is done beside it from time to time.
            prepared: the call that the work runs; None: it runs none.

        Returns:
            None if the work was done; else why it was cancelled.
        """
        request = RequestScope(anyio.CancelScope(), prepared)
        self._scopes.add(request)
        done = False
        try:
            with request.scope:
                if self._closing:
                    request.end(DisconnectReason.SERVER_CLOSING)
                # The standard library's group keeps the same promise for less, as in the engine.
                async with asyncio.TaskGroup() as tasks:
                    watch = tasks.create_task(_watch_connection(receive, request, keep_alive))
                    await work()
                    done = True
                    watch.cancel()
        finally:
            self._scopes.discard(request)
            request.close()
        return None if done else request.reason


async def _watch_connection(
    receive: Receive, scope: RequestScope, keep_alive: KeepAlive | None
) -> None:
    """End the request when its connection does, or when `keep_alive` says so."""
    if keep_alive is None:
        await _wait_for_disconnect(receive)
        scope.end(DisconnectReason.CLIENT_GONE)
        return
    while True:
        with anyio.move_on_after(keep_alive.seconds_until_due()) as patience:
            await _wait_for_disconnect(receive)
        cut = await keep_alive.tick() if patience.cancelled_caught else DisconnectReason.CLIENT_GONE
        if cut is not None:
            scope.end(cut)
            return


async def _wait_for_disconnect(receive: Receive) -> None:
    """Wait until the connection is closed; the body has been read, so nothing else comes."""
    while (await receive())["type"] != "http.disconnect":
        pass


KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
SSE_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def keep_alive_comment() -> bytes:
    """Return the comment of a silent stream whose readers skip comments."""
    return KEEP_ALIVE_COMMENT


@final
class SSEWriter:
    """The way to a reader: writes, knows since when it is silent, and notices a full pipe.

    It sends a sign of life after a long silence, and ends the request if nobody has read for long.
    """

    def __init__(
        self,
        send: Send,
        timeouts: StreamTimeouts,
        keep_alive_frame: Callable[[], bytes] = keep_alive_comment,
    ) -> None:
        self._send = send
        self._timeouts = timeouts
        self._keep_alive_frame = keep_alive_frame
        self._last_write = monotonic()
        self._writing_since: float | None = None

    async def open(self, headers: dict[str, str]) -> None:
        """Send the status and the headers."""
        given = [*SSE_HEADERS, *raw_headers(headers.items())]
        await self._send({"type": "http.response.start", "status": 200, "headers": given})

    async def write(self, frame: bytes) -> None:
        """Send a frame; wait while the reader is slow."""
        self._writing_since = self._writing_since or monotonic()
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self._writing_since = None
        self._last_write = monotonic()

    async def close(self, frame: bytes) -> None:
        """Send the last frame."""
        self._writing_since = self._writing_since or monotonic()
        await self._send({"type": "http.response.body", "body": frame, "more_body": False})

    def seconds_until_due(self) -> float:
        """Return the seconds until the reader must hear something, or must have read."""
        if self._writing_since is None:
            return max(0.0, self._last_write + self._timeouts.keep_alive - monotonic())
        return max(0.0, self._writing_since + self._timeouts.write - monotonic())

    async def tick(self) -> DisconnectReason | None:
        """Return a sign of life if nothing was said for long.

        If nothing was read for long, the end is returned.
        """
        if self.seconds_until_due() > 0:
            return None
        if self._writing_since is not None:
            return DisconnectReason.CLIENT_SLOW
        with anyio.move_on_after(self._timeouts.write) as patience:
            await self.write(self._keep_alive_frame())
        return DisconnectReason.CLIENT_SLOW if patience.cancelled_caught else None


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    """Seconds that a stream waits for things."""

    keep_alive: float = 10.0
    """Silence after which a comment is sent."""
    write: float = 60.0
    """How long a reader may leave what was written unread before it is cut off."""


def event_frame(event: dict[str, Any]) -> bytes:
    """Return the event as it is sent."""
    return encoded_event_frame(event["type"], encode_json(event))


def encoded_event_frame(kind: str, data: bytes) -> bytes:
    """Return an encoded event as it is sent."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


RenderBody = Callable[[Run, Reply], Awaitable[Any]]
"""The body of a run that has an answer, as the dialect writes it."""


class StreamRenderer(Protocol):
    """Streams a run to its reader while it is executed, in the dialect's own events."""

    async def open(self, headers: dict[str, str]) -> None:
        """Send the headers and what is said before anything is planned."""
        ...

    async def on_event(self, event: Event) -> None:
        """Send what is shown of an event of the run."""
        ...

    def matches(self, reply: Reply) -> bool:
        """Return True if the shown text begins that reply."""
        ...

    async def finish(self, run: Run, reply: Reply) -> None:
        """Write the rest, and the end."""
        ...

    async def fail(self, error: APIError) -> None:
        """End an answer that does not exist."""
        ...


@final
class AnswerDelivery:
    """Runs prepared calls for their readers: whole, or as a stream. The same for every dialect."""

    def __init__(
        self, service: RunService, scopes: RequestScopes, timeouts: StreamTimeouts
    ) -> None:
        self.service = service
        self.scopes = scopes
        """The requests that are being answered."""
        self.timeouts = timeouts

    async def send_answer(
        self, prepared: PreparedCall, render: RenderBody, receive: Receive, send: Send
    ) -> None:
        """Run the call and send the body; nothing if the reader went away.

        Raises:
            APIError: the run has no answer, or it or the server was stopped.
        """
        runs: list[Run] = []
        refusals: list[APIError] = []

        async def work() -> None:
            try:
                runs.append(await self.service.execute(prepared))
            except APIError as refusal:  # its key has ended
                refusals.append(refusal)

        ended = await self.scopes.run(receive, work, None, prepared)
        if not runs:
            if (error := next(iter(refusals), None) or _end_error(ended)) is not None:
                raise error.with_headers(prepared.headers)
            return
        run = runs[0]
        headers = {**prepared.headers, **response_headers(run)}
        error = prepared.error_for(run)
        if error is not None or run.reply is None:
            raise (error or internal_error()).with_headers(headers)
        await send_json(send, await render(run, run.reply), 200, headers)

    async def show(
        self,
        caller: Caller,
        receive: Receive,
        work: Callable[[], Awaitable[None]],
        writer: SSEWriter,
    ) -> APIError | None:
        """Show what goes on without its reader, while the reader stays and their key is valid.

        Returns:
            Why it was ended, to be told to a reader who is still there.
        """
        key = caller.watched_key
        if key is None:
            return _end_error(await self.scopes.run(receive, work, writer))
        with self.service.key_watch.watch(key) as reading:
            return _end_error(await self.scopes.run(receive, work, writer))
        return reading.refusal or internal_error()  # its scope was cancelled: the key has ended

    async def stream_answer(
        self,
        prepared: PreparedCall,
        renderer: StreamRenderer,
        keep_alive: KeepAlive | None,
        receive: Receive,
    ) -> None:
        """Run the call as the renderer shows it; tell every end but a reader's leaving."""
        errors: list[APIError] = []

        async def work() -> None:
            await renderer.open(prepared.headers)
            error = await execute_and_render(self.service, prepared, renderer)
            if error is not None:
                errors.append(error)

        try:
            ended = await self.scopes.run(receive, work, keep_alive, prepared)
        except Exception as error:  # noqa: BLE001 - the 200 is out: say it in the stream
            log_exception(error)
            ended = None
            errors.append(internal_error())
        if (end := _end_error(ended)) is not None:
            errors.append(end)
        for error in errors:
            await renderer.fail(error)


async def execute_and_render(
    service: RunService,
    prepared: PreparedCall,
    renderer: StreamRenderer,
    on_event: EventHandler | None = None,
) -> APIError | None:
    """Run the call to its end, as the renderer shows it; else say why there is no answer.

    Args:
        service: runs.
        prepared: what is run.
        renderer: shows the run.
        on_event: who hears the run's events in the renderer's place, and passes them on.
    """
    try:
        run = await service.execute(prepared, on_event or renderer.on_event)
    except APIError as refusal:  # its key has ended
        return refusal
    refusal = prepared.error_for(run)
    if refusal is None and (run.reply is None or not renderer.matches(run.reply)):
        refusal = APIError(502, "upstream_error", "The answer broke off.")
    if refusal is not None or run.reply is None:
        return refusal or internal_error()
    await renderer.finish(run, run.reply)
    return None
