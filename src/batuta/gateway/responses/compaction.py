"""Compaction of a conversation, as requested by Codex: a summary that the client sends back.

The client ends its items with `compaction_trigger`, or calls /v1/responses/compact. The response
has an item of the type `compaction`, which replaces the earlier conversation; that of
/v1/responses/compact also has the newest user messages. The summary is encoded but not encrypted,
because it is the client's own conversation. Any replica can read it, even after a restart.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from batuta.core import Message, Role, Text
from batuta.gateway.errors import invalid_value
from batuta.gateway.http.body import MAX_ENTRIES, Fields
from batuta.gateway.serving.prepare import COMPACTION_BEGINNING

COMPACTION_ITEM = "compaction"
COMPACTION_TRIGGER = "compaction_trigger"
_KEPT_CHARACTERS = 80_000
"""Maximum number of characters of user messages kept beside a summary: about 20,000 tokens."""
_DROPPED_FIELDS = ("background", "stream")
"""Fields of a body of POST /v1/responses/compact that are ignored."""
_MARK = "batuta-summary-1:"
_REQUEST = (
    f"{COMPACTION_BEGINNING} The conversation so far is about to be left out. Write a summary for "
    "the model that goes on with the work: what the user wants, in the user's words where they "
    "matter; what was done and found out; decisions and their reasons; what remains to be done; "
    "and the files, commands, names and numbers that are needed for it. Write the summary alone."
)
_FOUND = (
    "The conversation up to here was left out. This is the summary that was made of it; go on with "
    "the work from there:\n\n"
)


def asks_compaction(items: Sequence[Fields]) -> bool:
    """Return True if the last item requests a summary instead of an answer."""
    return bool(items) and items[-1].text("type") == COMPACTION_TRIGGER


def compaction_body(body: Fields) -> Fields:
    """Turn a body of POST /v1/responses/compact into a body of POST /v1/responses that compacts.

    Raises:
        APIError: the input is malformed.
    """
    given = body.get("input")
    if isinstance(given, str):
        items: list[Mapping[str, Any]] = [{"role": "user", "content": given}]
    else:
        items = [item.raw for item in body.objects("input", MAX_ENTRIES) or ()]
    if not items and body.text("previous_response_id") is None:
        body.need("input")
        raise invalid_value("input", "it must have at least one item.")
    rest = {name: value for name, value in body.raw.items() if name not in _DROPPED_FIELDS}
    trigger = {"type": COMPACTION_TRIGGER}
    asked = {**rest, "input": [*items, trigger], "store": False}
    return Fields(
        asked,
        is_fresh=body.is_fresh,
        is_large=body.is_large,
        session=body.session,
        files=body.files,
    )


def kept_messages(items: Iterable[Mapping[str, Any]], response: str) -> list[dict[str, Any]]:
    """Return the newest user messages, in all at most `_KEPT_CHARACTERS`, kept beside the summary.

    Their pictures and files are kept too and count as no characters.

    Args:
        items: the conversation; it has been validated.
        response: the id of the compaction's response.
    """
    kept: list[dict[str, Any]] = []
    left = _KEPT_CHARACTERS
    users = [item for item in items if item.get("role") == Role.USER]
    for index, item in reversed([*enumerate(users)]):
        content = item["content"]
        if isinstance(content, str):
            content = [{"type": "input_text", "text": content}]
        left -= sum(len(part.get("text") or "") for part in content)
        if left < 0:
            break
        head = {"id": f"msg_{response}_{index}", "status": "completed"}
        kept.append({**head, "type": "message", "role": "user", "content": content})
    return kept[::-1]


def compaction_request() -> Message:
    """Return the message that asks a worker for the summary."""
    return Message(role=Role.USER, parts=(Text(_REQUEST),))


def pack_summary(text: str) -> str:
    """Return the summary encoded for the client."""
    return _MARK + b64encode(text.encode("utf-8", "replace")).decode()


def read_summary(item: Fields) -> Message | None:
    """Return the summary in a compaction item as a message; None if it cannot be decoded."""
    kept = item.text("encrypted_content") or ""
    if not kept.startswith(_MARK):
        return None
    try:
        text = b64decode(kept.removeprefix(_MARK), validate=True).decode()
    except ValueError:
        return None
    return Message(role=Role.USER, parts=(Text(_FOUND + text),))
