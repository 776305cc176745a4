"""Calls of tools as a reply tells them, and as a conversation takes them to one provider.

A conversation may come from another worker, with ids that this provider refuses or that repeat; and
clients give results in any order, while some models tell them apart by their order alone.

Some servers want fields of an assistant's turn back unchanged: OpenRouter's `reasoning_details`,
LiteLLM's `thinking_blocks` and Copilot's `reasoning_opaque`, which may be encrypted or signed, and
the signature that Gemini puts beside each call, which Google's OpenAI-compatible endpoint has in
`extra_content` and LiteLLM in `provider_specific_fields`. `GivenBack` keeps them together as one
opaque thought of the model that is asked.
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
    """Return the arguments of a call, taken out of a JSON text or a code block around them.

    Blanks and `null` are no arguments.
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
    """The tool calls of a reply as their fragments come."""

    __slots__ = ("_arguments", "_ids", "_names")

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._names: list[str] = []
        self._arguments: list[list[str]] = []

    def __len__(self) -> int:
        return len(self._ids)

    def start_call(self, call_id: str, name: str, arguments: str = "") -> Delta:
        """Begin a call; one without an id, or with that of another, is given one.

        Raises:
            TypeError: what a provider sent in place of a string is none.
            ValueError: they are too many.
        """
        for value in (call_id, name, arguments):
            need_string(value)
        if len(self) >= MAX_TOOL_CALLS:
            raise ValueError(f"more than {MAX_TOOL_CALLS:,} tool calls in one reply")
        given = bool(call_id) and call_id not in self._ids
        self._ids.append(call_id if given else f"call_{secrets.token_hex(8)}")
        self._names.append(name)
        self._arguments.append([arguments])
        return Delta(
            tool_index=len(self) - 1,
            tool_id=self._ids[-1],
            tool_name=name,
            tool_arguments=arguments,
        )

    def add_arguments(self, index: int, arguments: str) -> Delta:
        """Add more of a call's arguments.

        Raises:
            TypeError: what a provider sent in place of a string is none.
        """
        need_string(arguments)
        self._arguments[index].append(arguments)
        return Delta(tool_index=index, tool_arguments=arguments)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls so far; one without arguments has an empty object."""
        rows = zip(self._ids, self._names, self._arguments, strict=True)
        return tuple(
            ToolCall(id=i, name=name, arguments="".join(parts) or "{}") for i, name, parts in rows
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallIdRule:
    """The ids of calls that a provider takes."""

    pattern: re.Pattern[str]
    """The pattern that a whole id must match."""
    prefix: str = "call_"
    """The prefix of an id that replaces a refused one."""
    digits: int = 24
    """Letters and digits after the prefix."""

    def make_id(self, given: str, number: int) -> str:
        """Make the same id for the same call each time, so that providers' caches hold."""
        left = int.from_bytes(hashlib.sha256(f"{number} {given}".encode()).digest(), "big")
        made = ""
        for _ in range(self.digits):
            left, digit = divmod(left, len(_DIGITS))
            made += _DIGITS[digit]
        return self.prefix + made


ANY_ID = CallIdRule(pattern=re.compile(r".+", re.DOTALL))
OPENAI_IDS = CallIdRule(pattern=re.compile(r".{1,40}", re.DOTALL))
"""Ids of OpenAI's chat completions; its Responses API takes longer ones, too."""
CLAUDE_IDS = CallIdRule(pattern=re.compile(r"[a-zA-Z0-9_-]{1,64}"))
"""Ids of Anthropic and Bedrock."""
MISTRAL_IDS = CallIdRule(pattern=re.compile(r"[a-zA-Z0-9]{9}"), prefix="", digits=9)
"""Ids of Mistral and of servers with its tokenizer."""
_BY_MODEL = (
    (re.compile(r"claude", re.IGNORECASE), CLAUDE_IDS),
    (re.compile(r"(?:mi[snx]|code|dev|magi|pix|vox)\w*tral\b", re.IGNORECASE), MISTRAL_IDS),
)


def rule_of_model(model: str, otherwise: CallIdRule) -> CallIdRule:
    """Find the rule of a model's family by its name, whichever server it is at."""
    return next((rule for named, rule in _BY_MODEL if named.search(model)), otherwise)


def fit_tool_turns(messages: Sequence[Message], rule: CallIdRule) -> tuple[Message, ...]:
    """Give the calls ids that are taken and differ, and put results in their calls' order.

    Calls of one turn may have come with one id, too.
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
        fitted += sorted(results, key=lambda one: _place_of(one, order))
        results = []
        if calls := _calls_of(message):
            made = [_fit_id(call.id, rule, used, tried) for call in calls]
            names |= {call.id: deque[str]() for call in calls}
            for call, name in zip(calls, made, strict=True):
                names[call.id].append(name)
            order = {name: number for number, name in enumerate(made)}
            message = _rename_calls(message, made)  # noqa: PLW2901
        fitted.append(_rename_results(message, names))
    return (*fitted, *sorted(results, key=lambda one: _place_of(one, order)))


def _are_fitting(messages: Sequence[Message], rule: CallIdRule) -> bool:
    """Return True if every id is taken and new, and results follow their calls in order.

    So it is in most conversations, and a long one is sent again with each of its actions.
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
    """Return True if the message is one result of a call that waits; earlier calls wait no more."""
    if len(message.parts) != 1 or not isinstance(message.parts[0], ToolResult):
        return False
    answered = message.parts[0].call_id
    while waiting:
        if waiting.popleft() == answered:
            return True
    return False


def _calls_of(message: Message) -> list[ToolCall]:
    return [part for part in message.parts if isinstance(part, ToolCall)]


def _fit_id(given: str, rule: CallIdRule, used: set[str], tried: dict[str, int]) -> str:
    """Return the id if it is taken and new, else another.

    Args:
        given: the id that the call came with.
        rule: which ids are taken.
        used: those of the calls before.
        tried: how many were made of each; thousands of calls may have the same.
    """
    fitting, number = given, tried.get(given, 0)
    while fitting in used or not rule.pattern.fullmatch(fitting):
        fitting = rule.make_id(given, number)
        number += 1
    tried[given] = number
    used.add(fitting)
    return fitting


def _rename_calls(message: Message, names: Sequence[str]) -> Message:
    """Give the calls these ids, one after the other."""
    left = iter(names)
    parts = tuple(
        replace(part, id=next(left)) if isinstance(part, ToolCall) else part
        for part in message.parts
    )
    return message if parts == message.parts else replace(message, parts=parts)


def _rename_results(message: Message, names: dict[str, deque[str]]) -> Message:
    """Give the results the ids that their calls have now.

    Of calls with one id each has one result, in the calls' order; what comes after is the last's.
    """
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolResult) and (waiting := names.get(part.call_id)):
            name = waiting.popleft() if len(waiting) > 1 else waiting[0]
            part = replace(part, call_id=name)  # noqa: PLW2901
        parts.append(part)
    return message if tuple(parts) == message.parts else replace(message, parts=tuple(parts))


def _place_of(message: Message, order: dict[str, int]) -> int:
    """Return where among its turn's calls the result's call is; strange ones are last."""
    results = (part for part in message.parts if isinstance(part, ToolResult))
    return min((order.get(part.call_id, len(order)) for part in results), default=len(order))


_PREFIX = "chat."
_TEXT_FIELDS = ("text", "summary", "data", "signature", "thinking")
"""Fields of a detail that come in pieces."""
_LISTS = {"details": "reasoning_details", "blocks": "thinking_blocks"}
"""The lists of a turn that go back, by the name under which they are kept.

They are OpenRouter's and LiteLLM's."""
_OPAQUE = "reasoning_opaque"
"""The text of a turn that goes back: GitHub's Copilot."""
GIVEN_BACK = (*_LISTS.values(), _OPAQUE)
"""The fields of a message, or of a fragment of one, that go back with the turn."""
_EXTRAS = {"extras": "extra_content", "fields": "provider_specific_fields"}
"""These fields of a call go back with it, by the name under which they are kept; the first is
Google's, the second LiteLLM's."""


def has_extra(call: dict[str, Any]) -> bool:
    """Tell whether something stands beside a call that goes back with it."""
    return any(call.get(name) for name in _EXTRAS.values())


_Place = tuple[str, int, str]
"""The list of a row, its number there, and its type."""


@final
class GivenBack:
    """Collects the fields of one reply that go back, as its fragments come."""

    def __init__(self) -> None:
        self._rows: dict[_Place, dict[str, Any]] = {}
        self._pieces: dict[_Place, dict[str, list[str]]] = {}
        """The pieces of these fields, by the row's place."""
        self._ended = 0
        """The number of `thinking_blocks` that have ended."""
        self._opaque: list[str] = []
        self._extras: dict[str, dict[str, Any]] = {}

    def add_fields(self, message: dict[str, Any]) -> None:
        """Take in what a message, or a fragment of one, has that goes back with the turn."""
        for detail in map(as_object, as_array(message.get(_LISTS["details"]))):
            place = detail.get("index")
            if not isinstance(place, int):
                place = len(self._rows)
            self._add_row(("details", place, str(detail.get("type"))), detail)
        for block in map(as_object, as_array(message.get(_LISTS["blocks"]))):
            self._add_row(("blocks", self._ended, str(block.get("type"))), block)
            self._ended += bool(block.get("signature") or block.get("data"))
        if isinstance(opaque := message.get(_OPAQUE), str):
            self._opaque.append(opaque)

    def _add_row(self, key: _Place, row: dict[str, Any]) -> None:
        """Take in a row of a list, or a piece of one: those of one place are one."""
        known = self._rows.setdefault(key, {})
        for name, value in row.items():
            if name in _TEXT_FIELDS and isinstance(value, str):
                self._pieces.setdefault(key, {}).setdefault(name, []).append(value)
                known.setdefault(name)  # the fields stay in their order
            elif value is not None or name not in known:
                known[name] = value

    def add_extra(self, call: dict[str, Any], number: int) -> None:
        """Take in what stands beside a call, by the call's number."""
        for kept, name in _EXTRAS.items():
            if extra := call.get(name):
                self._extras.setdefault(kept, {})[str(number)] = extra

    def thought(self, model: str) -> Thought | None:
        """Return all of it as a thought of that model, or None if nothing came that can go back."""
        kept: dict[str, Any] = {}
        for key, row in self._rows.items():
            texts = self._pieces.get(key, {}).items()
            whole = row | {name: "".join(pieces) for name, pieces in texts}
            kept.setdefault(key[0], []).append(whole)
        if self._opaque:
            kept["opaque"] = "".join(self._opaque)
        kept |= self._extras
        if not kept:
            return None
        try:
            written = dump_json(kept).encode()
        except TypeError:
            return None
        return Thought(model=model, redacted=_PREFIX + urlsafe_b64encode(written).decode())


def thoughts_to_give_back(
    message: dict[str, Any], calls: Sequence[dict[str, Any]], model: str
) -> tuple[Thought, ...]:
    """Return what goes back of a whole reply: its fields, and what stands beside its calls."""
    given_back = GivenBack()
    given_back.add_fields(message)
    for number, call in enumerate(calls):
        given_back.add_extra(call, number)
    thought = given_back.thought(model)
    return () if thought is None else (thought,)


def give_back(encoded: dict[str, Any], message: Message, model: str, field: str) -> None:
    """Put the reasoning of an assistant's turn into its JSON, as its server wants it.

    Args:
        encoded: the turn's JSON; changed.
        message: the turn.
        model: the model that is asked: it gets its own thoughts alone.
        field: the field of plain reasoning; empty: it is not given back.
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
        for name, beside in _EXTRAS.items():
            _put_beside_calls(encoded.get("tool_calls", ()), beside, as_object(kept.get(name)))


def _put_beside_calls(
    calls: Sequence[dict[str, Any]], name: str, extras: Mapping[str, Any]
) -> None:
    """Put under that name beside each call what is kept for its number."""
    for key, extra in extras.items():
        number = read_small_number(key)
        if number is not None and number < len(calls):
            calls[number][name] = extra


def kept_signatures(message: Message, model: str) -> dict[int, str]:
    """Find the signatures that Gemini put beside the calls of a turn, by the call's number."""
    found: dict[int, str] = {}
    for thought in message.thoughts:
        kept = (
            as_object(_read_kept(thought.redacted).get("extras")) if thought.model == model else {}
        )
        for key, extra in kept.items():
            signature = as_object(as_object(extra).get("google")).get("thought_signature")
            number = read_small_number(key)
            if number is not None and isinstance(signature, str):
                found[number] = signature
    return found


def _read_kept(redacted: str) -> dict[str, Any]:
    """Read what was kept; another dialect's thought, or one bent by a client, holds nothing."""
    if not redacted.startswith(_PREFIX):
        return {}
    try:
        return as_object(orjson.loads(urlsafe_b64decode(redacted.removeprefix(_PREFIX))))
    except (ValueError, binascii.Error):
        return {}
