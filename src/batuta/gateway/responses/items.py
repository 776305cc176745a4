"""Parser of the items of a Responses conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby

import orjson

from batuta.core import (
    Audio,
    File,
    Image,
    Message,
    Part,
    Role,
    Text,
    Thought,
    ToolCall,
    ToolResult,
)
from batuta.gateway.errors import (
    APIError,
    invalid_type,
    invalid_value,
    missing_parameter,
    unsupported_parameter,
)
from batuta.gateway.http.body import MAX_ENTRIES, Fields
from batuta.gateway.responses.compaction import COMPACTION_ITEM, read_summary
from batuta.gateway.responses.tools import NAMESPACE, TOOL_SEARCH, flat_name, named_functions
from batuta.gateway.serving.attachments import parse_audio, parse_file, picture_url
from batuta.gateway.serving.parsed_call import return_made_pictures
from batuta.gateway.serving.tenant_memory import split_signature

_ROLES = tuple(role.value for role in Role if role is not Role.TOOL)
_CALLS = frozenset({"function_call", "custom_tool_call", "tool_search_call"})
_RESULTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
_SEARCHES = frozenset({"tool_search_call", "tool_search_output"})
_UNSUPPORTED_PARTS = {"file", "computer_screenshot"}
"""Content types of the API that are refused."""
SKIPPED_ITEMS = frozenset(
    {
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "file_search_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Items that workers do not get; they are left out, and reported as ignored.

Tool searches are left out only if a provider ran them, and a compaction only if another server made
it.
"""


def item_type(item: Fields) -> str:
    """Return the item's type; clients may leave out that of a message or an item reference."""
    kind = item.text("type")
    if kind:
        return kind
    return "message" if "role" in item.names else "item_reference"


def parse_items(items: Iterable[Fields]) -> tuple[Message, ...]:
    """Return the conversation; adjacent assistant items are joined into one message.

    Raises:
        APIError: an item is malformed or not supported, a referenced item does not exist, or a
            result belongs to no earlier call.
    """
    messages: list[Message] = []
    attachments: list[Part] = []
    calls: set[str] = set()
    for item in items:
        message = _parse_item(item, calls)
        if message is None:
            continue
        if message.role is Role.TOOL:
            message, returned = _split_attachments(message)
            attachments += returned
        elif attachments:
            messages.append(Message(role=Role.USER, parts=tuple(attachments)))
            attachments = []
        calls.update(part.id for part in message.parts if isinstance(part, ToolCall))
        messages.append(message)
    if attachments:
        messages.append(Message(role=Role.USER, parts=tuple(attachments)))
    return return_made_pictures(tuple(_join_assistant_messages(messages)))


def _split_attachments(message: Message) -> tuple[Message, list[Part]]:
    """Return a tool message without its attachments, and any attachments after a heading.

    Most providers accept attachments only in user messages.
    """
    if not message.attachments:
        return message, []
    result = next(part for part in message.parts if isinstance(part, ToolResult))
    heading = Text(f"What the tool call {result.call_id} returned:")
    return replace(message, parts=(result,)), [heading, *message.attachments]


def _join_assistant_messages(messages: list[Message]) -> Iterator[Message]:
    for role, group in groupby(messages, lambda message: message.role):
        if role is Role.ASSISTANT:
            yield _join_messages(list(group))
        else:
            yield from group


def _join_messages(messages: list[Message]) -> Message:
    """Join the messages into one; joining them pairwise would copy the parts each time."""
    if len(messages) == 1:
        return messages[0]
    return replace(
        messages[0],
        parts=tuple(part for message in messages for part in message.parts),
        reasoning="".join(message.reasoning for message in messages),
        thoughts=tuple(thought for message in messages for thought in message.thoughts),
    )


def _parse_item(item: Fields, calls: set[str]) -> Message | None:
    """Return an item as a message; None if the item is left out.

    Raises:
        APIError: the item is malformed or not supported, or answers none of the calls.
    """
    kind = item_type(item)
    match kind:
        case "message":
            return _parse_message(item)
        case _ if kind in _SEARCHES and not is_client_search(item):
            return None
        case _ if kind in _CALLS:
            return Message(role=Role.ASSISTANT, parts=(_parse_call(item, kind),))
        case _ if kind in _RESULTS:
            return Message(role=Role.TOOL, parts=_parse_result(item, calls))
        case "reasoning" | "image_generation_call":
            return _parse_reasoning(item) if kind == "reasoning" else _parse_made_picture(item)
        case _ if kind == COMPACTION_ITEM:
            return read_summary(item)
        case _ if kind in SKIPPED_ITEMS:
            return None
        case _:
            raise _refuse_item(item, kind)


def _refuse_item(item: Fields, kind: str) -> APIError:
    """Return the error for an item that cannot be resolved or has an unknown type."""
    if kind == "item_reference":
        reason = f"the item '{item.need_text('id')}' does not exist; was its response stored?"
        return invalid_value(item.path("id"), reason)
    return invalid_value(item.path("type"), "this type of item is not supported.")


def _parse_message(item: Fields) -> Message:
    item.need("role")
    role = Role(item.choice("role", _ROLES) or "")
    item.need("content")
    return Message(role=role, parts=_parse_parts(item, "content", attachments=role is Role.USER))


def _parse_call(item: Fields, kind: str) -> ToolCall:
    """Return a tool call of an earlier turn.

    The input of a custom tool is wrapped in JSON, so that every worker can read it.
    """
    if kind in _SEARCHES:
        searched = item.object("arguments")
        searched_json = orjson.dumps(searched.raw if searched else {}).decode()
        return ToolCall(id=item.need_text("call_id"), name=TOOL_SEARCH, arguments=searched_json)
    name = "arguments" if kind == "function_call" else "input"
    given = item.text(name)
    if given is None:
        raise missing_parameter(item.path(name))
    arguments = given if name == "arguments" else orjson.dumps({"input": given}).decode()
    called = flat_name(item.text(NAMESPACE), item.need_text("name"))
    return ToolCall(id=item.need_text("call_id"), name=called, arguments=arguments)


def is_client_search(item: Fields) -> bool:
    """Return True if the client itself ran the tool search: a provider's search has no call id."""
    return bool(item.text("call_id"))


def _found_parts(item: Fields) -> tuple[Part, ...]:
    """Return a text that lists the tools that a search found; they are offered from then on."""
    found = named_functions(item.objects("tools", MAX_ENTRIES) or ())
    listing = "".join(_found_line(namespace, tool) for namespace, tool in found)
    return (Text(f"Found, and offered now:\n{listing}" if listing else "Nothing was found."),)


def _found_line(namespace: str | None, tool: Fields) -> str:
    name = flat_name(namespace, tool.need_text("name"))
    return f"- {name}: {tool.text('description') or ''}\n"


def _known_call(item: Fields, calls: set[str]) -> str:
    """Return the id of the call that the item answers.

    Raises:
        APIError: the call does not precede the item.
    """
    call_id = item.need_text("call_id")
    if call_id not in calls:
        raise invalid_value(item.path("call_id"), f"no call '{call_id}' comes before it.")
    return call_id


def _parse_result(item: Fields, calls: set[str]) -> tuple[Part, ...]:
    """Return a tool's result: its text, then its attachments."""
    call_id = _known_call(item, calls)
    if item_type(item) in _SEARCHES:
        parts = _found_parts(item)
    else:
        item.need("output")
        parts = _parse_parts(item, "output", attachments=True)
    text = "".join(part.text for part in parts if isinstance(part, Text))
    return ToolResult(call_id=call_id, content=text), *(
        part for part in parts if isinstance(part, Image | File | Audio)
    )


def _parse_made_picture(item: Fields) -> Message | None:
    """Return an image generated in an earlier turn; None if the item has no `result`."""
    result = item.text("result")
    if not result:
        return None
    url = result
    if "://" not in result[:8]:
        url = f"data:image/{item.text('output_format') or 'png'};base64,{result}"
    picture = Image(url=picture_url(item.path("result"), url))
    return Message(role=Role.ASSISTANT, parts=(picture,))


def _parse_reasoning(item: Fields) -> Message | None:
    """Return a worker's own reasoning, recognised by our signature or by its `content`.

    Return None for other items: their summary describes our progress or is another server's.
    """
    summaries = [part.text("text") or "" for part in item.objects("summary", MAX_ENTRIES) or ()]
    texts = [part.need_string("text") for part in item.objects("content", MAX_ENTRIES) or ()]
    model, is_own, kept = split_signature(item.text("encrypted_content") or "")
    text = "".join(texts) or ("".join(summaries) if is_own else "")
    thoughts: tuple[Thought, ...] = ()
    if model:
        signed = {"text": text, "signature": kept} if text else {"redacted": kept}
        thoughts = (Thought(model=model, **signed),)
    if not text and not thoughts:
        return None
    return Message(role=Role.ASSISTANT, parts=(), reasoning=text, thoughts=thoughts)


def _parse_parts(item: Fields, name: str, *, attachments: bool) -> tuple[Part, ...]:
    content = item.get(name)
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, list):
        raise invalid_type(item.path(name), "a string or an array", content)
    return tuple(
        _parse_part(part, attachments=attachments) for part in item.objects(name, MAX_ENTRIES) or ()
    )


def _parse_part(part: Fields, *, attachments: bool) -> Part:
    part.need("type")
    match part.text("type"):
        case "input_text" | "output_text" | "text" | "summary_text":
            return Text(part.need_string("text"))
        case "refusal":
            return Text(part.need_string("refusal"))
        case kind if kind in _ATTACHMENT_PARSERS and attachments:
            return _ATTACHMENT_PARSERS[kind](part)
        case kind if kind in _ATTACHMENT_PARSERS:
            held = "an image" if kind == "input_image" else "files or recordings"
            raise unsupported_parameter(
                part.path("type"), f"only a user message or a tool output may contain {held}."
            )
        case kind if kind in _UNSUPPORTED_PARTS:
            raise unsupported_parameter(
                part.path("type"), f"content of type '{kind}' is not supported."
            )
        case _:
            allowed = "'input_text', 'output_text', 'input_image', 'input_file' or 'input_audio'"
            raise invalid_value(part.path("type"), f"it must be {allowed}.")


def _parse_file(part: Fields) -> Part:
    for name in ("file_id", "file_url"):
        if part.get(name) is not None:
            reason = "no files are kept or fetched here; send 'file_data'."
            raise unsupported_parameter(part.path(name), reason)
    return parse_file(part, "file_data", part.text("filename") or "")


def _parse_image(part: Fields) -> Image:
    if part.get("file_id") is not None:
        raise unsupported_parameter(
            part.path("file_id"), "uploaded files are not supported here; use 'image_url'."
        )
    named = part.get("image_url")
    holder = part.need_object("image_url") if isinstance(named, dict) else part
    name = "image_url" if holder is part else "url"  # the latter is the chat completions form
    url = picture_url(holder.path(name), holder.need_text(name))
    detail = part.choice("detail", ("auto", "low", "high", "original"))
    return Image(url=url, detail=detail)


_ATTACHMENT_PARSERS: Mapping[str | None, Callable[[Fields], Part]] = {
    "input_image": _parse_image,
    "input_file": _parse_file,
    "input_audio": parse_audio,
}
"""Parsers of the parts that only a user message or a tool output may contain, by type."""
