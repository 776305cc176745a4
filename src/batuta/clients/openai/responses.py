"""OpenAI's Responses API, for its models that call tools only there.

Deviations a caller should know: nothing is stored there (`store` is false), so reasoning goes back
as the encrypted items that came with a call; a seed is not sent (there is none); temperature and
top_p are sent only at the effort `none`, which is the only one that takes them; a message that the
model marks as commentary counts as reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import orjson

from batuta.clients.call import (
    CHOICES,
    PENALTIES,
    ErrorReply,
    ProviderClient,
    ProviderEndpoint,
    ProviderReply,
    StreamAccumulator,
    ToolCallAccumulator,
    min_cap,
    refuse_continuation,
    refuse_fields,
    resolve_finish,
)
from batuta.clients.decoding import (
    as_array,
    as_count,
    as_object,
    as_string,
    is_wrong_count,
    need_string,
)
from batuta.clients.openai.client import ChatDialect, key_headers
from batuta.clients.openai.models import reasoning_effort
from batuta.clients.secret import NO_KEY, Secret
from batuta.clients.transport import HttpTarget, HttpTransport
from batuta.core import (
    Delta,
    File,
    Finish,
    Image,
    Message,
    Part,
    Reply,
    Request,
    Role,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Usage,
    Worker,
)
from batuta.errors import BadRequestError, UnsupportedFieldError

_FINISH = {"max_output_tokens": Finish.LENGTH, "content_filter": Finish.CONTENT_FILTER}
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
        """Opens nothing.

        Raises:
            ConfigError: `base_url` is no http(s) URL.
        """
        headers = key_headers(key, dialect) if key else {}
        target = HttpTarget(url=base_url.rstrip("/") + "/responses", headers=headers, key=key)
        super().__init__(
            "OpenAIResponses",
            ProviderEndpoint(
                worker=worker,
                adapter=OpenAIResponsesAdapter(worker.model, dialect),
                http=http,
                reply_target=target,
                stream_target=target,
            ),
        )


@final
class OpenAIResponsesAdapter:
    """The dialect as pure functions."""

    supports_prefill = False

    def __init__(self, model: str, dialect: ChatDialect) -> None:
        self._model = model
        self._extra = dialect.extra

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """The JSON to send."""
        body: dict[str, Any] = {
            "model": self._model,
            "input": _input_items(request.messages, self._model),
            "store": False,
            **self._extra,
        }
        if stream:
            body["stream"] = True
        self._add_sampling(body, request)
        if request.tools:
            _add_tools(body, request)
        if request.response_format is not None:
            body["text"] = {"format": _text_format(request)}
        for field, name in _CACHE_FIELDS if request.cache is not None else ():
            value = getattr(request.cache, name)
            if value is not None:
                body[field] = value
        return body

    def parse_reply(self, data: Any) -> ProviderReply:
        """A whole reply read."""
        return parse_response(data, self._model)

    def new_accumulator(self) -> StreamAccumulator:
        """An empty reply."""
        return ResponsesStreamAccumulator(self._model)

    def _add_sampling(self, body: dict[str, Any], request: Request) -> None:
        sampling = request.sampling
        refuse_fields(self._model, sampling, (*PENALTIES, *CHOICES))
        refuse_continuation(self._model, request)
        if sampling.stop:
            raise UnsupportedFieldError(f"{self._model} takes no stop")
        most = min_cap(sampling.max_tokens, request.max_output)
        if most is not None:
            body["max_output_tokens"] = most
        if sampling.effort is None:
            return
        effort = reasoning_effort(self._model, sampling.effort)
        body["reasoning"] = {"effort": effort}
        if effort == "none":
            for name in ("temperature", "top_p"):
                if getattr(sampling, name) is not None:
                    body[name] = getattr(sampling, name)


def _input_items(messages: Sequence[Message], model: str) -> list[dict[str, Any]]:
    """The conversation as items: what was said, thought, called and returned."""
    items: list[dict[str, Any]] = []
    for message in messages:
        # Results answer the turn before, so they come before whatever else this turn says.
        items.extend(_result_item(part) for part in message.parts if isinstance(part, ToolResult))
        items.extend(_thought_item(one) for one in message.thoughts if one.model == model)
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
    raise BadRequestError("this model takes no audio")


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
    """Reasoning as it came: its id and what only OpenAI can read stand in one text."""
    item_id, _, encrypted = thought.redacted.partition(":")
    return {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": encrypted}


def _add_tools(body: dict[str, Any], request: Request) -> None:
    body["tools"] = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description or None,
            "parameters": dict(tool.parameters) or None,
            "strict": tool.strict or False,
        }
        for tool in request.tools
    ]
    choice = request.tool_choice
    if choice in {"auto", "none", "required"}:
        body["tool_choice"] = choice
    elif choice:
        body["tool_choice"] = {"type": "function", "name": choice}
    if request.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = request.parallel_tool_calls


def _text_format(request: Request) -> dict[str, Any]:
    wanted = request.response_format
    if wanted is None or wanted.kind == "json_object":
        return {"type": "json_object"}
    form: dict[str, Any] = {
        "type": "json_schema",
        "name": wanted.name,
        "schema": dict(wanted.schema),
    }
    return form if wanted.strict is None else {**form, "strict": wanted.strict}


@final
class ResponsesStreamAccumulator:
    """A stream of events from `response.created` to `response.completed`."""

    def __init__(self, model: str) -> None:
        """Nothing came yet.

        Args:
            model: the model that was asked; its reasoning is its own.
        """
        self.is_closed = False
        self._asked = model
        self._model = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCallAccumulator()
        self._places: dict[int, int] = {}
        self._asides: set[int] = set()
        self._thoughts: list[Thought] = []
        self._refused = False
        self._ended: dict[str, Any] = {}

    @property
    def is_finished(self) -> bool:
        """The end of the reply was announced."""
        return bool(self._ended)

    def add_event(self, event: str, data: bytes) -> Sequence[Delta]:
        """The fragments of one event.

        Raises:
            ErrorReply: the event is an error.
        """
        told = orjson.loads(data)
        kind = as_string(told.get("type")) or event
        if kind in {"error", "response.failed"} or told.get("error"):
            raise ErrorReply(_error_of(told))
        if kind == "response.output_item.added":
            return self._start_item(as_count(told["output_index"]), told["item"])
        if kind == "response.output_item.done":
            return self._end_item(told["item"])
        if kind.endswith(".delta"):
            return self._add_delta(kind, told)
        if kind in {"response.completed", "response.incomplete"}:
            self._ended = told["response"]
            self.is_closed = True
        if not self._model:
            self._model = as_string(as_object(told.get("response")).get("model"))
        return ()

    def result(self) -> ProviderReply:
        """All that came so far."""
        calls = self._calls.tool_calls()
        reply = Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=_finish_of(self._ended, calls, is_refusal=self._refused),
            model=self._model,
            thoughts=tuple(self._thoughts),
            is_refusal=self._refused,
        )
        return ProviderReply(reply=reply, usage=parse_usage(self._ended.get("usage")))

    def _start_item(self, place: int, item: dict[str, Any]) -> Sequence[Delta]:
        if item.get("phase") == "commentary":
            self._asides.add(place)
        if item.get("type") != "function_call":
            return ()
        self._places[place] = len(self._calls)
        return (self._calls.start_call(as_string(item.get("call_id")), item["name"]),)

    def _end_item(self, item: dict[str, Any]) -> Sequence[Delta]:
        thought = _thought_of(item, self._asked)
        if thought is None:
            return ()
        self._thoughts.append(thought)
        return (Delta(thought=thought),)

    def _add_delta(self, kind: str, told: dict[str, Any]) -> Sequence[Delta]:
        said, place = need_string(told["delta"]), as_count(told.get("output_index"))
        if kind == "response.function_call_arguments.delta":
            return (self._calls.add_arguments(self._places[place], said),)
        if "reasoning" in kind or place in self._asides:
            self._reasoning.append(said)
            return (Delta(reasoning=said),)
        if kind not in {"response.output_text.delta", "response.refusal.delta"}:
            return ()
        self._text.append(said)
        refused = kind == "response.refusal.delta"
        self._refused = self._refused or refused
        return (Delta(text=said, is_refusal=refused),)


def parse_response(data: Any, model: str) -> ProviderReply:
    """A response read.

    Args:
        data: the response.
        model: the model that was asked.

    Raises:
        ErrorReply: it is an error object, or says that it failed.
    """
    if data.get("error") or data.get("status") == "failed":
        raise ErrorReply(_error_of(data))
    text: list[str] = []
    reasoning: list[str] = []
    thoughts: list[Thought] = []
    calls = ToolCallAccumulator()
    refused = False
    for item in data["output"]:
        if item["type"] == "message":
            parts = [as_object(part) for part in as_array(item["content"])]
            refused = refused or any(part.get("type") == "refusal" for part in parts)
            heard = reasoning if item.get("phase") == "commentary" else text
            heard += (_part_text(part) for part in parts)
        elif item["type"] == "function_call":
            calls.start_call(as_string(item.get("call_id")), item["name"], item["arguments"])
        elif item["type"] == "reasoning":
            shown = (*as_array(item.get("summary")), *as_array(item.get("content")))
            reasoning += (as_string(as_object(part).get("text")) for part in shown)
            thoughts += filter(None, (_thought_of(item, model),))
    reply = Reply(
        text="".join(text),
        reasoning="".join(reasoning),
        tool_calls=calls.tool_calls(),
        finish=_finish_of(data, calls.tool_calls(), is_refusal=refused),
        model=as_string(data.get("model")),
        thoughts=tuple(thoughts),
        is_refusal=refused,
    )
    return ProviderReply(reply=reply, usage=parse_usage(data.get("usage")))


def _part_text(part: dict[str, Any]) -> str:
    return as_string(part.get("text")) or as_string(part.get("refusal"))


def parse_usage(usage: Any) -> Usage | None:
    """The usage of one call; None if the provider told none."""
    told = as_object(usage)
    if any(is_wrong_count(told.get(name)) for name in ("input_tokens", "output_tokens")):
        return None
    prompt, output = as_count(told.get("input_tokens")), as_count(told.get("output_tokens"))
    if not prompt and not output:
        return None
    read = as_object(told.get("input_tokens_details"))
    cached = min(as_count(read.get("cached_tokens")), prompt)
    reasoning = as_count(as_object(told.get("output_tokens_details")).get("reasoning_tokens"))
    return Usage(
        calls=1,
        input=prompt,
        cached=cached,
        cache_write=min(as_count(read.get("cache_write_tokens")), prompt - cached),
        output=output,
        reasoning=min(reasoning, output),
    )


def _thought_of(item: dict[str, Any], model: str) -> Thought | None:
    """Reasoning that only OpenAI can read; None: the item holds none."""
    item_id, encrypted = as_string(item.get("id")), as_string(item.get("encrypted_content"))
    if item.get("type") != "reasoning" or not encrypted:
        return None
    return Thought(model=model, redacted=f"{item_id}:{encrypted}")


def _finish_of(ended: dict[str, Any], calls: Sequence[ToolCall], *, is_refusal: bool) -> Finish:
    if is_refusal:
        return Finish.CONTENT_FILTER
    reason = as_string(as_object(ended.get("incomplete_details")).get("reason"))
    return resolve_finish(_FINISH.get(reason, Finish.STOP), calls)


def _error_of(told: dict[str, Any]) -> dict[str, Any]:
    """An error in the form of the API's other errors."""
    nested = as_object(told.get("response")).get("error") or told.get("error")
    return {"error": nested or {key: told.get(key) for key in ("code", "message")}}
