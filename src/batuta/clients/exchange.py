"""One call of one model over HTTP: what all dialects share.

A dialect is a `Wire`: pure functions between our types and its JSON. `exchange` does the rest:
sends, listens, counts, prices, and turns whatever goes wrong into one ClientError.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol, final

from batuta.clients.addresses import parts_of
from batuta.clients.refusals import refusal_in_reply
from batuta.clients.session import Events, Http, Target, at
from batuta.core import Cost, Delta, Finish, Listener, Reply, Request, ToolCall, Usage, Worker
from batuta.core.estimate import estimated
from batuta.core.usage import cost_of
from batuta.errors import BadReply, ClientError, Interrupted, TimedOut

_MISSHAPEN = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What decoding raises when JSON has not the shape of the dialect."""


class Refused(Exception):
    """An error object came in a reply of status 200; raised by a Wire, caught by `exchange`."""

    def __init__(self, payload: Any) -> None:
        super().__init__("an error object in a reply")
        self.payload = payload


@dataclass(frozen=True, slots=True)
class Told:
    """What a provider told, before it is counted and priced."""

    reply: Reply
    usage: Usage | None = None
    """None: the provider told none."""
    usd: Decimal | None = None
    """Dollars, where the provider tells them."""


class Fold(Protocol):
    """Takes a stream's events one by one; pure but for its own state."""

    @property
    def ended(self) -> bool:
        """The end of the reply was announced."""
        ...

    @property
    def closed(self) -> bool:
        """Nothing that matters can follow; reading may stop."""
        ...

    def take(self, event: str, data: bytes) -> Sequence[Delta]:
        """The fragments of one event.

        Raises:
            Refused: the event is an error object.
        """
        ...

    def told(self) -> Told:
        """All that came so far."""
        ...


class Wire(Protocol):
    """A dialect: our types to its JSON and back."""

    @property
    def continues(self) -> bool:
        """Whether `Request.prefill` is honoured."""
        ...

    def body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """The JSON to send.

        Raises:
            ClientError: the dialect cannot say it.
        """
        ...

    def told(self, data: Any) -> Told:
        """A whole reply read.

        Raises:
            Refused: it is an error object.
        """
        ...

    def fold(self) -> Fold:
        """An empty reply, to be filled by events."""
        ...


@dataclass(frozen=True, slots=True)
class Line:
    """A worker, its dialect and the addresses at which it is called."""

    worker: Worker
    wire: Wire
    http: Http
    plain: Target
    stream: Target


async def exchange(line: Line, request: Request, listener: Listener) -> Reply:
    """The reply of the line's worker, counted and priced.

    If the dialect honours `request.prefill`, the reply's text starts with it.

    Raises:
        ClientError: no usable reply; with the usage and cost that are known or estimated if the
            provider had already begun to answer.
    """
    request = replace(request, sampling=request.sampling.over(line.worker.sampling))
    body = line.wire.body(request, stream=listener.streaming)
    if listener.streaming:
        told = await _streamed(line, request, body, listener)
    else:
        told = await _whole(line, request, body)
    return _settled(line, request, told)


async def _whole(line: Line, request: Request, body: dict[str, Any]) -> Told:
    try:
        data = await line.http.post(line.plain, body)
        try:
            return line.wire.told(data)
        except Refused as error:
            failure = _refused(line.plain, error)
        except _MISSHAPEN:
            failure = BadReply("the provider answered with JSON that is not in its dialect")
        raise at(line.plain, failure)
    except (TimedOut, Interrupted, BadReply) as error:
        # The provider had taken the prompt and may charge for it.
        _attach(error, line, request, Told(Reply("")))
        raise


async def _streamed(line: Line, request: Request, body: dict[str, Any], listener: Listener) -> Told:
    fold = line.wire.fold()
    try:
        with await line.http.stream(line.stream, body) as events:
            if line.wire.continues and request.prefill:
                await listener.spoke(Delta(text=request.prefill))
            await _listen(line, fold, events, listener)
            await events.drain()
            return fold.told()
    except (TimedOut, Interrupted, BadReply) as error:
        _attach(error, line, request, fold.told())
        raise
    except ClientError as error:
        if fold.told().reply.text or fold.told().usage:
            _attach(error, line, request, fold.told())
        raise


async def _listen(line: Line, fold: Fold, events: Events, listener: Listener) -> None:
    """Feeds `fold` until its reply is closed, or the connection ends after its announced end."""
    while not fold.closed:
        batch = await events.batch()
        if batch is None:
            if fold.ended:
                return
            broken = Interrupted("the provider ended its reply in the middle")
            raise at(events.target, broken)
        for event, data in batch:
            for delta in _taken(line, fold, event, data):
                await listener.spoke(delta)


def _taken(line: Line, fold: Fold, event: str, data: bytes) -> Sequence[Delta]:
    target = line.stream
    try:
        return fold.take(event, data)
    except Refused as error:
        failure = _refused(target, error)
    except _MISSHAPEN:
        failure = BadReply("the provider streamed an event that is not in its dialect")
    raise at(target, failure)


def _refused(target: Target, error: Refused) -> ClientError:
    return refusal_in_reply(error.payload, target.key, parts_of(target.url))


def _settled(line: Line, request: Request, told: Told) -> Reply:
    """The reply with its prefill, usage and cost."""
    reply = told.reply
    usage = told.usage or estimated(request, reply)
    text = request.prefill + reply.text if line.wire.continues else reply.text
    return Reply(
        text=text,
        reasoning=reply.reasoning,
        tool_calls=reply.tool_calls,
        usage=usage,
        cost=_cost(line, usage, told),
        finish=reply.finish,
        model=reply.model or line.worker.model,
    )


def _attach(error: ClientError, line: Line, request: Request, told: Told) -> None:
    error.usage = told.usage or estimated(request, told.reply)
    error.cost = _cost(line, error.usage, told)


def _cost(line: Line, usage: Usage, told: Told) -> Cost:
    return cost_of(usage, line.worker.price) if told.usd is None else Cost(told.usd)


@final
class Calls:
    """The tool calls of a reply as their fragments come."""

    __slots__ = ("_arguments", "_ids", "_names")

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._names: list[str] = []
        self._arguments: list[list[str]] = []

    def __len__(self) -> int:
        return len(self._ids)

    def open(self, call_id: str, name: str, arguments: str = "") -> Delta:
        """A new call; one without an id is given one."""
        self._ids.append(call_id or f"call_{secrets.token_hex(8)}")
        self._names.append(name)
        self._arguments.append([arguments])
        return Delta(
            tool_index=len(self) - 1,
            tool_id=self._ids[-1],
            tool_name=name,
            tool_arguments=arguments,
        )

    def more(self, index: int, arguments: str) -> Delta:
        """More of a call's arguments."""
        self._arguments[index].append(arguments)
        return Delta(tool_index=index, tool_arguments=arguments)

    def id(self, index: int) -> str:
        """The id of a call."""
        return self._ids[index]

    def all(self) -> tuple[ToolCall, ...]:
        """The calls so far; one without arguments has an empty object."""
        rows = zip(self._ids, self._names, self._arguments, strict=True)
        return tuple(ToolCall(i, name, "".join(parts) or "{}") for i, name, parts in rows)


def lowest(*caps: int | None) -> int | None:
    """The lowest of the caps that there are; None: there is none."""
    return min((cap for cap in caps if cap is not None), default=None)


def finish_of(finish: Finish, calls: Sequence[ToolCall]) -> Finish:
    """`finish`, or TOOL_CALLS where a provider says `stop` although it calls tools."""
    return Finish.TOOL_CALLS if calls and finish is Finish.STOP else finish
