"""OpenAI's Responses API, for models that support tools only there.

Deviations a caller should know:
- Nothing is stored at OpenAI (`store` is false), so reasoning is sent back as encrypted items; the
  API returns them only if `include` names them.
- A seed and prefill are not sent, as the API has neither.
- Stop sequences, penalties, `top_k`, `n` and log probabilities are refused.
- Temperature and top_p are sent only at the effort `none`; other efforts do not accept them.
- A message that the model marks as commentary counts as reasoning.
- A limit of fewer output tokens than `MIN_OUTPUT` is raised to that, as the API refuses it. Clients
  such as Claude Code probe a model with a limit of 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, final

from batuta.clients.adaptations import ENCRYPTED_REASONING
from batuta.clients.call import ProviderClient, min_cap
from batuta.clients.decoding import ProviderReply
from batuta.clients.error_mapping import CHOICES, PENALTIES, refuse_fields
from batuta.clients.http_target import NO_KEY, Secret
from batuta.clients.native_search import domain_lists, find_native, without_native
from batuta.clients.openai.client import ChatDialect, OpenAIChatClient, openai_target
from batuta.clients.openai.models import reasoning_effort
from batuta.clients.openai.responses_stream import ResponsesStreamAccumulator, parse_response
from batuta.clients.stream_reading import StreamAccumulator
from batuta.clients.tool_turns import OPENAI_IDS, fit_tool_turns
from batuta.clients.transport import HttpTransport
from batuta.core import (
    CallListener,
    File,
    Image,
    Message,
    Part,
    Reply,
    Request,
    ResponseFormat,
    Role,
    Text,
    Thought,
    Tool,
    ToolCall,
    ToolResult,
    Worker,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.server_tools import WEB_SEARCH
from batuta.errors import BadRequestError, ClientError, UnsupportedFieldError

MIN_OUTPUT = 16
"""The lowest limit on the output that the API accepts, in tokens."""
_SOURCES = "web_search_call.action.sources"
"""The `include` value without which the pages of a search are not returned."""
_CACHE_FIELDS = (("prompt_cache_key", "key"), ("prompt_cache_retention", "retention"))


@final
class OpenAIResponsesClient(ProviderClient):
    """A worker behind `POST {base_url}/responses`."""

    def __init__(
        self,
        worker: Worker,
        http: HttpTransport,
        *,
        base_url: str,
        key: Secret = NO_KEY,
        dialect: ChatDialect,
    ) -> None:
        """Create the client; no connection is opened yet.

        Raises:
            ConfigError: `base_url` is not an http(s) URL.
        """
        target = openai_target(base_url, "/responses", key, dialect)
        adapter = OpenAIResponsesAdapter(worker.model, dialect)
        super().__init__("OpenAIResponses", worker, http, adapter=adapter, target=target)


@final
class OpenAIResponsesAdapter:
    """Translates requests to this API and parses its replies; pure functions."""

    supports_prefill = False

    def __init__(self, model: str, dialect: ChatDialect) -> None:
        self._model = model
        self._extra = dialect.extra

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """Return the JSON to send.

        Raises:
            BadRequestError: the request has audio, or a sampling field that is not supported.
        """
        body: dict[str, Any] = {
            "model": self._model,
            "input": _input_items(fit_tool_turns(request.messages, OPENAI_IDS), self._model),
            "store": False,
            "include": [ENCRYPTED_REASONING],
            **self._extra,
        }
        if stream:
            body["stream"] = True
        self._add_sampling(body, request)
        if request.tools:
            _add_tools(body, request)
        if request.response_format is not None:
            body["text"] = {"format": _text_format(request.response_format)}
        for field, name in _CACHE_FIELDS if request.cache is not None else ():
            value = getattr(request.cache, name)
            if value is not None:
                body[field] = value
        return body

    def parse_reply(self, data: Any) -> ProviderReply:
        """Parse a complete reply."""
        return parse_response(data, self._model)

    def new_accumulator(self) -> StreamAccumulator:
        """Return an accumulator for a new reply."""
        return ResponsesStreamAccumulator(self._model)

    def _add_sampling(self, body: dict[str, Any], request: Request) -> None:
        sampling = request.sampling
        refuse_fields(self._model, sampling, (*PENALTIES, *CHOICES))
        if sampling.stop:
            raise UnsupportedFieldError(f"{self._model} does not accept stop")
        most = min_cap(sampling.max_tokens, request.max_output)
        if most is not None:
            body["max_output_tokens"] = max(most, MIN_OUTPUT)
        if sampling.effort is None:
            return
        effort = reasoning_effort(self._model, sampling.effort)
        body["reasoning"] = {"effort": effort}
        if effort == "none":
            for name in ("temperature", "top_p"):
                if getattr(sampling, name) is not None:
                    body[name] = getattr(sampling, name)


def _input_items(messages: Sequence[Message], model: str) -> list[dict[str, Any]]:
    """Return the conversation as input items: messages, reasoning, tool calls and results."""
    items: list[dict[str, Any]] = []
    for message in messages:
        # Tool results answer earlier calls, so they precede the message's other items.
        items.extend(_result_item(part) for part in message.parts if isinstance(part, ToolResult))
        own = (one for one in message.thoughts if one.model == model and one.redacted)
        items.extend(_thought_item(one) for one in own)
        if message.role is Role.ASSISTANT:
            if message.text:
                content = [{"type": "output_text", "text": message.text}]
                items.append({"type": "message", "role": "assistant", "content": content})
            items.extend(_call_item(part) for part in message.parts if isinstance(part, ToolCall))
        elif message.role is not Role.TOOL:
            content = [item for part in message.parts if (item := _content_part(part))]
            items.append({"type": "message", "role": message.role.value, "content": content})
    return items


def _content_part(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Image):
        return {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}
    if isinstance(part, File):
        url = f"data:{part.media_type};base64,{part.data}"
        return {"type": "input_file", "filename": part.name or "file.pdf", "file_data": url}
    if isinstance(part, ToolCall | ToolResult):
        return None
    raise BadRequestError("this model does not accept audio")


def _call_item(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _result_item(result: ToolResult) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": result.call_id, "output": result.content}


def _thought_item(thought: Thought) -> dict[str, Any]:
    """Return the reasoning item of a thought, which stores the item as `id.encrypted_content`."""
    mark = "." if "." in thought.redacted else ":"  # earlier versions used a colon
    item_id, _, encrypted = thought.redacted.partition(mark)
    return {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": encrypted}


def _add_tools(body: dict[str, Any], request: Request) -> None:
    body["tools"] = [_tool_json(tool) for tool in request.tools]
    native = find_native(request.tools)
    if native is not None:
        body["include"] = [_SOURCES, *(body["include"] or ())]
        body["max_tool_calls"] = native.max_uses
    choice = request.tool_choice
    if choice in {"auto", "none", "required"}:
        body["tool_choice"] = choice
    elif native is not None and choice == WEB_SEARCH:
        body["tool_choice"] = {"type": WEB_SEARCH}
    elif choice:
        body["tool_choice"] = {"type": "function", "name": choice}
    if request.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = request.parallel_tool_calls


def _tool_json(tool: Tool) -> dict[str, Any]:
    if tool.native is not None:
        domains = domain_lists(tool.native)
        return {"type": WEB_SEARCH, **({"filters": domains} if domains else {})}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description or None,
        "parameters": dict(tool.parameters) or None,
        "strict": tool.strict or False,
    }


def _text_format(form: ResponseFormat) -> dict[str, Any]:
    if form.kind == "json_object":
        return {"type": "json_object"}
    schema: dict[str, Any] = {"type": "json_schema", "name": form.name, "schema": dict(form.schema)}
    return schema if form.strict is None else {**schema, "strict": form.strict}


_NO_SUCH_API = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
_API_MISSING = re.compile(
    r"/responses|responses? (?:api|endpoint)|invalid url|unknown (?:request )?url|not implemented"
)
"""Matches errors about the URL rather than the request."""
_MODEL_NAMED = re.compile(r"\bmodel\b|deployment")


@final
class ResponsesOrChatClient:
    """Uses the Responses API; chat completions instead, if the server lacks the Responses API."""

    def __init__(self, responses: OpenAIResponsesClient, chat: OpenAIChatClient) -> None:
        self._responses = responses
        self._chat = chat
        self._has_responses = True

    def __repr__(self) -> str:
        return repr(self._responses if self._has_responses else self._chat)

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the model's reply; chat completions run no search of the provider's own.

        Raises:
            ClientError: the call failed.
        """
        if self._has_responses:
            try:
                return await self._responses.complete(request, listener)
            except ClientError as error:
                if not _has_no_responses(error):
                    raise
        reply = await self._chat.complete(without_native(request), listener)
        self._has_responses = False
        return reply


def _has_no_responses(error: ClientError) -> bool:
    words = error.words.lower()
    if error.usage is not None or error.status is None:
        return False
    if _API_MISSING.search(words):
        return error.status >= HTTPStatus.BAD_REQUEST
    return error.status in _NO_SUCH_API and not _MODEL_NAMED.search(words)
