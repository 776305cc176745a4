"""A client that runs its model's tool calls and calls the model again with the results.

In this module a turn is one reply of the model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import final

import anyio

from batuta.clients.decoding import as_object
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
from batuta.core.server_tools import CODE_INTERPRETER, WEB_SEARCH, RequestedTool, ServerTools
from batuta.errors import ClientError, LimitReachedError
from batuta.sandbox.notebook import describe_written
from batuta.tools.domains import ANY_DOMAIN, DomainRules, split_entry
from batuta.tools.source import ToolContext, ToolError, ToolOutput, ToolSource, call_tool
from batuta.usage import ZERO_COST, ZERO_USAGE

NO_MORE = "No more calls of {name} are allowed: answer with what you have."
SEPARATOR = "\n\n"
"""Separates a model's texts before and after a tool call."""
SEARCH_DESCRIPTION = "Searches the web."
SEARCH_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
_SHORTEST = Sampling(max_tokens=1)
_MAX_INPUT_CHARACTERS = 50_000
"""Maximum number of characters of a call's input that are recorded."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that API clients may request."""

    open_source: Callable[[RequestedTool | None], ToolSource]
    """Opens the tool for one worker of one run, as some tools keep state.

    The argument is None if the tool is opened only to read its name, description and schema.
    """
    max_uses: int
    """Maximum number of calls of the tool for one reply."""


def _lower_limit(allowed: int, requested: RequestedTool) -> int:
    """Return the lower of the operator's limit and the client's, if the client states a limit."""
    return allowed if requested.max_uses is None else min(allowed, requested.max_uses)


@dataclass(frozen=True, slots=True)
class _GrantedTool:
    """A tool that an API client requested."""

    source: ToolSource
    requested: RequestedTool
    max_uses: int

    @property
    def worker(self) -> Worker:
        """The tool as a worker, for reserving its cost under the run's limits."""
        free, price = Decimal(0), self.source.price
        return Worker(
            id=WorkerId(self.source.name),
            model=self.source.name,
            price=None if price is None else Price(input=free, output=free, call=price),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOffer:
    """The web search that the providers of some workers run themselves."""

    max_uses: int
    """Maximum number of searches for one reply."""
    domains: DomainRules = ANY_DOMAIN
    """The operator's domain rules, which apply in addition to the client's."""

    def grant(self, requested: RequestedTool) -> NativeSearch | None:
        """Return the requested search within the operator's rules; None if they leave no domain."""
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
        most = _lower_limit(self.max_uses, requested)
        return NativeSearch(max_uses=most, allow=allow, deny=deny)


def _address_of(entry: str) -> str:
    """Return a URL that an entry of a list of domains matches."""
    return f"https://{''.join(split_entry(entry))}"


def open_server_tools(
    offered: Sequence[OfferedTool], native: NativeOffer | None = None
) -> ServerTools:
    """Return the tools that the server runs for its models.

    Args:
        offered: the tools that the server runs itself.
        native: the search that providers run; None if no provider may run searches.
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
            most = _lower_limit(tool.max_uses, requested)
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
    """Forwards the events of one model turn, except calls of tools that the server runs."""

    def __init__(self, listener: CallListener, names: Mapping[str, object]) -> None:
        self._listener = listener
        self._names = names
        self._is_own: dict[tuple[int, int], bool] = {}

    @property
    def streaming(self) -> bool:
        """Whether the listener wants fragments."""
        return self._listener.streaming

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """Forward the request to the listener."""
        return await self._listener.before_call(request, worker)

    async def on_delta(self, delta: Delta) -> None:
        """Forward a fragment, unless it belongs to a call that the server runs."""
        if delta.tool_index is not None:
            key = (delta.choice, delta.tool_index)
            if self._is_own.setdefault(key, delta.tool_name in self._names):
                return
        await self._listener.on_delta(delta)

    async def on_failure(self, failure: Failure) -> None:
        """Forget the calls of the failed attempt and forward the failure."""
        self._is_own.clear()
        await self._listener.on_failure(failure)


@dataclass(slots=True, kw_only=True)
class _TurnsSoFar:
    """The model's turns so far, merged into one reply."""

    reply: Reply
    texts: list[str]
    """The texts of the conversation and of the tools' results, except those of programs; they name
    the URLs that may be read."""
    calls: tuple[ServerCall, ...] = ()
    uses: Counter[str] = field(default_factory=Counter[str])
    """The number of calls of each tool, refused calls included."""
    began: float = field(default_factory=anyio.current_time)
    """The time at which the first turn began, on anyio's clock."""

    def add(self, turn: Reply) -> None:
        """Append a turn, with the searches that its provider ran."""
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
            logprobs=(*before.logprobs, *turn.logprobs),
            images=(*before.images, *turn.images),
            usage=before.usage + turn.usage,
            cost=before.cost + turn.cost,
        )

    @property
    def cited_pages(self) -> int:
        """The number of pages cited so far."""
        return sum(len(call.citations) for call in self.calls)


@final
class ServerToolClient:
    """Runs tool calls for its model, at most as often as allowed and within the run's limits.

    All turns form one reply: its text is the text of all turns, its usage and cost are the sums,
    and `server_calls` lists the calls. A call of a tool that the API client runs ends the reply.
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
        """Create the client; nothing is called yet.

        Args:
            client: calls the model.
            worker: the model's worker, for the limits of each turn.
            granted: the tools that the server runs, by the names that models use.
            native: the searches that the provider runs, by the tool's name; the value None means
                that the tool cannot be run and is removed from requests.
            forced: the tool that the model must call before it answers, if it has the tool; None
                if it need not call any.
        """
        self._native = native
        self._forced = forced
        self._client = client
        self._worker = worker
        self._granted = granted

    def __repr__(self) -> str:
        return f"ServerToolClient({self._client!r}, {', '.join(self._granted)})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply once the model calls no more of the server's tools.

        If a limit of the run forbids the next turn, the turns so far are returned, with the finish
        reason LENGTH.

        Raises:
            ClientError: the model gave no usable reply; the error has the cost of all turns.
            LimitReachedError: the listener forbade another attempt of a turn that failed.
        """
        if self._native:
            request = await self._with_native(request, listener)
        offered = {tool.name for tool in request.tools}
        searches = find_native(request.tools) is not None
        if request.tool_choice == "none" or not (searches or offered & self._granted.keys()):
            return await self._client.complete(request, listener)
        forced = self._forced in offered
        next_request = replace(request, tool_choice=self._forced) if forced else request
        texts = [text for message in request.messages for text in _message_texts(message)]
        so_far = _TurnsSoFar(reply=Reply(text="", usage=ZERO_USAGE, cost=ZERO_COST), texts=texts)
        while own := await self._take_turn(next_request, listener, so_far):
            turn, calls = own
            results = [await self._run_call(call, listener, so_far) for call in calls]
            answered = _turn_messages(turn, calls, results)
            choice = "none" if self._is_over(so_far) else request.tool_choice
            next_request = _deduct_searches(next_request, len(turn.server_calls))
            next_request = replace(
                next_request, messages=(*next_request.messages, *answered), tool_choice=choice
            )
            try:
                next_request = await listener.before_call(next_request, self._worker)
            except LimitReachedError:  # return what was paid for so far
                return replace(so_far.reply, finish=Finish.LENGTH, server_calls=so_far.calls)
        return replace(so_far.reply, server_calls=so_far.calls)

    async def _take_turn(
        self, next_request: Request, listener: CallListener, so_far: _TurnsSoFar
    ) -> tuple[Reply, tuple[ToolCall, ...]] | None:
        """Call the model; return its turn and the tool calls to run, None after the last turn."""
        names = self._granted
        turn = await self._next_turn(next_request, listener, so_far)
        own = tuple(call for call in turn.tool_calls if call.name in names)
        others = tuple(call for call in turn.tool_calls if call.name not in names)
        so_far.add(replace(turn, tool_calls=others))
        if not own or others:
            return None
        if turn.text and not turn.text.endswith("\n"):
            so_far.reply = replace(so_far.reply, text=so_far.reply.text + SEPARATOR)
            if listener.streaming:
                await listener.on_delta(Delta(text=SEPARATOR))
        if isinstance(listener, TurnListener):
            listener.note_turns(so_far.reply.usage, so_far.reply.cost)
        return turn, own

    async def _with_native(self, request: Request, listener: CallListener) -> Request:
        """Return the request with the tools that the worker's provider runs itself.

        Reserve as many searches as the limits allow, and remove tools that cannot be run.
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
        """Return the tool with as many searches as the limits allow; None if it cannot be used."""
        granted = self._native[tool.name]
        if granted is None or request.tool_choice == "none":
            return None
        for uses in range(granted.max_uses, 0, -1):
            search = replace(tool, native=replace(granted, max_uses=uses))
            reserved = Request(messages=(), sampling=_SHORTEST, tools=(search,))
            try:
                await listener.before_call(reserved, self._worker)
            except LimitReachedError:
                continue
            return search
        return None

    def _is_over(self, so_far: _TurnsSoFar) -> bool:
        """Return True if the model called a tool again after its calls were used up."""
        return any(so_far.uses[name] > tool.max_uses for name, tool in self._granted.items())

    async def _next_turn(
        self, next_request: Request, listener: CallListener, so_far: _TurnsSoFar
    ) -> Reply:
        """Call the model once; a ClientError includes the cost of earlier turns."""
        try:
            return await self._client.complete(next_request, _TurnListener(listener, self._granted))
        except ClientError as error:
            if so_far.reply.usage.calls:
                error.usage = so_far.reply.usage + (error.usage or ZERO_USAGE)
                error.cost = so_far.reply.cost + (error.cost or ZERO_COST)
            raise

    async def _run_call(self, call: ToolCall, listener: CallListener, so_far: _TurnsSoFar) -> str:
        """Run one call, record and stream it, and return its result for the model."""
        done = ServerCall(
            id=call.id,
            name=call.name,
            query=_find_input(call.arguments),
            at=len(so_far.reply.text),
            began=anyio.current_time() - so_far.began,
        )
        so_far.uses[call.name] += 1
        if so_far.uses[call.name] > self._granted[call.name].max_uses:
            done, text = replace(done, error=USED_UP), NO_MORE.format(name=call.name)
        else:
            done, text = await self._call_source(call, done, listener, so_far)
            if not done.error and call.name != CODE_INTERPRETER:  # the model wrote the program
                so_far.texts.append(text)
        done = replace(done, seconds=anyio.current_time() - so_far.began - done.began)
        so_far.calls = (*so_far.calls, done)
        if listener.streaming:
            await listener.on_delta(Delta(server_call=done))
        return text

    async def _call_source(
        self,
        call: ToolCall,
        done: ServerCall,
        listener: CallListener,
        so_far: _TurnsSoFar,
    ) -> tuple[ServerCall, str]:
        """Call the tool within the run's limits and the client's domain rules.

        Returns:
            The finished call, and its result for the model.
        """
        tool = self._granted[call.name]
        rules = DomainRules(allow=tool.requested.allow, deny=tool.requested.deny)
        context = ToolContext(
            domains=rules, first_number=so_far.cited_pages + 1, named_in="\n".join(so_far.texts)
        )
        try:
            await listener.before_call(Request(messages=()), tool.worker)
            output = await call_tool(tool.source, call.arguments, context)
        except LimitReachedError as error:
            return replace(done, error=USED_UP), f"{call.name} was not called: {error}."
        except ToolError as error:
            so_far.reply = replace(so_far.reply, cost=so_far.reply.cost + error.cost)
            failed = replace(done, error=UNAVAILABLE, cost=error.cost)
            return failed, f"{call.name} gave nothing: {error}."
        so_far.reply = replace(so_far.reply, cost=so_far.reply.cost + output.cost)
        kept = replace(
            done,
            citations=output.citations,
            output="" if call.name == WEB_SEARCH else output.text,
            failure=output.failure,
            pictures=output.pictures,
            files=output.files,
            cost=output.cost,
        )
        return kept, _output_text(output)


def _deduct_searches(request: Request, searches: int) -> Request:
    """Lower the number of allowed searches by `searches`; remove the tool if none remains."""
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
    """Return the texts of a message, including tool results."""
    results = [part.content for part in message.parts if isinstance(part, ToolResult)]
    return [message.text, *results]


def _output_text(output: ToolOutput) -> str:
    """Return the output as text for the model."""
    drawn = len(output.pictures)
    shown = f"[{drawn} picture{'s' * (drawn > 1)} drawn: the user sees them]" if drawn else ""
    failed = f"It failed.\n{output.failure}" if output.failure else ""
    written = describe_written(output.files)
    paragraphs = [part for part in (output.text.rstrip(), shown, written, failed) if part]
    return "\n\n".join(paragraphs) or "It ended without any output."


def _turn_messages(
    turn: Reply, calls: tuple[ToolCall, ...], results: list[str]
) -> tuple[Message, ...]:
    """Return the model's turn and the results of its calls, as messages."""
    text = (Text(turn.text),) if turn.text else ()
    reply = Message(
        role=Role.ASSISTANT,
        parts=(*text, *calls),
        reasoning=turn.reasoning,
        thoughts=turn.thoughts,
    )
    tool_results = (
        Message(role=Role.TOOL, parts=(ToolResult(call_id=call.id, content=result),))
        for call, result in zip(calls, results, strict=True)
    )
    return (reply, *tool_results)


def _find_input(arguments: str) -> str:
    """Return the first string among a call's arguments, truncated; empty if there is none."""
    try:
        given = as_object(json.loads(arguments)).values()
    except (ValueError, RecursionError):
        return ""
    return next((each[:_MAX_INPUT_CHARACTERS] for each in given if isinstance(each, str)), "")
