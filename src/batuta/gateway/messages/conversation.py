"""Parser of the conversation in the body of a request to Anthropic's Messages API."""

from __future__ import annotations

from dataclasses import replace

from batuta.clients.data_url import picture_data_url
from batuta.core import File, Image, Message, Part, Role, Text, Thought, ToolCall, ToolResult
from batuta.errors import BadRequestError
from batuta.gateway.errors import (
    invalid_type,
    invalid_value,
    missing_parameter,
    unsupported_parameter,
)
from batuta.gateway.http.body import MAX_ENTRIES, Fields, encode_json
from batuta.gateway.serving.attachments import IMAGE_TYPES, picture_url, read_file, text_under_title
from batuta.gateway.serving.parsed_call import return_made_pictures
from batuta.gateway.serving.tenant_memory import split_signature

_ROLES = ("user", "assistant", "system")
_SKIPPED_BLOCKS = ("server_tool_use", "container_upload", "mcp_tool_listing", "fallback")
"""Blocks that are not passed to workers; results of server tools are not passed either."""
_IMAGE_URLS = tuple(f"data:{kind};" for kind in IMAGE_TYPES)
PROGRESS_SIGNATURE = "batuta-progress"
"""The signature of thinking blocks that contain a run's progress."""


def parse_turns(body: Fields) -> tuple[Message, ...]:
    """Return the system prompt, unless it is empty, and the turns as messages.

    Raises:
        APIError: `messages` is missing or empty, or it or `system` is malformed or not supported.
    """
    body.need("messages")
    turns = body.objects("messages", MAX_ENTRIES) or []
    if not turns:
        raise invalid_value("messages", "it must have at least one message.")
    calls: set[str] = set()
    messages = [message for turn in turns for message in _parse_turn(turn, calls)]
    return (*_parse_system(body), *return_made_pictures(tuple(messages)))


def _parse_system(body: Fields) -> tuple[Message, ...]:
    if body.get("system") is None:
        return ()
    parts = tuple(_parse_text(block) for block in _parse_blocks(body, "system"))
    return (Message(role=Role.SYSTEM, parts=parts),) if any(part.text for part in parts) else ()


def _parse_turn(turn: Fields, calls: set[str]) -> list[Message]:
    """Return a turn as messages: one for each tool result, and one for the other blocks.

    `calls` has the ids of the tool calls in earlier turns; those of this turn are added.
    """
    turn.need("role")
    role = Role(turn.choice("role", _ROLES) or "")
    turn.need("content")
    blocks = _parse_blocks(turn, "content")
    if role is Role.ASSISTANT:
        return [_parse_assistant(blocks, calls)]
    results: list[Message] = []
    parts: list[Part] = []
    for block in blocks:
        kind = block.text("type") or ""
        if kind == "tool_result":
            result, pictures = _parse_tool_result(block, calls)
            results.append(Message(role=Role.TOOL, parts=(result,)))
            parts += pictures
        elif not _is_skipped(kind):
            parts.append(_parse_part(block))
    return [*results, Message(role=role, parts=tuple(parts))] if parts or not results else results


def _parse_assistant(blocks: list[Fields], calls: set[str]) -> Message:
    parts: list[Part] = []
    reasoning: list[str] = []
    thoughts: list[Thought] = []
    for block in blocks:
        kind = block.text("type") or ""
        if kind == "tool_use":
            call = _parse_tool_use(block)
            calls.add(call.id)
            parts.append(call)
        elif kind in {"thinking", "redacted_thinking"}:
            thought, kept = _parse_thinking(block)
            reasoning += thought
            thoughts += kept
        elif kind == "mcp_tool_use":
            parts.append(_parse_server_call(block))
        elif kind == "mcp_tool_result":
            parts += _parse_server_result(block)
        elif kind == "image":
            parts.append(_parse_image(block))
        elif not _is_skipped(kind):
            parts.append(_parse_text(block))
    return Message(
        role=Role.ASSISTANT,
        parts=tuple(parts),
        reasoning="".join(reasoning),
        thoughts=tuple(thoughts),
    )


def _parse_blocks(holder: Fields, name: str) -> list[Fields]:
    """Return the blocks of a field; a string counts as one text block."""
    content = holder.get(name)
    if isinstance(content, str):
        return [Fields({"type": "text", "text": content}, holder.path(name))]
    if not isinstance(content, list):
        raise invalid_type(holder.path(name), "a string or an array", content)
    blocks = holder.objects(name, MAX_ENTRIES) or []
    for block in blocks:
        block.need_string("type")
    return blocks


def _is_skipped(kind: str) -> bool:
    return kind in _SKIPPED_BLOCKS or kind.endswith("_tool_result")


def _parse_part(block: Fields) -> Part:
    match block.text("type"):
        case "image":
            return _parse_image(block)
        case "document":
            return _parse_document(block)
        case "search_result":
            return _parse_search_result(block)
        case "tool_reference":
            return Text(f"The tool {block.need_text('tool_name')} can be called now.\n")
        case _:
            return _parse_text(block)


def _parse_search_result(block: Fields) -> Text:
    """Return a search result as text: title, source and content."""
    texts = [_parse_text(inner).text for inner in _parse_blocks(block, "content")]
    head = (block.need_text("title"), block.need_text("source"))
    return Text("\n".join((*head, *texts)), cache=block.cache_mark())


def _parse_server_call(block: Fields) -> Text:
    """Return an MCP call that the provider made, as text: it is no call of an offered tool."""
    tool = f"{block.text('server_name') or 'mcp'}/{block.need_text('name')}"
    return Text(f"Called {tool} with {_input_text(block)}.\n")


def _parse_server_result(block: Fields) -> list[Part]:
    """Return the result of an MCP call that the provider made, as text."""
    given = block.get("content")
    parts = [] if given is None else [_parse_text(b) for b in _parse_blocks(block, "content")]
    verb = "failed" if block.flag("is_error") else "returned"
    return [Text(f"It {verb}: " + "".join(part.text for part in parts) + "\n")]


def _parse_document(block: Fields) -> Part:
    source, title = block.need_object("source"), block.text("title") or ""
    source.need("type")
    cited = block.object("citations")
    if cited is not None and cited.flag("enabled"):
        raise unsupported_parameter(cited.path("enabled"), "citations are not supported.")
    context = block.text("context")
    read = _read_document(source, title)
    if context and isinstance(read, Text):
        read = Text(f"{context}\n{read.text}")
    elif context:
        raise unsupported_parameter(block.path("context"), "put it in a text block instead.")
    return replace(read, cache=block.cache_mark())


def _read_document(source: Fields, title: str) -> File | Text:
    match source.choice("type", ("base64", "text", "content", "url", "file")):
        case "base64":
            kind = source.need_text("media_type")
            return read_file(source.path("data"), kind, source.need_text("data"), title)
        case "text":
            return text_under_title(title, source.need_text("data"))
        case "content":
            blocks = [_parse_text(block) for block in _parse_blocks(source, "content")]
            return text_under_title(title, "\n".join(block.text for block in blocks))
        case _:
            reason = "no files are kept or fetched here; send the document's data."
            raise unsupported_parameter(source.path("type"), reason)


def _parse_text(block: Fields) -> Text:
    kind = block.text("type")
    if kind == "compaction":
        return Text(block.text("content") or "", cache=block.cache_mark())
    if kind != "text":
        raise invalid_value(block.path("type"), f"a block of type '{kind}' is not allowed here.")
    return Text(block.need_string("text"), cache=block.cache_mark())


def _parse_image(block: Fields) -> Image:
    source = block.need_object("source")
    source.need("type")
    match source.choice("type", ("base64", "url", "file")):
        case "base64":
            media, data = source.text("media_type") or "", source.need_text("data")
            try:
                url = picture_data_url(media, data)
            except BadRequestError:
                url = ""
            if not url.startswith(_IMAGE_URLS):
                types = ", ".join(sorted(IMAGE_TYPES))
                reason = f"the image must be base64 data of one of these types: {types}."
                raise invalid_value(source.path("media_type"), reason)
            return Image(url=url, cache=block.cache_mark())
        case "url":
            url = picture_url(source.path("url"), source.need_text("url"))
            return Image(url=url, cache=block.cache_mark())
        case _:
            raise unsupported_parameter(
                source.path("type"), "uploaded files are not supported here; send the image data."
            )


def _parse_tool_use(block: Fields) -> ToolCall:
    arguments = _input_text(block)
    call_id = block.need_text("id")
    return ToolCall(
        id=call_id, name=block.need_text("name"), arguments=arguments, cache=block.cache_mark()
    )


def _input_text(block: Fields) -> str:
    try:
        return encode_json(dict(block.need_object("input").raw)).decode()
    except RecursionError:
        raise invalid_value(block.path("input"), "it is nested too deeply.") from None


def _parse_tool_result(block: Fields, calls: set[str]) -> tuple[ToolResult, list[Part]]:
    """Return the text of a tool's result, and its images and files as parts of a user message."""
    call_id = block.need_text("tool_use_id")
    if call_id not in calls:
        raise invalid_value(block.path("tool_use_id"), f"no call '{call_id}' comes before it.")
    failed = block.flag("is_error")
    parts = (
        []
        if block.get("content") is None
        else [_parse_part(b) for b in _parse_blocks(block, "content")]
    )
    text = "".join(part.text for part in parts if isinstance(part, Text))
    pictures: list[Part] = [part for part in parts if isinstance(part, Image | File)]
    if pictures:
        pictures.insert(0, Text(f"What the tool call {call_id} returned:"))
    content = f"Error: {text}" if failed else text
    inner = next((part.cache for part in parts if part.cache), None)
    return ToolResult(call_id=call_id, content=content, cache=block.cache_mark() or inner), pictures


def _parse_thinking(block: Fields) -> tuple[list[str], list[Thought]]:
    """Return the text of a worker's reasoning, and the reasoning with its provider's signature.

    Each list has at most one entry. Both are empty for a run's progress, and for reasoning that
    this server did not send.
    """
    if block.text("type") == "redacted_thinking":
        model, _, data = split_signature(block.text("data") or "")
        return [], [Thought(model=model, redacted=data)] if model else []
    if block.get("thinking") is None:
        raise missing_parameter(block.path("thinking"))
    text, signature = block.text("thinking") or "", block.text("signature") or ""
    model, is_ours, own = split_signature(signature)
    kept = [Thought(model=model, text=text, signature=own)] if model else []
    return [text] if is_ours and text else [], kept
