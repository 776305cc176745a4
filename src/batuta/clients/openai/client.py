"""OpenAI's chat completions API, and the servers that implement it with differences.

OpenAI, vLLM, SGLang, Ollama (`/v1`), llama.cpp, OpenRouter and DeepSeek differ in a few fields;
each difference is a field of `ChatDialect`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from batuta.clients.adaptations import Kind, merge_first_system_messages
from batuta.clients.anthropic.messages import cache_control
from batuta.clients.call import ProviderClient, min_cap
from batuta.clients.decoding import ProviderReply, as_object
from batuta.clients.error_mapping import PENALTIES, refuse_fields
from batuta.clients.http_target import NO_KEY, HttpTarget, Secret
from batuta.clients.openai.models import reasoning_effort
from batuta.clients.openai.stream import (
    OpenAIStreamAccumulator,
    parse_completion,
    reasoning_field_of,
)
from batuta.clients.stream_reading import StreamAccumulator
from batuta.clients.text_tool_calls import complete_with_calls
from batuta.clients.tool_turns import (
    ANY_ID,
    OPENAI_IDS,
    add_round_trip_fields,
    fit_tool_turns,
    rule_of_model,
)
from batuta.clients.transport import HttpTransport
from batuta.core import (
    Audio,
    CallListener,
    Client,
    File,
    Image,
    Message,
    Reply,
    Request,
    ResponseFormat,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Worker,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.message import SYSTEM_ROLES
from batuta.errors import BadRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDialect:
    """How a server's chat completions differ from the basic form."""

    max_tokens: str = "max_tokens"
    """The name of the field that limits the completion."""
    effort: str = "reasoning_effort"
    """The field of the reasoning effort: `reasoning_effort`, `reasoning` (OpenRouter's object), or
    empty if the server has no such setting."""
    efforts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps effort names to the server's own names, where they differ."""
    own_efforts: bool = False
    """Whether the accepted efforts depend on the model, as OpenAI's do (`openai.models`)."""
    reasoning_models: tuple[str, ...] = ("",)
    """Prefixes of the models to which an effort is sent; an empty prefix fits every model."""
    fixed_sampling: tuple[str, ...] = ()
    """Prefixes of the models to which temperature and top_p are not sent; a request with penalties
    or top_k is refused."""
    developer: bool = False
    """Whether the role `developer` is supported; otherwise it becomes `system`."""
    merges_system: bool = False
    """Whether leading system messages are sent as one: many chat templates accept only one, and
    some ignore a second one."""
    prefill: bool = False
    """Whether the server can continue an unfinished assistant message."""
    reasoning_field: str = ""
    """The field in which an assistant's reasoning is sent back until the server has sent reasoning;
    then the server's field. Empty: `reasoning_content` if the model accepts it, else none."""
    cache_keys: bool = False
    """Whether `prompt_cache_key` and `prompt_cache_retention` are supported."""
    cache_marks: bool = False
    """Whether `cache_control` is supported on message parts and tools."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields sent with every request."""
    top_k: bool = True
    """Whether the field `top_k` is supported."""
    choices: bool = True
    """Whether the field `n` is supported."""
    files: bool = False
    """Whether parts of type `file` are supported."""
    thinking_switch: tuple[str, ...] = ()
    """Prefixes of models whose reasoning the field `thinking` turns on and off (DeepSeek)."""
    responses: bool = False
    """Whether models that need the Responses API are called through it (`openai.models`)."""
    key_header: str = ""
    """The header for the key; empty: `Authorization` with a bearer token."""
    adapt: tuple[Kind, ...] = ()
    """Adaptations that apply from the first request on, without waiting for a refusal."""


_WITH_TOOLS = (Role.ASSISTANT, Role.TOOL)
"""The roles of messages that may contain tool calls or results."""
_ACCEPTS_REASONING = re.compile(
    r"deepseek|kimi|moonshot|glm-|minimax|qwen[-/]?3|qwq|mimo|step-|hunyuan|gpt-oss|nemotron",
    re.IGNORECASE,
)
"""Matches models whose servers accept reasoning sent back with tool calls; some require it."""
_OPENAI_REASONING_MODELS = ("o1", "o3", "o4", "gpt-5", "gpt-6", "gpt-oss")

COMPATIBLE_DIALECT = ChatDialect(merges_system=True)
"""The default, used for Ollama, llama.cpp, unknown servers and others."""
OPENAI_DIALECT = ChatDialect(
    max_tokens="max_completion_tokens",
    responses=True,
    own_efforts=True,
    reasoning_models=_OPENAI_REASONING_MODELS,
    fixed_sampling=("o1", "o3", "o4", "gpt-5", "gpt-6"),
    developer=True,
    top_k=False,
    cache_keys=True,
    files=True,
)
AZURE_DIALECT = replace(OPENAI_DIALECT, key_header="api-key")
"""Azure OpenAI's v1 API, where the model is the name of a deployment."""
PREFILL_DIALECT = ChatDialect(prefill=True, merges_system=True)
"""Used for vLLM and SGLang."""
OPENROUTER_DIALECT = ChatDialect(
    effort="reasoning",
    efforts={"max": "xhigh"},
    reasoning_field="reasoning",
    cache_marks=True,
    files=True,
    extra={"usage": {"include": True}},
)
DEEPSEEK_DIALECT = ChatDialect(
    effort="",
    thinking_switch=("deepseek-v4", "deepseek-flash", "deepseek-pro"),
    reasoning_field="reasoning_content",
    top_k=False,
    choices=False,
    adapt=("no_json_schema", "say_json"),
)


@final
class OpenAIChatClient(ProviderClient):
    """A worker behind `POST {base_url}/chat/completions`."""

    def __init__(
        self,
        worker: Worker,
        http: HttpTransport,
        *,
        base_url: str = "https://api.openai.com/v1",
        key: Secret = NO_KEY,
        dialect: ChatDialect = OPENAI_DIALECT,
    ) -> None:
        """Create the client; no connection is opened yet.

        Raises:
            ConfigError: `base_url` is not an http(s) URL.
        """
        target = openai_target(base_url, "/chat/completions", key, dialect)
        adapter = OpenAIChatAdapter(worker.model, dialect)
        super().__init__("OpenAIChat", worker, http, adapter=adapter, target=target)


@final
class TextCallClient:
    """Calls `inner` and parses tool calls in the text of its answers."""

    def __init__(self, inner: Client) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return repr(self.inner)

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return `inner`'s reply, with tool calls in its text moved to `tool_calls`.

        The text is not parsed if the request allows no calls, or requests log probabilities.
        """
        takes_calls = request.tools and request.tool_choice != "none"
        if not takes_calls or request.sampling.logprobs is not None:
            return await self.inner.complete(request, listener)
        return await complete_with_calls(self.inner, request, listener)


@final
class OpenAIChatAdapter:
    """Translates requests to this API and parses its replies.

    It remembers the field in which the server sends reasoning, and nothing else.
    """

    def __init__(self, model: str, dialect: ChatDialect) -> None:
        self._model = model
        self._dialect = dialect
        self._reasoning_field = dialect.reasoning_field
        if not dialect.reasoning_field and _ACCEPTS_REASONING.search(model):
            self._reasoning_field = "reasoning_content"
        self.supports_prefill = dialect.prefill

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """Return the JSON to send.

        Raises:
            BadRequestError: the server accepts no files, or a sampling field is not supported.
        """
        body: dict[str, Any] = {
            "model": self._model,
            "messages": self._messages(request),
            **self._dialect.extra,
        }
        if stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        self._add_sampling(body, request)
        if request.tools:
            _add_tools(body, request, marks=self._dialect.cache_marks)
        if request.cache is not None and self._dialect.cache_keys:
            _put_if_set(body, "prompt_cache_key", request.cache.key)
            _put_if_set(body, "prompt_cache_retention", request.cache.retention)
        if request.response_format is not None:
            body["response_format"] = _response_format_json(request.response_format)
        if request.prefill and self.supports_prefill:
            body["continue_final_message"] = True
            body["add_generation_prompt"] = False
        return body

    def _messages(self, request: Request) -> list[dict[str, Any]]:
        """Return the conversation as JSON, with the reasoning that this model may receive."""
        messages, sent = request.messages, list[dict[str, Any]]()
        if self._dialect.merges_system and len(messages) > 1 and messages[1].role in SYSTEM_ROLES:
            messages = merge_first_system_messages(request).messages
        if any(message.role in _WITH_TOOLS for message in messages):
            otherwise = OPENAI_IDS if self._dialect.own_efforts else ANY_ID
            messages = fit_tool_turns(messages, rule_of_model(self._model, otherwise))
        for message in messages:
            sent += _chat_messages(message, self._dialect)
            if message.role is Role.ASSISTANT:
                add_round_trip_fields(sent[-1], message, self._model, self._reasoning_field)
        if request.prefill and self.supports_prefill:
            sent.append({"role": "assistant", "content": request.prefill})
        return sent

    def parse_reply(self, data: Any) -> ProviderReply:
        """Parse a complete reply."""
        reply = parse_completion(data, self._model)
        self._note_field(reasoning_field_of(as_object(data["choices"][0]).get("message")))
        return reply

    def new_accumulator(self) -> StreamAccumulator:
        """Return an accumulator for a new reply."""
        return OpenAIStreamAccumulator(self._model, self._note_field)

    def _note_field(self, name: str) -> None:
        """Remember the field in which the server sends reasoning, to send it back in that field."""
        self._reasoning_field = name or self._reasoning_field

    def _add_sampling(self, body: dict[str, Any], request: Request) -> None:
        sampling, dialect = request.sampling, self._dialect
        if sampling.is_empty:
            _put_if_set(body, dialect.max_tokens, request.max_output)
            return
        if not self._model.startswith(dialect.fixed_sampling):
            _put_if_set(body, "temperature", sampling.temperature)
            _put_if_set(body, "top_p", sampling.top_p)
            refused = () if dialect.top_k else ("top_k",)
        else:
            refused = PENALTIES
        refuse_fields(self._model, sampling, refused if dialect.choices else (*refused, "choices"))
        for name in PENALTIES:
            _put_if_set(body, name, getattr(sampling, name))
        _put_if_set(body, dialect.max_tokens, min_cap(sampling.max_tokens, request.max_output))
        _put_if_set(body, "stop", list(sampling.stop) or None)
        _put_if_set(body, "seed", sampling.seed)
        _put_if_set(body, "n", sampling.choices)
        if sampling.logprobs is not None:
            body["logprobs"] = True
            _put_if_set(body, "top_logprobs", sampling.logprobs or None)
        if sampling.effort:
            self._add_effort(body, sampling.effort)

    def _add_effort(self, body: dict[str, Any], effort: str) -> None:
        dialect = self._dialect
        own_name = dialect.efforts.get(effort, effort)
        if self._model.startswith(dialect.thinking_switch):
            body["thinking"] = {"type": "disabled" if effort == "none" else "enabled"}
            if effort != "none":
                body["reasoning_effort"] = "max" if effort in {"xhigh", "max"} else "high"
        elif not dialect.effort or not self._model.startswith(dialect.reasoning_models):
            return
        elif dialect.effort == "reasoning":
            body["reasoning"] = {"effort": own_name}
        elif dialect.own_efforts:
            body[dialect.effort] = reasoning_effort(self._model, own_name)
        else:
            body[dialect.effort] = own_name


def openai_target(base_url: str, path: str, key: Secret, dialect: ChatDialect) -> HttpTarget:
    """Return the target for a path, with the key in the header that the server expects.

    Raises:
        ConfigError: `base_url` is not an http(s) URL.
    """
    headers: dict[str, str] = {}
    if key and dialect.key_header:
        headers = {dialect.key_header: key.reveal()}
    elif key:
        headers = {"Authorization": f"Bearer {key.reveal()}"}
    return HttpTarget(url=base_url.rstrip("/") + path, headers=headers, key=key)


def _put_if_set(body: dict[str, Any], name: str, value: Any) -> None:
    if value is not None:
        body[name] = value


def _chat_messages(message: Message, dialect: ChatDialect) -> list[dict[str, Any]]:
    """Return the API's messages for a message: first tool results, as they answer earlier calls."""
    messages: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": part.call_id, "content": part.content}
        for part in message.parts
        if isinstance(part, ToolResult)
    ]
    if message.role is Role.ASSISTANT:
        messages.append(_assistant_json(message))
    elif message.role is not Role.TOOL:
        messages.append(_message_json(message, dialect))
    return messages


def _message_json(message: Message, dialect: ChatDialect) -> dict[str, Any]:
    role = message.role
    if role is Role.DEVELOPER and not dialect.developer:
        role = Role.SYSTEM
    encoded: dict[str, Any] = {"role": role.value, "content": _message_content(message, dialect)}
    if message.name:
        encoded["name"] = message.name
    return encoded


def _message_content(message: Message, dialect: ChatDialect) -> str | list[dict[str, Any]]:
    """Return the content, as a string if it is only text: old servers accept nothing else."""
    marked = dialect.cache_marks and any(part.cache for part in message.parts)
    if not message.attachments and not marked:
        return message.text
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, Image):
            url = {"url": part.url} | ({"detail": part.detail} if part.detail else {})
            parts.append({"type": "image_url", "image_url": url})
        elif isinstance(part, File):
            parts.append(_file_part(part, dialect))
        elif isinstance(part, Audio):
            audio = {"data": part.data, "format": part.format}
            parts.append({"type": "input_audio", "input_audio": audio})
        if marked and part.cache is not None and parts:
            parts[-1]["cache_control"] = cache_control(part.cache)
    return parts


def _file_part(file: File, dialect: ChatDialect) -> dict[str, Any]:
    """Return a file as a content part.

    Raises:
        BadRequestError: the server does not accept files.
    """
    if not dialect.files:
        raise BadRequestError("this worker's server does not accept files")
    url = f"data:{file.media_type};base64,{file.data}"
    return {"type": "file", "file": {"filename": file.name or "file.pdf", "file_data": url}}


def _assistant_json(message: Message) -> dict[str, Any]:
    calls = [_call_json(part) for part in message.parts if isinstance(part, ToolCall)]
    encoded: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if calls:
        encoded["tool_calls"] = calls
    elif encoded["content"] is None:
        encoded["content"] = ""
    if message.name:
        encoded["name"] = message.name
    return encoded


def _call_json(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _add_tools(body: dict[str, Any], request: Request, *, marks: bool) -> None:
    body["tools"] = [_tool_json(tool, marks=marks) for tool in request.tools]
    choice = request.tool_choice
    if choice in {"auto", "none", "required"}:
        body["tool_choice"] = choice
    elif choice:
        body["tool_choice"] = {"type": "function", "function": {"name": choice}}
    _put_if_set(body, "parallel_tool_calls", request.parallel_tool_calls)


def _tool_json(tool: Tool, *, marks: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    _put_if_set(function, "description", tool.description or None)
    _put_if_set(function, "parameters", dict(tool.parameters) or None)
    _put_if_set(function, "strict", tool.strict)
    offered: dict[str, Any] = {"type": "function", "function": function}
    if marks and tool.cache is not None:
        offered["cache_control"] = cache_control(tool.cache)
    return offered


def _response_format_json(form: ResponseFormat) -> dict[str, Any]:
    if form.kind == "json_object":
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": form.name, "schema": dict(form.schema)}
    _put_if_set(schema, "strict", form.strict)
    return {"type": "json_schema", "json_schema": schema}
