"""Tool calls: collected from replies, and fitted to one provider when a conversation is sent.

A conversation may contain another worker's call ids, which may repeat or which this provider may
refuse. Clients send tool results in any order, but some models match them to calls by order alone.

Some servers require fields of an assistant's message to be sent back unchanged: OpenRouter's
`reasoning_details`, LiteLLM's `thinking_blocks` and Copilot's `reasoning_opaque`, which may be
encrypted or signed, and Gemini's signature of each call, in `extra_content` of Google's
OpenAI-compatible endpoint or `provider_specific_fields` of LiteLLM. `RoundTripFields` stores them
as one opaque thought of the called model.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, final

import orjson

from batuta.clients.decoding import (
    MAX_TOOL_CALLS,
    as_array,
    as_object,
    dump_json,
    load_json,
    need_string,
)
from batuta.core import Delta, Message, Part, Role, Thought, ToolCall, ToolResult
from batuta.core.small_number import read_small_number

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


_FENCED = re.compile(r"```(?:json)?\s*(\{.*\})\s*```", re.DOTALL)


def arguments_text(given: str) -> str:
    """Return a call's arguments; a JSON object in a JSON string or in a code block is unwrapped.

    White space and `null` become an empty object. Other text is returned unchanged.
    """
    text = given.strip()
    if text in {"", "null"}:
        return "{}"
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1]
    elif text[:1] == '"':
        with suppress(ValueError):
            text = need_string(load_json(text.encode()))
    return text if text[:1] == "{" else given


@final
class ToolCallAccumulator:
    """Accumulates the tool calls of a reply from their fragments."""

    __slots__ = ("_arguments", "_ids", "_names")

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._names: list[str] = []
        self._arguments: list[list[str]] = []

    def __len__(self) -> int:
        return len(self._ids)

    def start_call(self, call_id: str, name: str, arguments: str = "") -> Delta:
        """Begin a call; a missing or repeated id is replaced by a new one.

        Raises:
            TypeError: the id, name or arguments are not a string.
            ValueError: the reply has too many calls.
        """
        for value in (call_id, name, arguments):
            need_string(value)
        if len(self) >= MAX_TOOL_CALLS:
            raise ValueError(f"more than {MAX_TOOL_CALLS:,} tool calls in one reply")
        is_usable = bool(call_id) and call_id not in self._ids
        self._ids.append(call_id if is_usable else f"call_{secrets.token_hex(8)}")
        self._names.append(name)
        self._arguments.append([arguments])
        return Delta(
            tool_index=len(self) - 1,
            tool_id=self._ids[-1],
            tool_name=name,
            tool_arguments=arguments,
        )

    def add_arguments(self, index: int, arguments: str) -> Delta:
        """Append to a call's arguments.

        Raises:
            TypeError: `arguments` is not a string.
        """
        need_string(arguments)
        self._arguments[index].append(arguments)
        return Delta(tool_index=index, tool_arguments=arguments)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls so far; missing arguments become `{}`."""
        rows = zip(self._ids, self._names, self._arguments, strict=True)
        return tuple(
            ToolCall(id=i, name=name, arguments="".join(parts) or "{}") for i, name, parts in rows
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallIdRule:
    """The tool call ids that a provider accepts."""

    pattern: re.Pattern[str]
    """The pattern that a whole id must match."""
    prefix: str = "call_"
    """The prefix of an id that replaces a refused one."""
    digits: int = 24
    """Number of letters and digits after the prefix."""

    def make_id(self, given: str, number: int) -> str:
        """Return a new id, the same for the same arguments, so that prompt caches stay valid.

        Args:
            given: the original id.
            number: how many ids were made for the original id before.
        """
        left = int.from_bytes(hashlib.sha256(f"{number} {given}".encode()).digest(), "big")
        made = ""
        for _ in range(self.digits):
            left, digit = divmod(left, len(_DIGITS))
            made += _DIGITS[digit]
        return self.prefix + made


ANY_ID = CallIdRule(pattern=re.compile(r".+", re.DOTALL))
OPENAI_IDS = CallIdRule(pattern=re.compile(r".{1,40}", re.DOTALL))
"""Ids of OpenAI's chat completions; its Responses API also accepts longer ones."""
CLAUDE_IDS = CallIdRule(pattern=re.compile(r"[a-zA-Z0-9_-]{1,64}"))
"""Ids of Anthropic and Bedrock."""
MISTRAL_IDS = CallIdRule(pattern=re.compile(r"[a-zA-Z0-9]{9}"), prefix="", digits=9)
"""Ids of Mistral, and of servers that use its tokenizer."""
_BY_MODEL = (
    (re.compile(r"claude", re.IGNORECASE), CLAUDE_IDS),
    (re.compile(r"(?:mi[snx]|code|dev|magi|pix|vox)\w*tral\b", re.IGNORECASE), MISTRAL_IDS),
)


def rule_of_model(model: str, otherwise: CallIdRule) -> CallIdRule:
    """Return the rule of the model's family, recognized by its name; else `otherwise`."""
    return next((rule for named, rule in _BY_MODEL if named.search(model)), otherwise)


def fit_tool_turns(messages: Sequence[Message], rule: CallIdRule) -> tuple[Message, ...]:
    """Give the calls unique, accepted ids, and put results in the order of their calls.

    If anything is changed, each result gets a message of its own. Even calls of one message may
    have the same id.
    """
    if _are_fitting(messages, rule):
        return tuple(messages)
    fitted: list[Message] = []
    results: list[Message] = []
    names: dict[str, deque[str]] = {}
    order: dict[str, int] = {}
    used: set[str] = set()
    tried: dict[str, int] = {}
    for message in messages:
        if message.role is Role.TOOL:
            renamed = _rename_results(message, names)
            results += [replace(renamed, parts=(part,)) for part in renamed.parts]
            continue
        fitted += sorted(results, key=lambda one: _call_position(one, order))
        results = []
        if calls := [part for part in message.parts if isinstance(part, ToolCall)]:
            made = [_fit_id(call.id, rule, used, tried) for call in calls]
            names |= {call.id: deque[str]() for call in calls}
            for call, name in zip(calls, made, strict=True):
                names[call.id].append(name)
            order = {name: number for number, name in enumerate(made)}
            message = _rename_calls(message, made)  # noqa: PLW2901
        fitted.append(_rename_results(message, names))
    return (*fitted, *sorted(results, key=lambda one: _call_position(one, order)))


def _are_fitting(messages: Sequence[Message], rule: CallIdRule) -> bool:
    """Return True if every id is accepted and unique, and results follow their calls in order.

    This is the usual case, checked first because a long conversation is sent again and again.
    """
    used: set[str] = set()
    waiting: deque[str] = deque()
    for message in messages:
        if message.role is Role.TOOL:
            if not _is_next_result(message, waiting):
                return False
            continue
        waiting.clear()
        for part in message.parts:
            if isinstance(part, ToolCall):
                if part.id in used or not rule.pattern.fullmatch(part.id):
                    return False
                used.add(part.id)
                waiting.append(part.id)
            elif isinstance(part, ToolResult):
                return False
    return True


def _is_next_result(message: Message, waiting: deque[str]) -> bool:
    """Return True if the message is one result of a waiting call.

    The call and the calls before it are removed from `waiting`.
    """
    if len(message.parts) != 1 or not isinstance(message.parts[0], ToolResult):
        return False
    answered = message.parts[0].call_id
    while waiting:
        if waiting.popleft() == answered:
            return True
    return False


def _fit_id(given: str, rule: CallIdRule, used: set[str], tried: dict[str, int]) -> str:
    """Return the id if it is accepted and unused, else a new one.

    Args:
        given: the call's original id.
        rule: the ids that the provider accepts.
        used: ids of earlier calls; the result is added.
        tried: ids made so far for each original id, as thousands of calls may have the same.
    """
    fitting, number = given, tried.get(given, 0)
    while fitting in used or not rule.pattern.fullmatch(fitting):
        fitting = rule.make_id(given, number)
        number += 1
    tried[given] = number
    used.add(fitting)
    return fitting


def _rename_calls(message: Message, names: Sequence[str]) -> Message:
    """Replace the calls' ids by `names`, in order."""
    left = iter(names)
    parts = tuple(
        replace(part, id=next(left)) if isinstance(part, ToolCall) else part
        for part in message.parts
    )
    return message if parts == message.parts else replace(message, parts=parts)


def _rename_results(message: Message, names: dict[str, deque[str]]) -> Message:
    """Replace the results' call ids by the new ids of their calls.

    If several calls had the same id, their results are assigned in the calls' order, and further
    results to the last of them.
    """
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolResult) and (waiting := names.get(part.call_id)):
            name = waiting.popleft() if len(waiting) > 1 else waiting[0]
            part = replace(part, call_id=name)  # noqa: PLW2901
        parts.append(part)
    return message if tuple(parts) == message.parts else replace(message, parts=tuple(parts))


def _call_position(message: Message, order: dict[str, int]) -> int:
    """Return the position of the result's call in its message; unknown calls count as last."""
    results = (part for part in message.parts if isinstance(part, ToolResult))
    return min((order.get(part.call_id, len(order)) for part in results), default=len(order))


_PREFIX = "chat."
_TEXT_FIELDS = ("text", "summary", "data", "signature", "thinking")
"""Fields of a row that are streamed in pieces."""
_LISTS = {"details": "reasoning_details", "blocks": "thinking_blocks"}
"""Lists of a message to send back (OpenRouter's, LiteLLM's), by the key under which they are
stored."""
_OPAQUE = "reasoning_opaque"
"""The string of a message to send back (GitHub Copilot's)."""
ROUND_TRIP_FIELDS = (*_LISTS.values(), _OPAQUE)
"""The fields of a message, or of its fragments, to send back with the message."""
_EXTRAS = {"extras": "extra_content", "fields": "provider_specific_fields"}
"""Fields of a call to send back with it (Google's, LiteLLM's), by the key under which they are
stored."""


def has_extra(call: dict[str, Any]) -> bool:
    """Return True if a call has fields that must be sent back with it."""
    return any(call.get(name) for name in _EXTRAS.values())


_RowKey = tuple[str, int, str]
"""The list of a row, its index in the list, and its type."""


@final
class RoundTripFields:
    """Collects, from a reply's fragments, the fields to send back with its message."""

    def __init__(self) -> None:
        self._rows: dict[_RowKey, dict[str, Any]] = {}
        self._pieces: dict[_RowKey, dict[str, list[str]]] = {}
        """The pieces of each row's text fields."""
        self._ended = 0
        """The number of `thinking_blocks` that have ended."""
        self._opaque: list[str] = []
        self._extras: dict[str, dict[int, Any]] = {}

    def add_fields(self, message: dict[str, Any]) -> None:
        """Add the fields of a message or fragment that must be sent back."""
        for detail in map(as_object, as_array(message.get(_LISTS["details"]))):
            index = detail.get("index")
            if not isinstance(index, int):
                index = len(self._rows)
            self._add_row(("details", index, str(detail.get("type"))), detail)
        for block in map(as_object, as_array(message.get(_LISTS["blocks"]))):
            self._add_row(("blocks", self._ended, str(block.get("type"))), block)
            self._ended += bool(block.get("signature") or block.get("data"))
        if isinstance(opaque := message.get(_OPAQUE), str):
            self._opaque.append(opaque)

    def _add_row(self, key: _RowKey, row: dict[str, Any]) -> None:
        """Add a row of a list, or a piece of one; rows with the same key are merged."""
        known = self._rows.setdefault(key, {})
        for name, value in row.items():
            if name in _TEXT_FIELDS and isinstance(value, str):
                self._pieces.setdefault(key, {}).setdefault(name, []).append(value)
                known.setdefault(name)  # keeps the order of the fields
            elif value is not None or name not in known:
                known[name] = value

    def add_extra(self, call: dict[str, Any], position: int) -> None:
        """Add the extra fields of the call at that position of the reply's fragments."""
        for kept, name in _EXTRAS.items():
            if extra := call.get(name):
                self._extras.setdefault(kept, {})[position] = extra

    def thought(self, model: str, numbers: Mapping[int, int] | None = None) -> Thought | None:
        """Return the collected fields as a thought of that model.

        Returns None if there are none, or if they cannot be written as JSON.

        Args:
            model: the called model.
            numbers: the indexes of the calls in the reply, by position; None: the same.
        """
        kept: dict[str, Any] = {}
        for key, row in self._rows.items():
            texts = self._pieces.get(key, {}).items()
            whole = row | {name: "".join(pieces) for name, pieces in texts}
            kept.setdefault(key[0], []).append(whole)
        if self._opaque:
            kept["opaque"] = "".join(self._opaque)
        for name, extras in self._extras.items():
            places = {at: at for at in extras} if numbers is None else numbers
            if placed := {str(places[at]): extra for at, extra in extras.items() if at in places}:
                kept[name] = placed
        if not kept:
            return None
        try:
            written = dump_json(kept).encode()
        except TypeError:
            return None
        return Thought(model=model, redacted=_PREFIX + urlsafe_b64encode(written).decode())


def round_trip_thoughts(
    message: dict[str, Any], calls: Sequence[dict[str, Any]], model: str
) -> tuple[Thought, ...]:
    """Return the fields of a whole message and its calls to send back, as at most one thought."""
    collected = RoundTripFields()
    collected.add_fields(message)
    for number, call in enumerate(calls):
        collected.add_extra(call, number)
    thought = collected.thought(model)
    return () if thought is None else (thought,)


def add_round_trip_fields(
    encoded: dict[str, Any], message: Message, model: str, field: str
) -> None:
    """Put the reasoning and the stored fields of an assistant's message into its JSON.

    Args:
        encoded: the message's JSON; changed.
        message: the assistant's message.
        model: the called model, which receives only its own thoughts.
        field: the field for plain-text reasoning; empty: such reasoning is not sent back.
    """
    own = [thought for thought in message.thoughts if thought.model == model]
    reasoning = message.reasoning or "".join(thought.text for thought in own)
    if reasoning and field:
        encoded[field] = reasoning
    for thought in own:
        kept = _read_kept(thought.redacted)
        encoded |= {
            other: rows for name, other in _LISTS.items() if (rows := as_array(kept.get(name)))
        }
        if opaque := kept.get("opaque"):
            encoded[_OPAQUE] = opaque
        for name, field_name in _EXTRAS.items():
            _set_call_fields(encoded.get("tool_calls", ()), field_name, as_object(kept.get(name)))


def _set_call_fields(calls: Sequence[dict[str, Any]], name: str, extras: Mapping[str, Any]) -> None:
    """Set the field `name` of each call to the value stored for the call's index."""
    for key, extra in extras.items():
        number = read_small_number(key)
        if number is not None and number < len(calls):
            calls[number][name] = extra


def kept_signatures(message: Message, model: str) -> dict[int, str]:
    """Return Gemini's signatures of a message's calls, by the call's index."""
    signatures: dict[int, str] = {}
    for thought in message.thoughts:
        kept = (
            as_object(_read_kept(thought.redacted).get("extras")) if thought.model == model else {}
        )
        for key, extra in kept.items():
            signature = as_object(as_object(extra).get("google")).get("thought_signature")
            number = read_small_number(key)
            if number is not None and isinstance(signature, str):
                signatures[number] = signature
    return signatures


def is_round_trip(thought: Thought) -> bool:
    """Return True if the thought is one of `RoundTripFields`, which Anthropic's API cannot use."""
    return thought.redacted.startswith(_PREFIX)


def _read_kept(redacted: str) -> dict[str, Any]:
    """Decode the stored fields; empty if the thought is another API's, or a client damaged it."""
    if not redacted.startswith(_PREFIX):
        return {}
    try:
        return as_object(orjson.loads(urlsafe_b64decode(redacted.removeprefix(_PREFIX))))
    except (ValueError, binascii.Error):
        return {}
