"""A client that runs the calls of a tool itself and asks its model again with what came out."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, cast, final

from batuta.core import (
    CallListener,
    Client,
    Delta,
    Finish,
    Message,
    Price,
    Reply,
    Request,
    Role,
    ServerCall,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Worker,
    WorkerId,
)
from batuta.core.conductor import NULL_LISTENER, TurnListener
from batuta.core.run import Failure
from batuta.core.server_tools import SearchWish, ServerTool
from batuta.errors import ClientError, LimitReachedError
from batuta.tools.domains import DomainRules
from batuta.tools.source import ToolContext, ToolError, ToolSource, call_tool
from batuta.usage import ZERO_COST, ZERO_USAGE

USED_UP = "max_uses_exceeded"
UNAVAILABLE = "unavailable"
NO_MORE = "No more searches are allowed: answer with what you have."
SEPARATOR = "\n\n"
"""It stands between what a model says before a search and after it."""


def open_server_tool(source: ToolSource, max_uses: int) -> ServerTool:
    """Return the source as a tool that the server runs for its models."""

    def wrap_client(client: Client, worker: Worker, wish: SearchWish) -> Client:
        most = max_uses if wish.max_uses is None else min(max_uses, wish.max_uses)
        return ServerToolClient(client, worker, source, wish=wish, max_uses=most)

    tool = Tool(name=source.name, description=source.description, parameters=source.schema)
    return ServerTool(tool=tool, wrap_client=wrap_client)


@final
class _TurnListener:
    """Hears one turn of a model; the calls that the server runs are nobody else's business."""

    def __init__(self, listener: CallListener, name: str) -> None:
        self._listener = listener
        self._name = name
        self._is_own: dict[tuple[int, int], bool] = {}

    @property
    def streaming(self) -> bool:
        """Whether fragments are wanted."""
        return self._listener.streaming

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """Pass it on."""
        return await self._listener.before_call(request, worker)

    async def on_delta(self, delta: Delta) -> None:
        """Pass on what is not of a call that the server runs."""
        if delta.tool_index is not None:
            place = (delta.choice, delta.tool_index)
            if self._is_own.setdefault(place, delta.tool_name == self._name):
                return
        await self._listener.on_delta(delta)

    async def on_failure(self, failure: Failure) -> None:
        """The attempt begins anew."""
        self._is_own.clear()
        await self._listener.on_failure(failure)


@dataclass(slots=True)
class _Loop:
    """The turns so far as one reply."""

    reply: Reply
    calls: tuple[ServerCall, ...] = ()

    def add(self, turn: Reply) -> None:
        """Take in the next turn."""
        before = self.reply
        self.reply = replace(
            turn,
            text=before.text + turn.text,
            reasoning=before.reasoning + turn.reasoning,
            thoughts=(*before.thoughts, *turn.thoughts),
            usage=before.usage + turn.usage,
            cost=before.cost + turn.cost,
        )

    @property
    def found(self) -> int:
        """Results so far."""
        return sum(len(call.citations) for call in self.calls)


@final
class ServerToolClient:
    """A Client around a worker's: it runs the calls of one tool, a bounded number of them."""

    def __init__(
        self,
        client: Client,
        worker: Worker,
        source: ToolSource,
        *,
        wish: SearchWish,
        max_uses: int,
    ) -> None:
        """Calls nothing yet.

        Args:
            client: the model's.
            worker: the model.
            source: the tool.
            wish: the caller's rules for it.
            max_uses: calls of it, at most; further ones are answered by a sentence.
        """
        self._client = client
        self._worker = worker
        self._source = source
        self._wish = wish
        self._max_uses = max_uses
        free, price = Decimal(0), source.price
        self._tool_worker = Worker(
            id=WorkerId(source.name),
            model=source.name,
            price=None if price is None else Price(input=free, output=free, call=price),
        )

    def __repr__(self) -> str:
        return f"ServerToolClient({self._client!r}, {self._source.name})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Reply when the model calls the tool no more.

        Raises:
            ClientError: the model gave no usable reply; it knows what was paid before.
        """
        name = self._source.name
        if request.tool_choice == "none" or all(tool.name != name for tool in request.tools):
            return await self._client.complete(request, listener)
        loop = _Loop(Reply(text="", usage=ZERO_USAGE, cost=ZERO_COST))
        asked = replace(request, tool_choice=name) if self._wish.is_forced else request
        while True:
            turn = await self._next_turn(asked, listener, loop)
            own = tuple(call for call in turn.tool_calls if call.name == name)
            others = tuple(call for call in turn.tool_calls if call.name != name)
            loop.add(replace(turn, tool_calls=others))
            if not own or others:
                return replace(loop.reply, server_calls=loop.calls)
            if turn.text and not turn.text.endswith("\n"):
                loop.reply = replace(loop.reply, text=loop.reply.text + SEPARATOR)
                if listener.streaming:
                    await listener.on_delta(Delta(text=SEPARATOR))
            if isinstance(listener, TurnListener):
                listener.note_turns(loop.reply.usage, loop.reply.cost)
            results = [await self._run_call(call, listener, loop) for call in own]
            told = _told_turn(turn, own, results)
            is_over = len(loop.calls) > self._max_uses  # it was told, and asked again
            choice = "none" if is_over else request.tool_choice
            asked = replace(asked, messages=(*asked.messages, *told), tool_choice=choice)
            try:
                asked = await listener.before_call(asked, self._worker)
            except LimitReachedError:  # what was paid for is told, and counted
                return replace(loop.reply, finish=Finish.LENGTH, server_calls=loop.calls)

    async def _next_turn(self, asked: Request, listener: CallListener, loop: _Loop) -> Reply:
        """Ask the model once.

        Raises:
            ClientError: with what the turns before have cost.
        """
        try:
            return await self._client.complete(asked, _TurnListener(listener, self._source.name))
        except ClientError as error:
            if loop.reply.usage.calls:
                error.usage = loop.reply.usage + (error.usage or ZERO_USAGE)
                error.cost = loop.reply.cost + (error.cost or ZERO_COST)
            raise

    async def _run_call(self, call: ToolCall, listener: CallListener, loop: _Loop) -> str:
        """Run one call and tell of it; the result is for the model."""
        done = ServerCall(
            id=call.id,
            name=call.name,
            query=_find_query(call.arguments),
            at=len(loop.reply.text),
        )
        if len(loop.calls) >= self._max_uses:
            done, text = replace(done, error=USED_UP), NO_MORE
        else:
            done, text = await self._search(call, done, listener, loop)
        loop.calls = (*loop.calls, done)
        if listener.streaming:
            await listener.on_delta(Delta(server_call=done))
        return text

    async def _search(
        self, call: ToolCall, done: ServerCall, listener: CallListener, loop: _Loop
    ) -> tuple[ServerCall, str]:
        """Call the tool within the run's limits and the caller's domains."""
        rules = DomainRules(allow=self._wish.allow, deny=self._wish.deny)
        context = ToolContext(domains=rules, first_number=loop.found + 1)
        try:
            await listener.before_call(Request(messages=()), self._tool_worker)
            output = await call_tool(self._source, call.arguments, context)
        except LimitReachedError as error:
            return replace(done, error=USED_UP), f"Nothing was searched: {error}."
        except ToolError as error:
            loop.reply = replace(loop.reply, cost=loop.reply.cost + error.cost)
            return replace(done, error=UNAVAILABLE), f"Nothing was found: {error}."
        loop.reply = replace(loop.reply, cost=loop.reply.cost + output.cost)
        return replace(done, citations=output.citations), output.text


def _told_turn(turn: Reply, calls: tuple[ToolCall, ...], results: list[str]) -> tuple[Message, ...]:
    """Return the model's turn and what came out of its calls, as messages."""
    said = (Text(turn.text),) if turn.text else ()
    spoken = Message(
        role=Role.ASSISTANT,
        parts=(*said, *calls),
        reasoning=turn.reasoning,
        thoughts=turn.thoughts,
    )
    told = (
        Message(role=Role.TOOL, parts=(ToolResult(call_id=call.id, content=result),))
        for call, result in zip(calls, results, strict=True)
    )
    return (spoken, *told)


def _find_query(arguments: str) -> str:
    """Return what the model searches for, as far as its arguments say."""
    try:
        read: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return ""
    query = cast("dict[str, Any]", read).get("query") if isinstance(read, dict) else None
    return query[:400] if isinstance(query, str) else ""
