"""Runs a prepared call for its client, whole or streamed, and describes how it was answered.

A request is cancelled when its client disconnects or reads a stream too slowly, when a person stops
it on the page, when its key becomes invalid, and when the server stops.
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

_REPORTED_OUTCOMES = {Outcome.DEGRADED, Outcome.FALLBACK, Outcome.LIMITED, Outcome.UNSURE}
"""Outcomes that are always reported with the answer."""


def response_headers(run: Run) -> dict[str, str]:
    """Return the headers about a run; a wholly unknown cost is left out instead of shown as 0."""
    headers = {"x-batuta-run-id": str(run.id), "x-batuta-outcome": run.outcome.value}
    cost = run.cost
    if cost.unpriced_calls:
        headers["x-batuta-unpriced-calls"] = str(cost.unpriced_calls)
    if not cost.is_unknown:
        headers["x-batuta-cost-usd"] = f"{cost.usd:f}"
    if run.confidence is not None:
        headers["x-batuta-confidence"] = f"{run.confidence:g}"
    if (fault := _conductor_fault(run)) is not None:
        headers["x-batuta-conductor"] = fault
    return headers


def _conductor_fault(run: Run) -> str | None:
    """Return why the conductor made no workflow in the last round; None if it decided validly.

    "unreachable": its call failed; "left-alone": it was not called, after failures in a row;
    "no-workflow": its draft was malformed.
    """
    decided = (round_ for round_ in reversed(run.rounds) if not round_.is_aside)
    decision = next((round_.decision for round_ in decided), None)
    if not isinstance(decision, MalformedPlan):
        return None
    if decision.outage and not decision.again:
        return "left-alone"
    return "unreachable" if decision.outage else "no-workflow"


def usage_of(run: Run) -> dict[str, Any]:
    """Return the run's token usage in the form of OpenAI's API.

    `prompt_tokens` and `completion_tokens` are those of the call that gave the answer. All other
    calls (the conductor's, other steps', failed attempts') are `orchestration_…`. `total_tokens`
    is the sum of all.
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
    """Return the field `orchestration`, which describes how the answer was made.

    For a dry run the field has the plan and its estimate; with `trace` the whole run, as stored.
    Otherwise the result is empty, unless the outcome is one of `_REPORTED_OUTCOMES`, the answer was
    cached, its confidence is known, the conductor saw only a part of the conversation, or programs
    wrote files.
    """
    if run.outcome is Outcome.PLANNED:
        return {"orchestration": plan_of(run)}
    if trace:
        return {"orchestration": orjson.Fragment(encode_run(run))}
    cropping = next((c for round_ in run.rounds if (c := round_.decision.draft.cropping)), None)
    extra: dict[str, Any] = {}
    if run.header.parent is not None and not run.rounds:
        extra["answer_of"] = run.header.parent
    if run.confidence is not None:
        extra["confidence"] = run.confidence
    if files := written_files(run):
        extra["files"] = files
    if cropping is not None:
        extra["cropped"] = cropping_json(cropping)
    if run.outcome not in _REPORTED_OUTCOMES and not extra:
        return {}
    summary = {"run_id": run.id, "outcome": run.outcome.value, "limit": run.limit}
    return {"orchestration": {**summary, **extra}}


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
    """Return how much of a conversation the conductor was shown."""
    return {
        "shown_characters": cropping.shown,
        "characters": cropping.whole,
        "turns_left_out": cropping.turns,
    }


def plan_of(run: Run) -> dict[str, Any]:
    """Return the workflow of a dry run, with its estimate if there is one.

    Unknown values are null. `fallback` is true if the conductor's draft was malformed and the
    workflow is the fallback's.
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
            "cost_usd": None if cost.is_unknown else str(cost.usd),
            "unpriced_calls": cost.unpriced_calls,
            "seconds": expected.seconds,
        }
    return plan


class CancelReason(Enum):
    """Why a request was cancelled."""

    CLIENT_GONE = "the client closed the connection"
    CLIENT_SLOW = "the client did not read"
    SERVER_CLOSING = "the server is shutting down"
    STOPPED = "a user stopped it on the page"


def _end_error(ended: CancelReason | None) -> APIError | None:
    """Return the error for a client that is still connected; None if it has disconnected."""
    if ended is CancelReason.SERVER_CLOSING:
        return server_closing()
    return request_stopped() if ended is CancelReason.STOPPED else None


class KeepAlive(Protocol):
    """Periodic work during a request."""

    def seconds_until_due(self) -> float:
        """Return the seconds until `tick` must be called."""
        ...

    async def tick(self) -> CancelReason | None:
        """Do the work; return a reason if the request must be cancelled."""
        ...


@final
class RequestScope:
    """The work of one request, which can be cancelled."""

    __slots__ = ("_ended", "_is_done", "prepared", "reason", "scope", "started")

    def __init__(self, scope: anyio.CancelScope, prepared: PreparedCall | None) -> None:
        self.scope = scope
        """The cancel scope around the work."""
        self.prepared = prepared
        """The call that the request runs; None: the request only shows a run, which continues."""
        self.started = time()
        """Seconds since the epoch."""
        self._is_done = False
        self._ended: anyio.Event | None = None
        self.reason: CancelReason | None = None
        """Why the work was cancelled; None if it was not."""

    def end(self, reason: CancelReason) -> None:
        """Cancel the work; the first reason counts."""
        self.reason = self.reason or reason
        self.scope.cancel()

    def close(self) -> None:
        """Wake the tasks in `wait_for_end`."""
        self._is_done = True
        if self._ended is not None:
            self._ended.set()

    async def wait_for_end(self) -> None:
        """Wait until the work is done or cancelled, and its cost is stored."""
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
        """Cancel every request, including later ones."""
        self._closing = True
        for request in tuple(self._scopes):
            request.end(CancelReason.SERVER_CLOSING)

    async def run(
        self,
        receive: Receive,
        work: Callable[[], Awaitable[None]],
        keep_alive: KeepAlive | None = None,
        prepared: PreparedCall | None = None,
    ) -> CancelReason | None:
        """Do `work` while the client is connected.

        Args:
            receive: the request's ASGI `receive`.
            work: the work.
            keep_alive: periodic work beside `work`, if any.
            prepared: the call that the work runs, if any.

        Returns:
            None if the work was done; else why the work was cancelled.

        Raises:
            ExceptionGroup: the work failed; it has the error.
        """
        request = RequestScope(anyio.CancelScope(), prepared)
        self._scopes.add(request)
        done = False
        try:
            with request.scope:
                if self._closing:
                    request.end(CancelReason.SERVER_CLOSING)
                # The standard library's task group suffices and costs less, as in the engine.
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
    """Cancel the request when its client disconnects, or when `keep_alive` returns a reason."""
    if keep_alive is None:
        await _wait_for_disconnect(receive)
        scope.end(CancelReason.CLIENT_GONE)
        return
    while True:
        reason: CancelReason | None = CancelReason.CLIENT_GONE
        with anyio.move_on_after(keep_alive.seconds_until_due()) as timeout:
            await _wait_for_disconnect(receive)
        if timeout.cancelled_caught:
            reason = await keep_alive.tick()
        if reason is not None:
            scope.end(reason)
            return


async def _wait_for_disconnect(receive: Receive) -> None:
    """Wait until the connection is closed; the body has been read, so nothing else arrives."""
    while (await receive())["type"] != "http.disconnect":
        pass


KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
"""A comment that keeps an idle stream open; clients skip comments."""
SSE_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


@final
class SSEWriter:
    """Writes server-sent events to a client.

    As the `KeepAlive` of a request, the writer sends a keep-alive frame after a long silence, and
    cancels the request of a client that has not read for long.
    """

    def __init__(
        self,
        send: Send,
        timeouts: StreamTimeouts,
        keep_alive_frame: Callable[[], bytes] = lambda: KEEP_ALIVE_COMMENT,
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
        """Send a frame; wait while the client is slow."""
        self._writing_since = self._writing_since or monotonic()
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self._writing_since = None
        self._last_write = monotonic()

    async def close(self, frame: bytes) -> None:
        """Send the last frame."""
        self._writing_since = self._writing_since or monotonic()
        await self._send({"type": "http.response.body", "body": frame, "more_body": False})

    def seconds_until_due(self) -> float:
        """Return the seconds until a keep-alive is due or, while writing, until the timeout."""
        if self._writing_since is None:
            return max(0.0, self._last_write + self._timeouts.keep_alive - monotonic())
        return max(0.0, self._writing_since + self._timeouts.write - monotonic())

    async def tick(self) -> CancelReason | None:
        """Send a keep-alive frame if due; return `CLIENT_SLOW` if the client has not read."""
        if self.seconds_until_due() > 0:
            return None
        if self._writing_since is not None:
            return CancelReason.CLIENT_SLOW
        with anyio.move_on_after(self._timeouts.write) as timeout:
            await self.write(self._keep_alive_frame())
        return CancelReason.CLIENT_SLOW if timeout.cancelled_caught else None


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    """Timeouts of a stream, in seconds."""

    keep_alive: float = 10.0
    """Silence after which a keep-alive frame is sent."""
    write: float = 60.0
    """How long a client may leave written data unread before it is disconnected."""


def event_frame(event: dict[str, Any]) -> bytes:
    """Return the server-sent event of a JSON object, which has its type in the field `type`."""
    return encoded_event_frame(event["type"], encode_json(event))


def encoded_event_frame(kind: str, data: bytes) -> bytes:
    """Return the server-sent event of this kind with the encoded data."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


RenderBody = Callable[[Run, Reply], Awaitable[Any]]
"""Returns the response body of an answered run in the client's dialect."""


class StreamRenderer(Protocol):
    """Streams a run to its client while it is executed, in the dialect's events."""

    async def open(self, headers: dict[str, str]) -> None:
        """Send the headers and the dialect's first events."""
        ...

    async def on_event(self, event: Event) -> None:
        """Send the visible part of an event of the run."""
        ...

    def matches(self, reply: Reply) -> bool:
        """Return True if the text sent so far is a prefix of the reply."""
        ...

    async def finish(self, run: Run, reply: Reply) -> None:
        """Send the rest of the reply, and end the stream."""
        ...

    async def fail(self, error: APIError) -> None:
        """Send the error, and end the stream."""
        ...


@final
class AnswerDelivery:
    """Runs prepared calls and sends their answers, whole or as a stream, in every dialect."""

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
        """Run the call and send the body; send nothing if the client has disconnected.

        Raises:
            APIError: the run has no answer or was stopped, its key is no longer valid, or the
                server is stopping.
        """
        runs: list[Run] = []
        refusals: list[APIError] = []

        async def work() -> None:
            try:
                runs.append(await self.service.execute(prepared))
            except APIError as refusal:  # its key is no longer valid
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
        """Show a run that continues by itself, while the client is connected and its key valid.

        Returns:
            The error for a client that is still connected, if the stream was cancelled; else None.
        """
        key = caller.watched_key
        if key is None:
            return _end_error(await self.scopes.run(receive, work, writer))
        with self.service.key_watch.watch(key) as reading:
            return _end_error(await self.scopes.run(receive, work, writer))
        return reading.refusal or internal_error()  # reached only if the key is no longer valid

    async def stream_answer(
        self,
        prepared: PreparedCall,
        renderer: StreamRenderer,
        keep_alive: KeepAlive | None,
        receive: Receive,
    ) -> None:
        """Run the call and stream it; report every failure, unless the client has disconnected."""
        errors: list[APIError] = []

        async def work() -> None:
            await renderer.open(prepared.headers)
            error = await execute_and_render(self.service, prepared, renderer)
            if error is not None:
                errors.append(error)

        try:
            ended = await self.scopes.run(receive, work, keep_alive, prepared)
        except Exception as error:  # noqa: BLE001 - status 200 was sent: report it in the stream
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
    """Run the call and stream it; return the error, which is not sent.

    There is an error if there is no answer, or if the answer does not continue the text that was
    already streamed.

    Args:
        service: executes the call.
        prepared: the call.
        renderer: streams the run.
        on_event: receives the run's events and must pass them to the renderer; None: the renderer
            receives them directly.
    """
    try:
        run = await service.execute(prepared, on_event or renderer.on_event)
    except APIError as refusal:  # its key is no longer valid
        return refusal
    refusal = prepared.error_for(run)
    if refusal is None and (run.reply is None or not renderer.matches(run.reply)):
        refusal = APIError(502, "upstream_error", "The answer broke off.")
    if refusal is not None or run.reply is None:
        return refusal or internal_error()
    await renderer.finish(run, run.reply)
    return None
