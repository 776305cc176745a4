"""/v1/mcp: the tools ask, plan and runs, each implemented as a request to this same API.

The request has the caller's credentials, so keys, rates, budgets, policies and the ledger apply
without code here. The endpoint is stateless: nothing is kept between messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, final
from urllib.parse import urlencode

import anyio
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batuta.core.formatting import format_zoned_time
from batuta.distribution import package_version
from batuta.gateway.http.body import encode_json, read_checked_body, replay_body

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

Json = dict[str, Any]
MCP_PATH = "/v1/mcp"
MAX_RUNS = 50
"""Maximum number of runs in a list."""
_FORWARDED_HEADERS = frozenset({b"authorization", b"x-api-key", b"host", b"origin", b"user-agent"})
"""Headers of the MCP client's request that are copied to the request to the API."""
_INSTRUCTIONS = (
    "Batuta answers a question by a workflow of several language models. ask answers; plan shows "
    "the workflow and what it would cost, and calls no model but the conductor; runs lists the "
    "latest runs."
)
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOptions:
    """Options of the endpoint."""

    model: str = "batuta-ultra"
    """The served model that answers."""
    max_cost: float | None = None
    """Maximum dollars of each question and plan, in addition to the limits of the served model and
    the key; None: no further limit."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[bytes, bytes]
    body: Json


@final
class BoundedMessages:
    """Passes messages to the protocol's server; they are checked like the bodies of the API."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            ClientGone: the client has disconnected.
            APIError: the message is too large, has too many values, or arrives too slowly.
        """
        if scope["method"] == "POST":
            receive = replay_body(await read_checked_body(receive), receive)
        await self._inner(scope, receive, send)


@final
class McpEndpoint:
    """Serves the protocol; its tools call the app that contains it."""

    def __init__(self, options: McpOptions) -> None:
        """Build the protocol's server, which needs `attach` and `work` to serve.

        The extra `mcp` must be installed.
        """
        from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415 - extra

        self._options = options
        self._app: ASGIApp | None = None
        self._server = self._build_server()
        # The middleware of the app has already checked host and origin.
        unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._inner = self._server.streamable_http_app(
            streamable_http_path=MCP_PATH, stateless_http=True, transport_security=unchecked
        )

    def route(self) -> Route:
        """Return the endpoint's route."""
        methods = ["DELETE", "GET", "POST"]
        return Route(MCP_PATH, BoundedMessages(self._inner), methods=methods)

    def attach(self, app: ASGIApp) -> None:
        """Set the app that the tools call."""
        self._app = app

    async def work(self) -> None:
        """Serve until cancelled."""
        async with self._server.session_manager.run():
            await anyio.sleep_forever()

    def _build_server(self) -> MCPServer:
        from mcp.server.mcpserver import Context, MCPServer  # noqa: PLC0415 - of an extra
        from mcp.types import ToolAnnotations  # noqa: PLC0415 - same

        server = MCPServer(
            "batuta", version=package_version(), instructions=_INSTRUCTIONS, log_level="WARNING"
        )
        reads = ToolAnnotations(read_only_hint=True)

        async def ask(question: str, ctx: Context, max_cost_usd: float | None = None) -> str:
            return describe_answer(await self._complete(ctx, question, max_cost_usd))

        async def plan(question: str, ctx: Context) -> str:
            answer = await self._complete(ctx, question, dry_run=True)
            return describe_plan(answer.body["orchestration"])

        async def runs(ctx: Context, limit: int = 10) -> str:
            query = urlencode({"limit": min(max(limit, 1), MAX_RUNS)})
            answer = await self._ask_app(ctx, "GET", "/v1/runs", query=query)
            return "\n".join(map(describe_run, answer.body["data"])) or "There are no runs yet."

        for tool, says, notes in (
            (ask, "Answer a question by a workflow of several language models.", None),
            (plan, "Show the workflow that a question would get, and its expected cost.", reads),
            (runs, "List the latest runs, newest first.", reads),
        ):
            # The annotation must be the class itself, which is imported only in this method.
            tool.__annotations__["ctx"] = Context
            server.add_tool(tool, description=says, annotations=notes)
        return server

    async def _complete(
        self, ctx: Any, question: str, max_cost_usd: float | None = None, *, dry_run: bool = False
    ) -> _Answer:
        most = lowest_cost_limit(max_cost_usd, self._options.max_cost)
        options: Json = {} if most is None else {"max_cost_usd": most}
        if dry_run:
            options["dry_run"] = True
        body = {
            "model": self._options.model,
            "messages": [{"role": "user", "content": question}],
            **({"orchestration": options} if options else {}),
        }
        return await self._ask_app(ctx, "POST", "/v1/chat/completions", body=encode_json(body))

    async def _ask_app(
        self, ctx: Any, method: str, path: str, *, query: str = "", body: bytes = b""
    ) -> _Answer:
        """Send a request to the app with the credentials of the MCP client's request.

        Raises:
            ToolError: the app refuses the request; the error has the API's message.
        """
        from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415 - of an extra

        outer: Scope = ctx.request_context.request.scope
        kept = [(name, value) for name, value in outer["headers"] if name in _FORWARDED_HEADERS]
        scope: Scope = {
            "type": "http",
            "asgi": outer["asgi"],
            "http_version": "1.1",
            "method": method,
            "scheme": outer["scheme"],
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [
                *kept,
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
            "client": outer["client"],
            "server": outer["server"],
        }
        assert self._app is not None  # noqa: S101 - `attach` is called before the app serves
        answer = await _call_app(self._app, scope, body)
        if answer.status != _OK:
            raise ToolError(answer.body["error"]["message"])
        return answer


def lowest_cost_limit(requested: float | None, most: float | None) -> float | None:
    """Return the lower of the two limits in dollars; None if neither is set.

    Raises:
        ToolError: `requested` is not finite; as JSON it would become null, which is no limit.
    """
    if requested is not None and not isfinite(requested):
        from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415 - of an extra

        raise ToolError("max_cost_usd must be a finite number of dollars.")
    costs = [cost for cost in (requested, most) if cost is not None]
    return min(costs) if costs else None


async def _call_app(app: ASGIApp, scope: Scope, body: bytes) -> _Answer:
    """Send a request to an ASGI app and return its whole response."""
    sent, parts = False, list[bytes]()
    status, headers = 500, dict[bytes, bytes]()

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await anyio.sleep_forever()  # the client stays connected; the app cancels this
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update(message["headers"])
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return _Answer(status, headers, json.loads(b"".join(parts)))


def describe_answer(answer: _Answer) -> str:
    """Return the text of an answer or a refusal, and a line about its run."""
    message = answer.body["choices"][0]["message"]
    text = message["content"] or message["refusal"] or ""
    names = (b"x-batuta-run-id", b"x-batuta-cost-usd", b"x-batuta-outcome")
    run, cost, outcome = (answer.headers.get(name, b"").decode() for name in names)
    about = ", ".join(filter(None, (run, f"${cost}" if cost else "cost unknown", outcome)))
    return f"{text}\n\n[{about}]"


def describe_plan(planned: Json) -> str:
    """Return a planned workflow as text: a line per step, then the estimated tokens and cost."""
    lines: list[str] = []
    for number, step in enumerate(planned["plan"], 1):
        reads = ", ".join(str(index + 1) for index in step["access"])
        reading = f" (reads {reads})" if reads else ""
        subtask = " ".join(step["subtask"].split()) or "the question"
        lines.append(f"{number}. {step['worker']}{reading}: {subtask}")
    if expected := planned.get("estimate"):
        tokens = expected["input_tokens"] + expected["output_tokens"]
        cost = "an unknown cost" if expected["cost_usd"] is None else f"${expected['cost_usd']}"
        lines.append(f"Expected: {tokens} tokens, {cost}.")
    return "\n".join(lines) or "No workflow could be planned."


def describe_run(run: Json) -> str:
    """Return a stored run in one line, with its time in the server's time zone."""
    when = format_zoned_time(run["created"])
    question = " ".join(str(run.get("question") or "").split())[:100]
    return f"{run['id']} {when} {run['outcome']} {question}"
