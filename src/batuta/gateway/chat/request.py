"""Parser of the body of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from batuta.clients.decoding import MAX_CHOICES
from batuta.config.effort import EFFORTS
from batuta.core import (
    NO_SAMPLING,
    Image,
    Message,
    Part,
    Question,
    Role,
    Sampling,
    Text,
    ToolCall,
    ToolResult,
)
from batuta.core.server_tools import WEB_SEARCH, RequestedTool
from batuta.gateway.errors import (
    invalid_type,
    invalid_value,
    missing_parameter,
    unsupported_parameter,
)
from batuta.gateway.http.body import MAX_ENTRIES, Fields, encode_json
from batuta.gateway.serving.attachments import parse_audio, parse_file, picture_url
from batuta.gateway.serving.parsed_call import (
    ORCHESTRATION_FIELD,
    ParsedCall,
    check_metadata,
    check_unsupported,
    client_session,
    parse_cache,
    parse_run_options,
    request_labels,
    return_made_pictures,
)
from batuta.gateway.serving.tools import (
    NO_TOOLS,
    parse_chat_server_tools,
    parse_response_format,
    parse_tools,
)

_ROLES = tuple(role.value for role in Role)
_UNSUPPORTED_PARTS = {"video_url", "audio"}
"""Content types of the API that are refused."""

_PREFILL_FLAGS = ("prefix", "partial")
"""Flags by which DeepSeek, Mistral and Moonshot continue an assistant message of the client."""
_MAX_SEED = 2**63 - 1
_MAX_TOKENS = 100_000_000
_MAX_STOPS = 16
_MOST_TOP_K = 1_000_000
_MAX_LOGPROBS = 20

REFUSED_FIELDS = {
    "functions": "use 'tools'.",
    "function_call": "use 'tool_choice'.",
    "audio": "answers are text and images.",
    "logit_bias": "it cannot be honoured for every worker.",
    "moderation": "it cannot be set in a request.",
}
"""Known fields that are refused, unless their value is empty, with the reasons."""
_USED_FIELDS = {
    "model", "messages", "stream", "stream_options", "max_completion_tokens", "max_tokens",
    "temperature", "top_p", "stop", "n", "logprobs", "top_logprobs", "seed", "tools",
    "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort",
    "web_search_options", "store", "modalities", "frequency_penalty", "presence_penalty", "top_k",
    "prompt_cache_key", "prompt_cache_retention", ORCHESTRATION_FIELD,
}  # fmt: skip
_ACCEPTED_FIELDS = {"verbosity", "metadata", "user", "safety_identifier", "service_tier"}
"""Fields that are validated and do not change the answer; a response header lists them. Some of
them label the stored run."""
_KNOWN_FIELDS = _USED_FIELDS | _ACCEPTED_FIELDS | REFUSED_FIELDS.keys()
_CHECKED_FIELDS = frozenset({*REFUSED_FIELDS, *_ACCEPTED_FIELDS, "modalities"})
_TOOL_FIELDS = frozenset({"tools", "tool_choice"})
_SERVER_FIELDS = frozenset({"web_search_options", "tools"})
_FORMAT_FIELDS = frozenset({"response_format"})
_SAMPLING_FIELDS = frozenset({
    "max_completion_tokens", "max_tokens", "temperature", "top_p", "stop", "n", "logprobs",
    "top_logprobs", "seed", "reasoning_effort", "frequency_penalty", "presence_penalty", "top_k",
})  # fmt: skip


def parse_chat(body: Fields) -> ParsedCall:
    """Return the body as a call.

    Raises:
        APIError: the body is invalid; the error names the path of an invalid field.
    """
    model = body.need_text("model")
    messages = parse_messages(body)
    if body.mentions(_CHECKED_FIELDS):
        _check_unsupported(body)
        _check_accepted(body)
    tools, choice = parse_tools(body) if body.mentions(_TOOL_FIELDS) else NO_TOOLS
    options = body.object("stream_options")
    question = Question(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.flag("parallel_tool_calls"),
        response_format=parse_response_format(body) if body.mentions(_FORMAT_FIELDS) else None,
        sampling=parse_sampling(body),
        cache=parse_cache(body),
    )
    return ParsedCall(
        model=model,
        question=question,
        stream=bool(body.flag("stream")),
        include_usage=bool(options and options.flag("include_usage")),
        store=body.flag("store") is not False,
        options=parse_run_options(body),
        session=client_session(body),
        files=body.files,
        labels=request_labels(body),
        ignored=tuple(body.unused(_KNOWN_FIELDS, _ACCEPTED_FIELDS)),
        server_tools=_parse_server_tools(body) if body.mentions(_SERVER_FIELDS) else (),
    )


def _parse_server_tools(body: Fields) -> tuple[RequestedTool, ...]:
    return (*_parse_search(body), *parse_chat_server_tools(body))


def _parse_search(body: Fields) -> tuple[RequestedTool, ...]:
    options = body.object("web_search_options")
    if options is None:
        return ()
    options.choice("search_context_size", ("low", "medium", "high"))
    requested = RequestedTool(
        tool=WEB_SEARCH, field="web_search_options", is_refused=True, opens_pages=True
    )
    return (requested,)


def parse_sampling(body: Fields) -> Sampling:
    """Return the sampling settings of the visible answer.

    Raises:
        APIError: a value is invalid.
    """
    if not body.mentions(_SAMPLING_FIELDS):
        return NO_SAMPLING
    newer = _whole_or_none(body, "max_completion_tokens", _MAX_TOKENS, (-1,))
    choices = body.whole("n", 1, MAX_CHOICES)
    older = _whole_or_none(body, "max_tokens", _MAX_TOKENS, (-1,))
    return Sampling(
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        max_tokens=older if newer is None else newer,
        stop=_parse_stops(body),
        seed=body.whole("seed", -_MAX_SEED - 1, _MAX_SEED),
        effort=body.choice("reasoning_effort", EFFORTS),
        frequency_penalty=body.number("frequency_penalty", -2, 2) or None,
        presence_penalty=body.number("presence_penalty", -2, 2) or None,
        top_k=_whole_or_none(body, "top_k", _MOST_TOP_K, (-1, 0)),
        choices=None if choices == 1 else choices,
        logprobs=_parse_logprobs(body),
    )


def _whole_or_none(body: Fields, name: str, most: int, unset: tuple[int, ...]) -> int | None:
    """Return an integer from 1 to `most`; None if absent or in `unset`, which means no limit."""
    given = body.get(name)
    return None if type(given) is int and given in unset else body.whole(name, 1, most)


def _parse_logprobs(body: Fields) -> int | None:
    """Return the number of alternatives for each token; None: no log probabilities."""
    enabled, others = body.flag("logprobs"), body.whole("top_logprobs", 0, _MAX_LOGPROBS)
    if others and not enabled:
        raise invalid_value("top_logprobs", "it needs 'logprobs' to be true.")
    return (others or 0) if enabled else None


def _parse_stops(body: Fields) -> tuple[str, ...]:
    stop = body.get("stop")
    if isinstance(stop, list):
        return body.texts("stop", _MAX_STOPS) or ()
    text = body.text("stop")
    return (text,) if text else ()


def _check_unsupported(body: Fields) -> None:
    """Raise APIError if the body has a field or a modality that is refused."""
    check_unsupported(body, REFUSED_FIELDS)
    if any(form not in {"text", "image"} for form in body.texts("modalities", 8) or ()):
        raise unsupported_parameter("modalities", "answers are text and images.")


def _check_accepted(body: Fields) -> None:
    body.choice("verbosity", ("low", "medium", "high"))
    for name in ("user", "safety_identifier", "service_tier"):
        body.text(name)
    check_metadata(body)


def parse_messages(body: Fields) -> tuple[Message, ...]:
    """Return the conversation; pictures of assistant messages move to the next user message.

    Such pictures after the last user message are left out.

    Raises:
        APIError: `messages` is missing, empty, malformed or not supported.
    """
    body.need("messages")
    messages = body.objects("messages", MAX_ENTRIES) or []
    if not messages:
        raise invalid_value("messages", "it must have at least one message.")
    return return_made_pictures(tuple(_parse_message(message) for message in messages))


def _parse_message(message: Fields) -> Message:
    message.need("role")
    role = Role(message.choice("role", _ROLES) or "")
    name = message.text("name")
    if role is Role.ASSISTANT:
        return _parse_assistant(message, name)
    if role is Role.TOOL:
        result = ToolResult(call_id=message.need_text("tool_call_id"), content=_tool_text(message))
        return Message(role=role, parts=(result,), name=name)
    message.need("content")
    return Message(role=role, parts=_parse_parts(message, attachments=role is Role.USER), name=name)


def _parse_assistant(message: Fields, name: str | None) -> Message:
    if message.get("function_call") is not None:
        raise unsupported_parameter(message.path("function_call"), "use 'tool_calls'.")
    for flag in _PREFILL_FLAGS:
        if message.get(flag):
            raise unsupported_parameter(
                message.path(flag), "continuing an assistant message is not supported."
            )
    parts = (
        [*_parse_parts(message, attachments=False)]
        if message.get("content") not in (None, [])
        else []
    )
    refusal = message.text("refusal")
    if refusal:
        parts.append(Text(refusal))
    calls = [_parse_tool_call(call) for call in message.objects("tool_calls", MAX_ENTRIES) or ()]
    parts += map(_parse_made_image, message.objects("images", MAX_ENTRIES) or ())
    reasoning = message.text("reasoning_content") or message.text("reasoning") or ""
    if not parts and not calls and not reasoning:
        parts = [Text("")]  # an empty assistant message
    return Message(role=Role.ASSISTANT, parts=(*parts, *calls), name=name, reasoning=reasoning)


def _parse_tool_call(call: Fields) -> ToolCall:
    kind = call.text("type")
    if kind == "custom":
        raise unsupported_parameter(
            call.path("type"), "only calls of type 'function' are supported."
        )
    if kind not in {None, "function"}:
        raise invalid_value(call.path("type"), "it must be 'function'.")
    function = call.need_object("function")
    arguments = function.get("arguments")
    if isinstance(arguments, dict):  # as Ollama sends them
        arguments = encode_json(arguments).decode()
    else:
        arguments = function.text("arguments")
    if arguments is None:
        raise missing_parameter(function.path("arguments"))
    return ToolCall(id=call.need_text("id"), name=function.need_text("name"), arguments=arguments)


def _tool_text(message: Fields) -> str:
    if message.get("content") in (None, []):
        return ""
    parts = _parse_parts(message, attachments=False)
    return "".join(part.text for part in parts if isinstance(part, Text))


def _parse_parts(message: Fields, *, attachments: bool) -> tuple[Part, ...]:
    """Return the content, given as a string or as an array of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return (Text(content, cache=message.cache_mark()),)
    if not isinstance(content, list):
        raise invalid_type(message.path("content"), "a string or an array", content)
    parts = message.objects("content", MAX_ENTRIES) or []
    if not parts:
        raise invalid_value(message.path("content"), "it must have at least one part.")
    return tuple(_parse_part(part, attachments=attachments) for part in parts)


def _parse_part(part: Fields, *, attachments: bool) -> Part:
    part.need("type")
    match part.text("type"):
        case "text" | "input_text" | "output_text":  # the last two come from the Responses API
            return Text(part.need_string("text"), cache=part.cache_mark())
        case "refusal":
            return Text(part.need_string("refusal"))
        case kind if kind in _ATTACHMENT_PARSERS and attachments:
            return _ATTACHMENT_PARSERS[kind](part)
        case "image_url":
            raise invalid_value(part.path("type"), "only a user message may contain an image.")
        case kind if kind in _ATTACHMENT_PARSERS:
            raise invalid_value(
                part.path("type"), "only a user message may contain files or recordings."
            )
        case kind if kind in _UNSUPPORTED_PARTS:
            raise unsupported_parameter(
                part.path("type"), f"content of type '{kind}' is not supported."
            )
        case _:
            types = "'text', 'image_url', 'file' or 'input_audio'"
            raise invalid_value(part.path("type"), f"it must be {types}.")


def _parse_file(part: Fields) -> Part:
    file = part.need_object("file")
    if file.get("file_id") is not None:
        reason = "no files are kept here; send the file's data."
        raise unsupported_parameter(file.path("file_id"), reason)
    read = parse_file(file, "file_data", file.text("filename") or "")
    return replace(read, cache=part.cache_mark())


def _parse_image(part: Fields) -> Image:
    part.need("image_url")
    if isinstance(part.get("image_url"), str):  # the form of the Responses API
        url = picture_url(part.path("image_url"), part.need_text("image_url"))
        return Image(url=url, cache=part.cache_mark())
    image = part.need_object("image_url")
    url = picture_url(image.path("url"), image.need_text("url"))
    detail = image.choice("detail", ("auto", "low", "high", "original"))
    return Image(url=url, detail=detail, cache=part.cache_mark())


def _parse_made_image(part: Fields) -> Image:
    """Return an image that a model generated earlier, sent back in the form of our answers."""
    image = part.need_object("image_url")
    return Image(url=picture_url(image.path("url"), image.text("url") or ""))


_ATTACHMENT_PARSERS: Mapping[str | None, Callable[[Fields], Part]] = {
    "image_url": _parse_image,
    "file": _parse_file,
    "input_audio": parse_audio,
}
"""Parsers of the parts that only a user message may contain, by type."""
