"""Parses tool calls in the text of an answer, for servers that do not parse them.

Servers of open models leave a call in the text if it is not in the form that their parser expects:
on llama.cpp, Ollama and vLLM, Qwen2.5-Coder puts it into a code block or writes bare JSON. As an
answer may contain JSON, only these forms count as calls, and only at the end of the answer:
- a JSON object with the name of an offered tool and its arguments, or a list of such objects,
- a model family's own marker, followed by such a name and arguments,
- Python calls of offered tools, in a list, in a code block or after such a marker.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, final

from batuta.clients.decoding import as_array, as_object
from batuta.clients.python_calls import begins_python_call, read_python_calls
from batuta.clients.tagged_arguments import DSML, NoCallError, read_arguments
from batuta.core import CallListener, Client, Delta, Finish, Reply, Request, ToolCall, Worker
from batuta.core.run import Failure

_TAGS = ("tool_call", "tool_calls", "tools", "function_call", "TOOLCALL")
_SIGNS = (
    *("[TOOL_CALLS]", "<|python_tag|>", "<|python_start|>", "<|tool_call|>"),
    *("<|tool_call_start|>", "functools"),
)
"""Markers before a call, of Mistral's, Llama's, Granite's, LFM's and Phi's models."""
_SEP = "<\uff5ctool\u2581sep\uff5c>"
_NAMING = (
    *("[TOOL_CALLS]", "<function=", "<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    *("<tool_call>", "<minimax:tool_call>", "<function_calls>", '<invoke name="'),
    *("<seed:tool_call>", "<|channel|>commentary to="),
    *(f"<{DSML}function_calls>", f'<{DSML}invoke name="'),
    *("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581begin\uff5c>"),
)
"""Markers followed by the tool's name and then its arguments, of Mistral's, Llama's, Kimi's,
Qwen's, GLM's, MiniMax's, Seed's, DeepSeek's and Olmo's models, and of gpt-oss."""
_KINDS = ("functions.", f"function{_SEP}")
"""Prefixes of the name, of Kimi and DeepSeek."""
_LANGUAGES = ("json", "tool_call", "tool_code")
_OPENING = re.compile(
    rf"```(?:{'|'.join(_LANGUAGES)})?[ \t]*\n?|<(?:{'|'.join(_TAGS)})>"
    rf"|{'|'.join(map(re.escape, _SIGNS))}"
)
_CLOSING = re.compile(
    rf"\s*+(?:```\s*+)?+(?:(?:</(?:{'|'.join(_TAGS)}|function|(?:minimax|seed):tool_call|function_calls)>"
    rf"|</{DSML}function_calls>|<\|python_end\|>|<\|tool_call_end\|>|<\|tool_calls_section_end\|>|<\|call\|>"
    "|<\uff5ctool\u2581calls?\u2581end\uff5c>)\\s*+)*+"
)
_MARKS = tuple(dict.fromkeys(("```", *(f"<{tag}>" for tag in _TAGS), *_SIGNS, *_NAMING)))
_BEGUN_MARKS = (*_MARKS, *(f"```{language}" for language in _LANGUAGES))
_NAMED_SO_FAR = re.compile(
    rf"(?:(?:{'|'.join(map(re.escape, _NAMING))})\s*+){{1,2}}"
    rf"(?:{'|'.join(map(re.escape, _KINDS))})?+([\w.-]{{0,128}})"
)
_NAMED = re.compile(
    _NAMED_SO_FAR.pattern.replace("{0,128}", "{1,128}+")
    + rf'(?::\d{{1,4}})?+(?:\[ARGS\]|"?>|<\|tool_call_argument_begin\|>|{_SEP}'
    + r"|\s*+(?:<\|constrain\|>\s*+json\s*+)?+<\|message\|>)?+"
    + r"\s*+(?:```(?:json)?\s*+(?=\{))?+"
)
"""Matches a marker and a name before the arguments."""
_KEYS = frozenset({"name", "arguments", "parameters", "type", "id", "function"})
_BEGINNINGS = tuple(f'{bracket}{{"{key}":' for key in sorted(_KEYS) for bracket in ("", "["))
_LONGEST_BEGINNING = 200
_LONGEST_MARK = max(map(len, _MARKS))
_BLANKS = re.compile(r"\s*")
_NAME = re.compile(r'\[?\{"name":"([^"]*)"')
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_MAX_POSITIONS = 256
"""Maximum number of positions in an answer at which calls are searched; bounds the time."""
_MAX_CALLS = 128
"""Maximum number of calls in one answer."""
_DECODER = json.JSONDecoder(strict=False)  # models write line breaks into strings


Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the offered tools' arguments, by the tools' names."""


def find_calls(text: str, tools: Schemas) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of an answer before its calls, and the calls at its end.

    The whole text and no calls are returned if calls do not end the text.

    Args:
        text: the answer.
        tools: the offered tools' schemas.
    """
    end = 0
    for at in islice(_candidate_positions(text), _MAX_POSITIONS):
        if at < end or not _may_be_calls(text, at, tools):
            continue  # within calls that were already read and did not reach the end
        calls, end = _read_calls(text, at, tools)
        if calls and end >= len(text):
            return text[:at], calls
    return text, ()


def _may_be_calls(text: str, at: int, names: Collection[str]) -> bool:
    """Return True if calls may begin at `at`, judged by the text so far."""
    if any(mark.startswith(text[at : at + _LONGEST_MARK]) for mark in _BEGUN_MARKS):
        return True
    naming = _NAMED_SO_FAR.match(text, at)
    if naming is not None and _may_name(naming, names):
        return True
    opening = _OPENING.match(text, at)
    behind = opening.end() if opening else at
    if begins_python_call(text, behind, names, in_list=opening is None):
        return True
    begun = _read_beginning(text, at)
    named = _NAME.match(begun)
    if named is not None:
        return named[1] in names
    return any(
        begun.startswith(beginning) or beginning.startswith(begun) for beginning in _BEGINNINGS
    )


def _may_name(naming: re.Match[str], names: Collection[str]) -> bool:
    """Return True if a marker may be followed by a tool's name, judged by the text so far."""
    name, rest = naming[1], naming.string[naming.end() : naming.end() + _LONGEST_MARK]
    if rest:
        if any(kind.startswith(name + rest) for kind in _KINDS):
            return True
        return name in names or (not name and any(mark.startswith(rest) for mark in _NAMING))
    return any(one.startswith(name) for one in (*names, *_KINDS))


def _is_decided(text: str, at: int) -> bool:
    """Return True if further text cannot change whether calls may begin at `at`."""
    opening = _OPENING.match(text, at)
    is_long = len(text) >= (opening.end() if opening else at) + _LONGEST_BEGINNING
    return is_long or _NAME.match(_read_beginning(text, at)) is not None


def _read_beginning(text: str, at: int) -> str:
    """Return the beginning of the JSON at `at`, or after a marker there, without white space."""
    opening = _OPENING.match(text, at)
    at = opening.end() if opening else at
    return "".join(text[at : at + _LONGEST_BEGINNING].split())


def _read_calls(text: str, at: int, tools: Schemas) -> tuple[tuple[ToolCall, ...], int]:
    """Return the calls from `at` on, and the position up to which no further call begins."""
    calls: list[ToolCall] = []
    while at < len(text) and len(calls) < _MAX_CALLS:
        try:
            value, end = _read_next(text, at, tools)
        except NoCallError as error:
            return (), error.at
        except (ValueError, RecursionError):
            break
        entries = as_array(value) if isinstance(value, list) else [value]
        read = [_read_call(entry, tools) for entry in entries]
        if None in read:
            break
        calls += filter(None, read)
        at = _end_of(_CLOSING, text, end)
    return tuple(calls), at


def _read_next(text: str, at: int, tools: Schemas) -> tuple[Any, int]:
    """Return the call at `at` as a JSON value, and the position after it.

    Raises:
        ValueError: there is no call.
    """
    named = _NAMED.match(text, at)
    if named is None:
        opening = _OPENING.match(text, at)
        begin = _end_of(_BLANKS, text, opening.end() if opening else at)
        if begins_python_call(text, begin, tools, in_list=opening is None):
            return read_python_calls(text, begin, tools)
        return _DECODER.raw_decode(text, begin)
    name, begin = named[1], named.end()
    if text.startswith("(", begin):  # Olmo
        return read_python_calls(text, named.start(1), tools)
    if text.startswith("{", begin):
        arguments, end = _DECODER.raw_decode(text, begin)
    else:
        arguments, end = read_arguments(text, begin, tools.get(name, {}))
    return {"name": name, "arguments": arguments}, end


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _read_call(value: object, names: Collection[str]) -> ToolCall | None:
    """Return the call that a JSON value describes; None if no offered tool is called."""
    entry = as_object(value)
    if isinstance(entry.get("function"), dict):  # the form of OpenAI's replies
        entry = as_object(entry["function"])
    name, arguments = entry.get("name"), entry.get("arguments", entry.get("parameters"))
    if not _KEYS.issuperset(entry) or not isinstance(name, str) or name not in names:
        return None
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=f"call_{secrets.token_hex(8)}", name=name, arguments=written)


async def complete_with_calls(inner: Client, request: Request, listener: CallListener) -> Reply:
    """Return `inner`'s reply with the calls in its text moved to `tool_calls`."""
    holding = _HoldingListener(listener, {tool.name: tool.parameters for tool in request.tools})
    reply = await inner.complete(request, holding)
    choices = [await holding.end_choice(number, one) for number, one in enumerate(reply.choices)]
    return replace(choices[0], alternatives=tuple(choices[1:]))


@dataclass(slots=True, kw_only=True)
class _HeldText:
    """The text of one choice that is held because it may be a call."""

    pieces: list[str] = field(default_factory=list[str])
    is_decided: bool = False
    """True once no further text can rule out a call; then all further text is held."""
    is_begun: bool = False
    """True once some text of the choice has been passed on."""
    tried: int = 0
    """The number of positions checked so far at which no call begins."""

    def take(self, names: Collection[str]) -> str:
        """Return the text that cannot belong to a call, and hold the rest.

        After `_MAX_POSITIONS` positions without a call all text is returned.
        """
        held = "".join(self.pieces)
        at = len(held)
        for position in _candidate_positions(held, is_begun=self.is_begun):
            if self.tried >= _MAX_POSITIONS:
                break
            if _may_be_calls(held, position, names):
                at = position
                break
            self.tried += 1
        self.pieces = [held[at:]] if at < len(held) else []
        self.is_begun = self.is_begun or at > 0
        self.is_decided = at < len(held) and _is_decided(held, at)
        return held[:at]


@final
class _HoldingListener:
    """Passes the deltas of an answer to a listener, except for text that may be a call."""

    def __init__(self, listener: CallListener, tools: Schemas) -> None:
        self._listener = listener
        self._tools = tools
        self._choices: dict[int, _HeldText] = {}
        self.streaming = listener.streaming

    async def before_call(self, request: Request, worker: Worker) -> Request:
        return await self._listener.before_call(request, worker)

    async def on_failure(self, failure: Failure) -> None:
        """Discard the held text of the attempt, and pass the failure to the listener."""
        self._choices.clear()
        await self._listener.on_failure(failure)

    async def on_delta(self, delta: Delta) -> None:
        """Pass on the delta, without text that may belong to a call."""
        if not delta.text or delta.is_refusal:
            await self._listener.on_delta(delta)
            return
        choice = self._choices.setdefault(delta.choice, _HeldText())
        waits = choice.is_decided or (bool(choice.pieces) and delta.text.isspace())
        choice.pieces.append(delta.text)
        passed = "" if waits else choice.take(self._tools)
        if passed or delta.reasoning:
            await self._listener.on_delta(replace(delta, text=passed))

    async def end_choice(self, number: int, reply: Reply) -> Reply:
        """Return a choice with its calls parsed; pass on its held text and the calls."""
        held = "".join(self._choices.pop(number, _HeldText()).pieces)
        text, calls = find_calls(reply.text, self._tools)
        if reply.tool_calls or reply.is_refusal or not calls:
            await self._pass_text(number, held)
            return reply
        length = len(reply.text) - len(text)  # characters of the calls
        await self._pass_text(number, held[:-length])
        for index, call in enumerate(calls):
            delta = Delta(tool_index=index, tool_id=call.id, tool_name=call.name, choice=number)
            await self._listener.on_delta(replace(delta, tool_arguments=call.arguments))
        finish = Finish.TOOL_CALLS if reply.finish is Finish.STOP else reply.finish
        return replace(reply, text=text, tool_calls=calls, finish=finish)

    async def _pass_text(self, choice: int, text: str) -> None:
        if text:
            await self._listener.on_delta(Delta(text=text, choice=choice))


def _candidate_positions(held: str, *, is_begun: bool = False) -> Iterator[int]:
    """Yield the positions in an answer, or its held part, where calls may begin.

    A call without a marker can only begin at the beginning of the answer, and a marker at the end
    of the text may still be incomplete.

    Args:
        held: the text.
        is_begun: whether other text of the answer precedes it.
    """
    if not is_begun:
        blank = len(held) - len(held.lstrip())
        if held[blank : blank + 1] in {"", "{", "["}:
            yield 0
    for found in _MARK.finditer(held):
        yield found.start()
    for at in range(max(len(held) - _LONGEST_MARK, 0), len(held)):
        if any(mark.startswith(held[at:]) for mark in _MARKS):
            yield at
