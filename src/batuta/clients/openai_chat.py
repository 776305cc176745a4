"""OpenAI's chat completions, and everybody who speaks them with an accent.

OpenAI, vLLM, SGLang, Ollama (`/v1`), llama.cpp, OpenRouter and DeepSeek differ in a few fields;
each difference is a field of `Dialect`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from batuta.clients.chat_fold import ChatFold, told_of
from batuta.clients.exchange import Fold, Line, Told, exchange, lowest
from batuta.clients.secret import NO_KEY, Secret
from batuta.clients.session import Http, Target
from batuta.core import (
    Image,
    Listener,
    Message,
    Reply,
    Request,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Worker,
)
from batuta.core.conductor import SILENT


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server's chat completions differ from the plainest form."""

    max_tokens: str = "max_tokens"
    """The name of the field that limits the completion."""
    effort: str = "reasoning_effort"
    """Where the reasoning effort goes: `reasoning_effort`, `reasoning` (OpenRouter's object), or
    empty: the server has no such setting and it is left out."""
    efforts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Efforts the server calls by another name."""
    reasoning_models: tuple[str, ...] = ("",)
    """Prefixes of the models that take an effort; to others none is sent."""
    fixed_sampling: tuple[str, ...] = ()
    """Prefixes of the models that refuse temperature and top_p; to those none is sent."""
    developer: bool = False
    """Whether the role `developer` is known; elsewhere it becomes `system`."""
    prefill: bool = False
    """Whether the server can continue an assistant's message that is not finished."""
    reasoning_back: str = ""
    """The field in which an assistant's reasoning is given back; empty: it is not."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields sent with every request."""


_OPENAI_REASONING = ("o1", "o3", "o4", "gpt-5", "gpt-oss")

COMPATIBLE = Dialect()
"""Any other server; also Ollama and llama.cpp."""
OPENAI = Dialect(
    max_tokens="max_completion_tokens",
    efforts={"max": "xhigh"},
    reasoning_models=_OPENAI_REASONING,
    fixed_sampling=("o1", "o3", "o4", "gpt-5"),
    developer=True,
)
CONTINUING = Dialect(prefill=True)
"""vLLM and SGLang."""
OPENROUTER = Dialect(
    effort="reasoning",
    efforts={"max": "xhigh"},
    reasoning_back="reasoning",
    extra={"usage": {"include": True}},
)
DEEPSEEK = Dialect(effort="", reasoning_back="reasoning_content")


@final
class OpenAIChat:
    """A worker behind `POST {base_url}/chat/completions`."""

    def __init__(
        self,
        worker: Worker,
        http: Http,
        *,
        base_url: str = "https://api.openai.com/v1",
        key: Secret = NO_KEY,
        dialect: Dialect = OPENAI,
    ) -> None:
        """Opens nothing.

        Raises:
            ConfigError: `base_url` is no http(s) URL.
        """
        headers = {"Authorization": f"Bearer {key.reveal()}"} if key else {}
        target = Target(base_url.rstrip("/") + "/chat/completions", headers, key)
        self.worker = worker
        self._line = Line(worker, ChatWire(worker.model, dialect), http, target, target)

    def __repr__(self) -> str:
        return f"OpenAIChat({self.worker.id!r} at {self._line.plain.host})"

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """The model's reply; streamed if the listener wants fragments.

        Raises:
            ClientError: the call gave no usable reply.
        """
        return await exchange(self._line, request, listener)


@final
class ChatWire:
    """The dialect as pure functions."""

    def __init__(self, model: str, dialect: Dialect) -> None:
        self._model = model
        self._dialect = dialect
        self.continues = dialect.prefill

    def body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """The JSON to send."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": _messages(request, self._dialect),
            **self._dialect.extra,
        }
        if stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        self._sampling(body, request)
        if request.tools:
            _offer(body, request)
        if request.response_format is not None:
            body["response_format"] = _format(request)
        if request.prefill and self.continues:
            body["continue_final_message"] = True
            body["add_generation_prompt"] = False
        return body

    def told(self, data: Any) -> Told:
        """A whole reply read."""
        return told_of(data)

    def fold(self) -> Fold:
        """An empty reply."""
        return ChatFold()

    def _sampling(self, body: dict[str, Any], request: Request) -> None:
        sampling, dialect = request.sampling, self._dialect
        if not self._model.startswith(dialect.fixed_sampling or ("\0",)):
            _put(body, "temperature", sampling.temperature)
            _put(body, "top_p", sampling.top_p)
        _put(body, dialect.max_tokens, lowest(sampling.max_tokens, request.max_output))
        _put(body, "stop", list(sampling.stop) or None)
        _put(body, "seed", sampling.seed)
        if sampling.effort and dialect.effort and self._model.startswith(dialect.reasoning_models):
            effort = dialect.efforts.get(sampling.effort, sampling.effort)
            body[dialect.effort] = {"effort": effort} if dialect.effort == "reasoning" else effort


def _put(body: dict[str, Any], name: str, value: Any) -> None:
    if value is not None:
        body[name] = value


def _messages(request: Request, dialect: Dialect) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for message in request.messages:
        # Results answer the turn before, so they come before whatever else this turn says.
        messages.extend(
            {"role": "tool", "tool_call_id": part.call_id, "content": part.content}
            for part in message.parts
            if isinstance(part, ToolResult)
        )
        if message.role is Role.ASSISTANT:
            messages.append(_assistant(message, dialect))
        elif message.role is not Role.TOOL:
            messages.append(_said(message, dialect))
    if request.prefill and dialect.prefill:
        messages.append({"role": "assistant", "content": request.prefill})
    return messages


def _said(message: Message, dialect: Dialect) -> dict[str, Any]:
    role = message.role
    if role is Role.DEVELOPER and not dialect.developer:
        role = Role.SYSTEM
    said: dict[str, Any] = {"role": role.value, "content": _content(message)}
    if message.name:
        said["name"] = message.name
    return said


def _content(message: Message) -> str | list[dict[str, Any]]:
    """A string where it is one: the oldest servers know nothing else."""
    if not message.images:
        return message.text
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, Image):
            url = {"url": part.url} | ({"detail": part.detail} if part.detail else {})
            parts.append({"type": "image_url", "image_url": url})
    return parts


def _assistant(message: Message, dialect: Dialect) -> dict[str, Any]:
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCall)]
    said: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if calls:
        said["tool_calls"] = calls
    elif said["content"] is None:
        said["content"] = ""
    if message.name:
        said["name"] = message.name
    if message.reasoning and dialect.reasoning_back:
        said[dialect.reasoning_back] = message.reasoning
    return said


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _offer(body: dict[str, Any], request: Request) -> None:
    body["tools"] = [_tool(tool) for tool in request.tools]
    choice = request.tool_choice
    if choice in {"auto", "none", "required"}:
        body["tool_choice"] = choice
    elif choice:
        body["tool_choice"] = {"type": "function", "function": {"name": choice}}
    _put(body, "parallel_tool_calls", request.parallel_tool_calls)


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    _put(function, "description", tool.description or None)
    _put(function, "parameters", dict(tool.parameters) or None)
    _put(function, "strict", tool.strict)
    return {"type": "function", "function": function}


def _format(request: Request) -> dict[str, Any]:
    wanted = request.response_format
    if wanted is None or wanted.kind == "json_object":
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": wanted.name, "schema": dict(wanted.schema)}
    _put(schema, "strict", wanted.strict)
    return {"type": "json_schema", "json_schema": schema}
