"""Anthropic's Messages API.

Deviations a caller should know: a seed is not sent (there is none); `json_object` becomes a
sentence in the system prompt (there is no such mode); temperature and top_p are left out while the
model thinks (the API refuses them); prefill is not sent (newer models refuse it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from batuta.clients.anthropic_fold import MessageFold, told_of
from batuta.clients.anthropic_turns import system_of, turns_of
from batuta.clients.exchange import Fold, Line, Told, exchange
from batuta.clients.secret import NO_KEY, Secret
from batuta.clients.session import Http, Target
from batuta.core import Listener, Reply, Request, Role, Tool, Worker
from batuta.core.bound import THINKING_TOKENS
from batuta.core.conductor import SILENT

VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 4096
"""Where no limit was asked for: the API wants one."""

_JSON = "Answer with one JSON object and nothing else."
_LEAST_THOUGHT = 1024
"""Tokens of thinking that the API takes at least."""
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}


@dataclass(frozen=True, slots=True)
class Thinking:
    """How models are told to think, by the prefix of their names."""

    budget: tuple[str, ...] = (
        "claude-3-7",
        "claude-opus-4",
        "claude-sonnet-4",
        "claude-haiku-4",
    )
    """Think with `budget_tokens`, which are added to `max_tokens`."""
    adaptive: tuple[str, ...] = (
        "claude-opus-4-6",
        "claude-opus-4-7",
        "claude-opus-4-8",
        "claude-sonnet-4-6",
        "claude-opus-5",
        "claude-sonnet-5",
    )
    """Think as much as they find right, steered by `output_config.effort`; looked at first."""
    budgets: Mapping[str, int] = field(default_factory=lambda: dict(THINKING_TOKENS))
    """Tokens for each effort."""


@final
class Anthropic:
    """A worker behind `POST {base_url}/v1/messages`."""

    def __init__(
        self,
        worker: Worker,
        http: Http,
        *,
        base_url: str = "https://api.anthropic.com",
        key: Secret = NO_KEY,
        thinking: Thinking = Thinking(),
    ) -> None:
        """Opens nothing.

        Raises:
            ConfigError: `base_url` is no http(s) URL.
        """
        headers = {"anthropic-version": VERSION}
        if key:
            headers["x-api-key"] = key.reveal()
        base = base_url.rstrip("/").removesuffix("/v1")
        target = Target(base + "/v1/messages", headers, key)
        self.worker = worker
        self._line = Line(worker, MessagesWire(worker.model, thinking), http, target, target)

    def __repr__(self) -> str:
        return f"Anthropic({self.worker.id!r} at {self._line.plain.host})"

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """The model's reply; streamed if the listener wants fragments.

        Raises:
            ClientError: the call gave no usable reply.
        """
        return await exchange(self._line, request, listener)


@final
class MessagesWire:
    """The dialect as pure functions."""

    continues = False

    def __init__(self, model: str, thinking: Thinking) -> None:
        self._model = model
        self._thinking = thinking

    def body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """The JSON to send."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": sampling.max_tokens or DEFAULT_MAX_TOKENS,
            "messages": turns_of(request.messages),
        }
        system = _system(request)
        if system:
            body["system"] = system
        if stream:
            body["stream"] = True
        if sampling.stop:
            body["stop_sequences"] = list(sampling.stop)
        if request.tools:
            _offer(body, request)
        self._think(body, request)
        if request.max_output is not None:
            _cap(body, request.max_output)
        if request.response_format is not None and request.response_format.kind == "json_schema":
            form = {"type": "json_schema", "schema": dict(request.response_format.schema)}
            body.setdefault("output_config", {})["format"] = form
        return body

    def told(self, data: Any) -> Told:
        """A whole reply read."""
        return told_of(data)

    def fold(self) -> Fold:
        """An empty reply."""
        return MessageFold()

    def _think(self, body: dict[str, Any], request: Request) -> None:
        effort = request.sampling.effort
        if effort is None or effort == "none" or not _may_think(request):
            _heat(body, request)
        elif self._model.startswith(self._thinking.adaptive):
            body["thinking"] = {"type": "adaptive"}
            body["output_config"] = {"effort": _EFFORTS.get(effort, effort)}
        elif self._model.startswith(self._thinking.budget) and effort in self._thinking.budgets:
            budget = self._thinking.budgets[effort]
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
            body["max_tokens"] += budget
        else:
            _heat(body, request)


def _cap(body: dict[str, Any], most: int) -> None:
    """Lowers what may be said and thought to so many tokens; it thinks half of them at most."""
    if body["max_tokens"] <= most:
        return
    body["max_tokens"] = most
    thinking = body.get("thinking", {})
    if thinking.get("budget_tokens", 0) <= most // 2:
        return
    if most // 2 >= _LEAST_THOUGHT:
        thinking["budget_tokens"] = most // 2
    else:
        del body["thinking"]


def _heat(body: dict[str, Any], request: Request) -> None:
    sampling = request.sampling
    if sampling.temperature is not None:
        body["temperature"] = min(sampling.temperature, 1.0)  # its scale ends where OpenAI's is 2
    elif sampling.top_p is not None:  # newer models refuse both together
        body["top_p"] = sampling.top_p


def _may_think(request: Request) -> bool:
    """Not while a tool is forced, nor after a result: the call's signed thoughts are gone."""
    forced = bool(request.tools) and request.tool_choice not in {None, "auto", "none"}
    return not forced and not (request.messages and request.messages[-1].role is Role.TOOL)


def _system(request: Request) -> str:
    wanted = request.response_format
    extra = (_JSON,) if wanted is not None and wanted.kind == "json_object" else ()
    return "\n\n".join((*system_of(request.messages), *extra))


def _offer(body: dict[str, Any], request: Request) -> None:
    body["tools"] = [_tool(tool) for tool in request.tools]
    choices = {None: "auto", "auto": "auto", "none": "none", "required": "any"}
    kind = choices.get(request.tool_choice, "tool")
    choice: dict[str, Any] = {"type": kind}
    if kind == "tool":
        choice["name"] = request.tool_choice
    if request.parallel_tool_calls is False and kind != "none":
        choice["disable_parallel_tool_use"] = True
    if len(choice) > 1 or kind != "auto":
        body["tool_choice"] = choice


def _tool(tool: Tool) -> dict[str, Any]:
    schema = dict(tool.parameters) or {"type": "object", "properties": {}}
    described: dict[str, Any] = {"name": tool.name, "input_schema": schema}
    if tool.description:
        described["description"] = tool.description
    if tool.strict is not None:
        described["strict"] = tool.strict
    return described
