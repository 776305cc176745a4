"""Items of the Responses dialect as our messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import orjson

from batuta.core import Image, Message, Part, Role, Text, ToolCall, ToolResult
from batuta.gateway.refusal import missing, unsupported, wrong_type, wrong_value
from batuta.gateway.wire.fields import Fields

MAX_ITEMS = 2000
_MAX_PARTS = 500
_ROLES = tuple(role.value for role in Role if role is not Role.TOOL)
_FOREIGN_PARTS = {"input_file", "input_audio", "file", "computer_screenshot"}
"""Kinds of content that the API knows and no worker here is given."""
FOREIGN = frozenset(
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
        "image_generation_call",
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
"""Items of tools that are not offered here; they are left out of the conversation, and told."""


def kind_of(item: Fields) -> str:
    """The item's type; clients leave out `message` and `item_reference`."""
    kind = item.text("type")
    if kind:
        return kind
    return "message" if "role" in item.names else "item_reference"


def messages_of(items: Iterable[Fields]) -> tuple[Message, ...]:
    """The conversation; an assistant's neighbouring items are one turn.

    Raises:
        Refusal: an item is malformed, or a result is of a call that was never made.
    """
    turns: list[Message] = []
    pictures: list[Part] = []
    calls: set[str] = set()
    for item in items:
        message = _message(item, calls)
        if message is None:
            continue
        if message.role is Role.TOOL:
            message, returned = _without_pictures(message)
            pictures += returned
        elif pictures:
            turns.append(Message(Role.USER, tuple(pictures)))
            pictures = []
        calls.update(part.id for part in message.parts if isinstance(part, ToolCall))
        if turns and turns[-1].role is message.role is Role.ASSISTANT:
            turns[-1] = _joined(turns[-1], message)
        else:
            turns.append(message)
    return (*turns, Message(Role.USER, tuple(pictures))) if pictures else tuple(turns)


def _without_pictures(message: Message) -> tuple[Message, list[Part]]:
    """A tool's turn, and its pictures, which only a user's turn can hold."""
    images: list[Part] = list(message.images)
    if not images:
        return message, []
    result = next(part for part in message.parts if isinstance(part, ToolResult))
    told = Text(f"What the tool call {result.call_id} returned:")
    return replace(message, parts=(result,)), [told, *images]


def _joined(first: Message, then: Message) -> Message:
    return replace(
        first, parts=(*first.parts, *then.parts), reasoning=first.reasoning + then.reasoning
    )


def _message(item: Fields, calls: set[str]) -> Message | None:
    """One item as a turn; None for what is left out."""
    kind = kind_of(item)
    match kind:
        case "message":
            return _said(item)
        case "function_call" | "custom_tool_call":
            return Message(Role.ASSISTANT, (_call(item, kind),))
        case "function_call_output" | "custom_tool_call_output":
            return Message(Role.TOOL, _result(item, calls))
        case "reasoning":
            return _thoughts(item)
        case "item_reference":
            reason = f"there is no item '{item.need_text('id')}' here; was it stored?"
            raise wrong_value(item.path("id"), reason)
        case _ if kind in FOREIGN:
            return None
        case _:
            raise wrong_value(item.path("type"), "it is no type of item that is known here.")


def _said(item: Fields) -> Message:
    item.need("role")
    role = Role(item.choice("role", _ROLES) or "")
    item.need("content")
    return Message(role, _parts(item, "content", images=role is Role.USER))


def _call(item: Fields, kind: str) -> ToolCall:
    """A call of the past; a free-form one carries its input as JSON, as every worker can read."""
    name = "arguments" if kind == "function_call" else "input"
    given = item.text(name)
    if given is None:
        raise missing(item.path(name))
    arguments = given if name == "arguments" else orjson.dumps({"input": given}).decode()
    return ToolCall(item.need_text("call_id"), item.need_text("name"), arguments)


def _result(item: Fields, calls: set[str]) -> tuple[Part, ...]:
    """What a tool returned: its text, then its pictures."""
    call_id = item.need_text("call_id")
    if call_id not in calls:
        raise wrong_value(item.path("call_id"), f"no call '{call_id}' comes before it.")
    item.need("output")
    parts = _parts(item, "output", images=True)
    text = "".join(part.text for part in parts if isinstance(part, Text))
    return ToolResult(call_id, text), *(part for part in parts if isinstance(part, Image))


def _thoughts(item: Fields) -> Message | None:
    """Reasoning that a worker showed; summaries told of our own progress and are left out."""
    item.objects("summary", _MAX_PARTS)
    texts = [_given(part, "text") for part in item.objects("content", _MAX_PARTS) or ()]
    return Message(Role.ASSISTANT, (), reasoning="".join(texts)) if any(texts) else None


def _parts(item: Fields, name: str, *, images: bool) -> tuple[Part, ...]:
    content = item.get(name)
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, list):
        raise wrong_type(item.path(name), "a string or an array", content)
    return tuple(_part(part, images=images) for part in item.objects(name, _MAX_PARTS) or ())


def _part(part: Fields, *, images: bool) -> Part:
    part.need("type")
    match part.text("type"):
        case "input_text" | "output_text" | "text" | "summary_text":
            return Text(_given(part, "text"))
        case "refusal":
            return Text(_given(part, "refusal"))
        case "input_image" if images:
            return _image(part)
        case "input_image":
            raise unsupported(part.path("type"), "only a user's message may hold a picture.")
        case kind if kind in _FOREIGN_PARTS:
            raise unsupported(part.path("type"), f"content of type '{kind}' is not passed on.")
        case _:
            wanted = "'input_text', 'output_text' or 'input_image'"
            raise wrong_value(part.path("type"), f"it must be {wanted}.")


def _given(part: Fields, name: str) -> str:
    """A string that must be there and may be empty."""
    part.need(name)
    return part.text(name) or ""


def _image(part: Fields) -> Image:
    if part.get("file_id") is not None:
        raise unsupported(part.path("file_id"), "there are no files here; use 'image_url'.")
    url = part.need_text("image_url")
    if not url.startswith(("https://", "data:image/")):
        raise wrong_value(part.path("image_url"), "it must begin with 'https://' or 'data:image/'.")
    return Image(url, part.choice("detail", ("auto", "low", "high", "original")))
