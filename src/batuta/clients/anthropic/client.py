"""Anthropic's Messages API.

Deviations a caller should know: a seed is not sent (there is none); `json_object` becomes a
sentence in the system prompt (there is no such mode); temperature and top_p are left out while the
model thinks (the API refuses them); a `prompt_cache_key` asks for the whole prompt to be cached
(there are no keys); prefill is not sent (newer models refuse it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from batuta.clients.anthropic.messages import anthropic_messages, cache_control, system_texts
from batuta.clients.anthropic.stream import AnthropicStreamAccumulator, parse_message
from batuta.clients.call import ProviderEndpoint, ProviderReply, StreamAccumulator, call_provider
from batuta.clients.sampling import CHOICES, PENALTIES, refuse_fields
from batuta.clients.secret import NO_KEY, Secret
from batuta.clients.transport import HttpTarget, HttpTransport
from batuta.core import CallListener, Reply, Request, Role, Tool, Worker
from batuta.core.conductor import NULL_LISTENER
from batuta.core.cost_bound import THINKING_TOKENS

API_VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 4096
"""Where no limit was asked for and the model's own is not known: the API wants one."""
_MOST_OUTPUT = (
    ("claude-opus-4-6", 128_000),
    ("claude-opus-4-5", 64_000),
    ("claude-opus-4", 32_000),
    ("claude-sonnet-4", 64_000),
    ("claude-haiku-4", 64_000),
    ("claude-3-7-sonnet", 64_000),
    ("claude-3-5", 8_192),
)
"""The models' own limits by prefix, as Anthropic publishes them; the longest prefix first."""

_JSON_INSTRUCTION = "Answer with one JSON object and nothing else."
_MIN_THINKING_TOKENS = 1024
"""Tokens of thinking that the API takes at least."""
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}


@dataclass(frozen=True, slots=True)
class ThinkingModels:
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
class AnthropicClient:
    """A worker behind `POST {base_url}/v1/messages`."""

    def __init__(
        self,
        worker: Worker,
        http: HttpTransport,
        *,
        base_url: str = "https://api.anthropic.com",
        key: Secret = NO_KEY,
        thinking: ThinkingModels = ThinkingModels(),
    ) -> None:
        """Opens nothing.

        Raises:
            ConfigError: `base_url` is no http(s) URL.
        """
        headers = {"anthropic-version": API_VERSION}
        if key:
            headers["x-api-key"] = key.reveal()
        base = base_url.rstrip("/").removesuffix("/v1")
        target = HttpTarget(url=base + "/v1/messages", headers=headers, key=key)
        self.worker = worker
        self._endpoint = ProviderEndpoint(
            worker=worker,
            adapter=AnthropicAdapter(worker.model, thinking),
            http=http,
            reply_target=target,
            stream_target=target,
        )

    def __repr__(self) -> str:
        return f"Anthropic({self.worker.id!r} at {self._endpoint.reply_target.host})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """The model's reply; streamed if the listener wants fragments.

        Raises:
            ClientError: the call gave no usable reply.
        """
        return await call_provider(self._endpoint, request, listener)


@final
class AnthropicAdapter:
    """The dialect as pure functions."""

    supports_prefill = False

    def __init__(self, model: str, thinking: ThinkingModels) -> None:
        self._model = model
        self._thinking = thinking

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """The JSON to send."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": sampling.max_tokens or most_output(self._model),
            "messages": anthropic_messages(request.messages, self._thinker(request)),
        }
        system = _system_prompt(request)
        if system:
            body["system"] = system
        _mark_prompt(body, request)
        if stream:
            body["stream"] = True
        if sampling.stop:
            body["stop_sequences"] = list(sampling.stop)
        if request.tools:
            _add_tools(body, request)
        self._set_thinking(body, request)
        if request.max_output is not None:
            _cap_output(body, request.max_output)
        if request.response_format is not None and request.response_format.kind == "json_schema":
            form = {"type": "json_schema", "schema": dict(request.response_format.schema)}
            body.setdefault("output_config", {})["format"] = form
        return body

    def parse_reply(self, data: Any) -> ProviderReply:
        """A whole reply read."""
        return parse_message(data, self._model)

    def new_accumulator(self) -> StreamAccumulator:
        """An empty reply."""
        return AnthropicStreamAccumulator(self._model)

    def _thinker(self, request: Request) -> str:
        """The model whose thoughts are given back: this one, if it thinks now."""
        effort = request.sampling.effort
        thinks = self._model.startswith((*self._thinking.adaptive, *self._thinking.budget))
        wanted = effort is not None and effort != "none"
        return self._model if wanted and thinks and _may_think(request, self._model) else ""

    def _set_thinking(self, body: dict[str, Any], request: Request) -> None:
        refuse_fields(self._model, request.sampling, (*PENALTIES[:2], *CHOICES))
        effort = request.sampling.effort
        if effort is None or effort == "none" or not _may_think(request, self._model):
            _set_temperature(body, request)
        elif self._model.startswith(self._thinking.adaptive):
            body["thinking"] = {"type": "adaptive"}
            body["output_config"] = {"effort": _EFFORTS.get(effort, effort)}
        elif self._model.startswith(self._thinking.budget) and effort in self._thinking.budgets:
            budget = self._thinking.budgets[effort]
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
            body["max_tokens"] = _with_thought(body["max_tokens"], budget, request)
        else:
            _set_temperature(body, request)


def _with_thought(most: int, budget: int, request: Request) -> int:
    """The limit with room to think; the model's own has that already."""
    return most if request.sampling.max_tokens is None and most > budget else most + budget


def _cap_output(body: dict[str, Any], most: int) -> None:
    """Lowers what may be said and thought to so many tokens.

    At most half of them, or all but the usual limit, are thought.
    """
    if body["max_tokens"] <= most:
        return
    body["max_tokens"] = most
    thinking = body.get("thinking", {})
    if thinking.get("budget_tokens", 0) <= max(most // 2, most - DEFAULT_MAX_TOKENS):
        return
    if most // 2 >= _MIN_THINKING_TOKENS:
        thinking["budget_tokens"] = most // 2
    else:
        del body["thinking"]


def _set_temperature(body: dict[str, Any], request: Request) -> None:
    sampling = request.sampling
    if sampling.temperature is not None:
        body["temperature"] = min(sampling.temperature, 1.0)  # its scale ends where OpenAI's is 2
    elif sampling.top_p is not None:  # newer models refuse both together
        body["top_p"] = sampling.top_p
    if sampling.top_k is not None:
        body["top_k"] = sampling.top_k


def _may_think(request: Request, model: str) -> bool:
    """Not while a tool is forced, nor after a result to whose call its own thoughts are missing."""
    if request.tools and request.tool_choice not in {None, "auto", "none"}:
        return False
    if not request.messages or request.messages[-1].role is not Role.TOOL:
        return True
    asked = next((m for m in reversed(request.messages) if m.role is Role.ASSISTANT), None)
    return asked is not None and any(thought.model == model for thought in asked.thoughts)


def most_output(model: str) -> int:
    """Tokens that the model may say at most, thinking included; few of one that is not known."""
    known = (most for prefix, most in _MOST_OUTPUT if model.startswith(prefix))
    return next(known, DEFAULT_MAX_TOKENS)


def _mark_prompt(body: dict[str, Any], request: Request) -> None:
    """Marks the whole prompt, if the client asked for that in its own dialect's way."""
    cache = request.cache
    if cache is None:
        return
    if cache.mark is not None:
        body["cache_control"] = cache_control(cache.mark)
    elif cache.key is not None and not _is_marked(request):
        body["cache_control"] = cache_control("5m")


def _is_marked(request: Request) -> bool:
    parts = (part for message in request.messages for part in message.parts)
    return any(part.cache for part in parts) or any(tool.cache for tool in request.tools)


def _system_prompt(request: Request) -> str | list[dict[str, Any]]:
    wanted = request.response_format
    extra = (_JSON_INSTRUCTION,) if wanted is not None and wanted.kind == "json_object" else ()
    return system_texts(request.messages, *extra)


def _add_tools(body: dict[str, Any], request: Request) -> None:
    body["tools"] = [_tool_json(tool) for tool in request.tools]
    choices = {None: "auto", "auto": "auto", "none": "none", "required": "any"}
    kind = choices.get(request.tool_choice, "tool")
    choice: dict[str, Any] = {"type": kind}
    if kind == "tool":
        choice["name"] = request.tool_choice
    if request.parallel_tool_calls is False and kind != "none":
        choice["disable_parallel_tool_use"] = True
    if len(choice) > 1 or kind != "auto":
        body["tool_choice"] = choice


def _tool_json(tool: Tool) -> dict[str, Any]:
    schema = dict(tool.parameters) or {"type": "object", "properties": {}}
    described: dict[str, Any] = {"name": tool.name, "input_schema": schema}
    if tool.description:
        described["description"] = tool.description
    if tool.strict is not None:
        described["strict"] = tool.strict
    if tool.cache is not None:
        described["cache_control"] = cache_control(tool.cache)
    return described
