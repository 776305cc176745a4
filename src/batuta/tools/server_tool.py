"""A client that runs the calls of tools itself and asks its model again with what came out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, cast, final

import anyio

from batuta.clients.native_search import UNAVAILABLE, USED_UP, find_native
from batuta.core import (
    CallListener,
    Client,
    Delta,
    Finish,
    Message,
    NativeSearch,
    Price,
    Reply,
    Request,
    Role,
    Sampling,
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
from batuta.core.server_tools import WEB_SEARCH, RequestedTool, ServerTools
from batuta.errors import ClientError, LimitReachedError
from batuta.sandbox.notebook import tell_written
from batuta.tools.domains import ANY_DOMAIN, DomainRules
from batuta.tools.source import ToolContext, ToolError, ToolOutput, ToolSource, call_tool
from batuta.usage import ZERO_COST, ZERO_USAGE

NO_MORE = "No more calls of {name} are allowed: answer with what you have."
SEPARATOR = "\n\n"
"""It stands between what a model says before a call and after it."""
SEARCH_DESCRIPTION = "Searches the web."
SEARCH_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
_SHORTEST = Sampling(max_tokens=1)
MAX_SHOWN = 50_000
"""Characters that are kept of what a call was made with."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that clients may ask for."""

    open_source: Callable[[RequestedTool | None], ToolSource]
    """Opens it for one worker of one run, since some remember what they did; None: to be shown."""
    max_uses: int
    """Calls in one call of a model, at most."""


@dataclass(frozen=True, slots=True)
class _GrantedTool:
    """A tool that a client asked for."""

    source: ToolSource
    requested: RequestedTool
    max_uses: int

    @property
    def worker(self) -> Worker:
        """The tool as what is asked for a place under the run's limits."""
        free, price = Decimal(0), self.source.price
        return Worker(
            id=WorkerId(self.source.name),
            model=self.source.name,
            price=None if price is None else Price(input=free, output=free, call=price),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOffer:
    """The search that the providers of some workers run by themselves."""

    max_uses: int
    """Searches in one call of a model, at most."""
    domains: DomainRules = ANY_DOMAIN
    """The operator's domains, which hold beside the client's."""

    def grant(self, requested: RequestedTool) -> NativeSearch | None:
        """Return the search that a client asked for; None: it may be had nowhere."""
        most = (
            self.max_uses if requested.max_uses is None else min(self.max_uses, requested.max_uses)
        )
        client, allow = DomainRules(allow=requested.allow, deny=requested.deny), self.domains.allow
        if requested.allow:
            allow = tuple(
                each for each in requested.allow if self.domains.permit(_address_of(each))
            )
            narrower = (each for each in self.domains.allow if client.permit(_address_of(each)))
            allow = tuple(dict.fromkeys((*allow, *narrower)))
            if not allow:
                return None
        deny = tuple(dict.fromkeys((*self.domains.deny, *requested.deny)))
        if allow and deny:
            rules = DomainRules(allow=allow, deny=deny)
            allow = tuple(each for each in allow if rules.permit(_address_of(each)))
            deny = tuple(
                each for each in deny if DomainRules(allow=allow).permit(_address_of(each))
            )
            if not allow:
                return None
        return NativeSearch(max_uses=most, allow=allow, deny=deny)


def _address_of(entry: str) -> str:
    """Return an address that an entry of a list of domains holds."""
    return f"https://{entry.rpartition('://')[2].removeprefix('*.').removeprefix('.')}"


def open_server_tools(
    offered: Sequence[OfferedTool], native: NativeOffer | None = None
) -> ServerTools:
    """Return the tools that the server runs for its models.

    Args:
        offered: the tools that it runs itself.
        native: the search that providers run; None: none does.
    """
    first = [each.open_source(None) for each in offered]
    by_name = {source.name: tool for source, tool in zip(first, offered, strict=True)}

    def wrap_client(
        client: Client, worker: Worker, requested_tools: tuple[RequestedTool, ...]
    ) -> Client:
        granted: dict[str, _GrantedTool] = {}
        searches: dict[str, NativeSearch | None] = {}
        for requested in requested_tools:
            if native is not None and requested.tool in worker.native_tools:
                searches[requested.tool] = native.grant(requested)
                continue
            tool = by_name.get(requested.tool)
            if tool is None:
                searches[requested.tool] = None
                continue
            most = (
                tool.max_uses
                if requested.max_uses is None
                else min(tool.max_uses, requested.max_uses)
            )
            granted[requested.tool] = _GrantedTool(tool.open_source(requested), requested, most)
        forced = next(
            (requested.tool for requested in requested_tools if requested.is_forced), None
        )
        return ServerToolClient(client, worker, granted, native=searches, forced=forced)

    tools = {
        source.name: Tool(
            name=source.name, description=source.description, parameters=source.schema
        )
        for source in first
    }
    lacking = () if native is None or WEB_SEARCH in tools else (WEB_SEARCH,)
    for name in lacking:
        tools[name] = Tool(name=name, description=SEARCH_DESCRIPTION, parameters=SEARCH_SCHEMA)
    return ServerTools(tools=tools, wrap_client=wrap_client, native_only=frozenset(lacking))


@final
class _TurnListener:
    """Hears one turn of a model; the calls that the server runs are nobody else's business."""

    def __init__(self, listener: CallListener, names: Mapping[str, object]) -> None:
        self._listener = listener
        self._names = names
        self._is_own: dict[tuple[int, int], bool] = {}

    @property
    def streaming(self) -> bool:
        """Return True if fragments are wanted."""
        return self._listener.streaming

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """Pass it on."""
        return await self._listener.before_call(request, worker)

    async def on_delta(self, delta: Delta) -> None:
        """Pass on what is not of a call that the server runs."""
        if delta.tool_index is not None:
            place = (delta.choice, delta.tool_index)
            if self._is_own.setdefault(place, delta.tool_name in self._names):
                return
        await self._listener.on_delta(delta)

    async def on_failure(self, failure: Failure) -> None:
        """Begin the attempt anew."""
        self._is_own.clear()
        await self._listener.on_failure(failure)


@dataclass(slots=True, kw_only=True)
class _Loop:
    """The turns so far as one reply."""

    reply: Reply
    texts: list[str]
    """The texts that named addresses."""
    calls: tuple[ServerCall, ...] = ()
    uses: Counter[str] = field(default_factory=Counter[str])
    began: float = field(default_factory=anyio.current_time)

    def add(self, turn: Reply) -> None:
        """Take in the next turn, with what its provider has searched for."""
        before = self.reply
        at = len(before.text)
        self.calls += tuple(replace(call, at=at + call.at) for call in turn.server_calls)
        self.uses.update(call.name for call in turn.server_calls)
        self.texts += [page.url for call in turn.server_calls for page in call.citations]
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
        """Pages so far."""
        return sum(len(call.citations) for call in self.calls)


@final
class ServerToolClient:
    """Calls tools for its model: as often as is allowed, each turn and each call within the limits.

    The turns are one reply: its text is what the model said in all of them, its usage and cost are
    the sums, its `server_calls` say what was done. A client's own tools end it, as they do without.
    """

    def __init__(
        self,
        client: Client,
        worker: Worker,
        granted: Mapping[str, _GrantedTool],
        *,
        native: Mapping[str, NativeSearch | None],
        forced: str | None,
    ) -> None:
        """Call nothing yet.

        Args:
            client: asks the model.
            worker: whose model it is, for the limits of each turn.
            granted: the tools, by the names that models know.
            native: those that its provider runs; None: nobody runs it for this worker.
            forced: the tool that it must call before it answers, if it has it.
        """
        self._native = native
        self._forced = forced
        self._client = client
        self._worker = worker
        self._granted = granted

    def __repr__(self) -> str:
        return f"ServerToolClient({self._client!r}, {', '.join(self._granted)})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Reply when the model calls the tools no more.

        Raises:
            ClientError: the model gave no usable reply; it knows what was paid before.
        """
        if self._native:
            request = await self._with_native(request, listener)
        offered = {tool.name for tool in request.tools}
        searches = find_native(request.tools) is not None
        if request.tool_choice == "none" or not (searches or offered & self._granted.keys()):
            return await self._client.complete(request, listener)
        forced = self._forced in offered
        asked = replace(request, tool_choice=self._forced) if forced else request
        texts = [text for message in request.messages for text in _message_texts(message)]
        loop = _Loop(reply=Reply(text="", usage=ZERO_USAGE, cost=ZERO_COST), texts=texts)
        while own := await self._take_turn(asked, listener, loop):
            turn, calls = own
            results = [await self._run_call(call, listener, loop) for call in calls]
            answered = _told_turn(turn, calls, results)
            choice = "none" if self._is_over(loop) else request.tool_choice
            asked = _less_native(asked, len(turn.server_calls))
            asked = replace(asked, messages=(*asked.messages, *answered), tool_choice=choice)
            try:
                asked = await listener.before_call(asked, self._worker)
            except LimitReachedError:  # what was paid for is told, and counted
                return replace(loop.reply, finish=Finish.LENGTH, server_calls=loop.calls)
        return replace(loop.reply, server_calls=loop.calls)

    async def _take_turn(
        self, asked: Request, listener: CallListener, loop: _Loop
    ) -> tuple[Reply, tuple[ToolCall, ...]] | None:
        """Ask the model once; return its turn and the calls to run, None if there are none.

        Raises:
            ClientError: with what the turns before have cost.
        """
        names = self._granted
        turn = await self._next_turn(asked, listener, loop)
        own = tuple(call for call in turn.tool_calls if call.name in names)
        others = tuple(call for call in turn.tool_calls if call.name not in names)
        loop.add(replace(turn, tool_calls=others))
        if not own or others:
            return None
        if turn.text and not turn.text.endswith("\n"):
            loop.reply = replace(loop.reply, text=loop.reply.text + SEPARATOR)
            if listener.streaming:
                await listener.on_delta(Delta(text=SEPARATOR))
        if isinstance(listener, TurnListener):
            listener.note_turns(loop.reply.usage, loop.reply.cost)
        return turn, own

    async def _with_native(self, request: Request, listener: CallListener) -> Request:
        """Return the request whose provider runs the tools that it has by itself.

        As many searches as the limits allow are reserved; a tool that nobody runs is left out.
        """
        tools: list[Tool] = []
        for tool in request.tools:
            if tool.name not in self._native:
                tools.append(tool)
            elif search := await self._reserve_search(tool, listener, request):
                tools.append(search)
        names = {tool.name for tool in tools} | {None, "auto", "none", "required"}
        choice = request.tool_choice if tools and request.tool_choice in names else None
        return replace(request, tools=tuple(tools), tool_choice=choice)

    async def _reserve_search(
        self, tool: Tool, listener: CallListener, request: Request
    ) -> Tool | None:
        """Return the tool with the searches that may be paid for; None if it is none."""
        wanted = self._native[tool.name]
        if wanted is None or request.tool_choice == "none":
            return None
        for uses in range(wanted.max_uses, 0, -1):
            search = replace(tool, native=replace(wanted, max_uses=uses))
            reserved = Request(messages=(), sampling=_SHORTEST, tools=(search,))
            try:
                await listener.before_call(reserved, self._worker)
            except LimitReachedError:
                continue
            return search
        return None

    def _is_over(self, loop: _Loop) -> bool:
        """Return True if the model was told that a tool's calls are used up, and called again."""
        return any(loop.uses[name] > tool.max_uses for name, tool in self._granted.items())

    async def _next_turn(self, asked: Request, listener: CallListener, loop: _Loop) -> Reply:
        """Ask the model once.

        Raises:
            ClientError: with what the turns before have cost.
        """
        try:
            return await self._client.complete(asked, _TurnListener(listener, self._granted))
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
            query=_find_input(call.arguments),
            at=len(loop.reply.text),
            began=anyio.current_time() - loop.began,
        )
        loop.uses[call.name] += 1
        if loop.uses[call.name] > self._granted[call.name].max_uses:
            done, text = replace(done, error=USED_UP), NO_MORE.format(name=call.name)
        else:
            done, text = await self._call_source(call, done, listener, loop)
            loop.texts.append(text)
        done = replace(done, seconds=anyio.current_time() - loop.began - done.began)
        loop.calls = (*loop.calls, done)
        if listener.streaming:
            await listener.on_delta(Delta(server_call=done))
        return text

    async def _call_source(
        self,
        call: ToolCall,
        done: ServerCall,
        listener: CallListener,
        loop: _Loop,
    ) -> tuple[ServerCall, str]:
        """Call the tool within the run's limits and the caller's domains."""
        tool = self._granted[call.name]
        rules = DomainRules(allow=tool.requested.allow, deny=tool.requested.deny)
        context = ToolContext(
            domains=rules, first_number=loop.found + 1, named_in="\n".join(loop.texts)
        )
        try:
            await listener.before_call(Request(messages=()), tool.worker)
            output = await call_tool(tool.source, call.arguments, context)
        except LimitReachedError as error:
            return replace(done, error=USED_UP), f"{call.name} was not called: {error}."
        except ToolError as error:
            loop.reply = replace(loop.reply, cost=loop.reply.cost + error.cost)
            failed = replace(done, error=UNAVAILABLE, cost=error.cost)
            return failed, f"{call.name} gave nothing: {error}."
        loop.reply = replace(loop.reply, cost=loop.reply.cost + output.cost)
        kept = replace(
            done,
            citations=output.citations,
            output="" if call.name == WEB_SEARCH else output.text,
            failure=output.failure,
            pictures=output.pictures,
            files=output.files,
            cost=output.cost,
        )
        return kept, _told_output(output)


def _less_native(request: Request, searches: int) -> Request:
    """Return the request with that many searches less; without the tool, if none is left."""
    if not searches:
        return request
    tools: list[Tool] = []
    for tool in request.tools:
        if tool.native is None:
            tools.append(tool)
        elif (left := tool.native.max_uses - searches) > 0:
            tools.append(replace(tool, native=replace(tool.native, max_uses=left)))
    return replace(request, tools=tuple(tools))


def _message_texts(message: Message) -> list[str]:
    """Return what a message says, a tool's results among it."""
    results = [part.content for part in message.parts if isinstance(part, ToolResult)]
    return [message.text, *results]


def _told_output(output: ToolOutput) -> str:
    """Return the output as its model reads it."""
    drawn = len(output.pictures)
    shown = f"[{drawn} picture{'s' * (drawn > 1)} drawn: the user sees them]" if drawn else ""
    failed = f"It failed.\n{output.failure}" if output.failure else ""
    written = tell_written(output.files)
    paragraphs = [part for part in (output.text.rstrip(), shown, written, failed) if part]
    return "\n\n".join(paragraphs) or "It ended without any output."


def _told_turn(turn: Reply, calls: tuple[ToolCall, ...], results: list[str]) -> tuple[Message, ...]:
    """Return the model's turn and what came out of its calls, as messages."""
    text = (Text(turn.text),) if turn.text else ()
    spoken = Message(
        role=Role.ASSISTANT,
        parts=(*text, *calls),
        reasoning=turn.reasoning,
        thoughts=turn.thoughts,
    )
    results_given = (
        Message(role=Role.TOOL, parts=(ToolResult(call_id=call.id, content=result),))
        for call, result in zip(calls, results, strict=True)
    )
    return (spoken, *results_given)


def _find_input(arguments: str) -> str:
    """Return what the tool is called with, as far as the model's arguments say: one text."""
    try:
        read: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return ""
    given = cast("dict[str, Any]", read).values() if isinstance(read, dict) else ()
    return next((each[:MAX_SHOWN] for each in given if isinstance(each, str)), "")
