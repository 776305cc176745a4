"""Assembles the tool calls of a streamed chat completion.

The index of a fragment should say which call it belongs to. But some servers leave the index out or
repeat it for every call, give each fragment another id, or send the name late or in pieces. So a
fragment without a name continues a call; with a new id or index, it continues the last call only if
the arguments of that call are incomplete. At a known index, or without an index, a name usually
begins another call if the earlier call is complete or has another id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from batuta.clients.decoding import MAX_TOOL_CALLS, as_object, as_string, dump_json, need_string
from batuta.clients.tool_turns import ToolCallAccumulator, arguments_text
from batuta.core import Delta, ToolCall

_MAX_NAME_CHARACTERS = 1024
_HELD_BEGINNINGS = {"", "n", '"', "`"}
"""First characters of arguments that are held until they are complete."""
_BEGUN_OBJECT = re.compile(r'\s*\{\s*"[^\s:,}\]"\\]')
"""Matches an object up to the first letter of a key."""
_STRUCTURE = re.compile(r'\\.|["{}\[\]]', re.DOTALL)


@final
@dataclass(slots=True, kw_only=True)
class _Call:
    """A tool call while its fragments are received."""

    call_id: str
    position: int
    """The call's position in the order in which the calls began."""
    name: str = ""
    may_be_echo: bool = False
    """True if this call begins at the index of a complete call of the same name. Unless arguments
    follow, it is only a repetition of that call's name with another id."""
    number: int | None = None
    """The call's index in the reply; None until the start of the call is emitted."""
    pieces: list[str] = field(default_factory=list[str])
    """The pieces of the arguments."""
    size: int = 0
    """Characters of the arguments so far."""
    sent: int = 0
    """The number of pieces that were emitted."""
    read: int = 0
    """The number of pieces that were scanned for the end of the arguments."""
    backslash: str = ""
    """An escaping backslash at the end of the scanned pieces; it belongs to the next character."""
    depth: int = 0
    """The number of objects and arrays that are open after the scanned pieces."""
    in_string: bool = False
    is_cumulative: bool = False
    """True if fragments have been seen to repeat all earlier arguments."""
    is_whole: bool = False
    """True if the arguments scanned so far are a complete object or array."""

    @property
    def is_echo(self) -> bool:
        """True if only the name of the previous call was repeated."""
        return self.may_be_echo and not self.pieces

    @property
    def is_held(self) -> bool:
        """True if the arguments must be held until they are complete.

        They are blank, or begin like `null`, a JSON string, a code block, or the empty object with
        which some servers begin every call.
        """
        return self.pieces == ["{}"] or "".join(self.pieces[:2]).lstrip()[:1] in _HELD_BEGINNINGS

    def add_arguments(self, arguments: str) -> None:
        """Add a piece of the arguments; it replaces an empty object that is still held."""
        if arguments:
            if self.pieces == ["{}"] and self.number is None:
                self.pieces, self.size, self.read, self.is_whole = [], 0, 0, False
            self.pieces.append(arguments)
            self.size += len(arguments)

    def new_part(self, arguments: str) -> str:
        """Return what a fragment adds, as some servers repeat all earlier arguments in each."""
        if not self.size or len(arguments) < self.size:
            return arguments
        so_far = "".join(self.pieces)
        if not arguments.startswith(so_far):
            return arguments
        self.is_cumulative = self.is_cumulative or not self._can_append(arguments, so_far)
        return arguments[self.size :] if self.is_cumulative else arguments

    def _can_append(self, arguments: str, so_far: str) -> bool:
        """Return True if `arguments` may continue the object instead of repeating it."""
        self.has_whole_arguments()
        if not self.depth or not _BEGUN_OBJECT.match(arguments):
            return True
        return not self.in_string and so_far.rstrip()[-1] in ":[,"

    def repeats(self, call_id: str, arguments: str) -> bool:
        """Return True if a fragment repeats this whole call, as some servers do at its end."""
        is_same = bool(call_id) and call_id == self.call_id
        if not self.pieces or not (is_same or self.is_cumulative):
            return False
        return self.size == len(arguments) and "".join(self.pieces) == arguments

    def has_whole_arguments(self) -> bool:
        """Scan the new pieces; return True if the arguments are a complete object or array."""
        text = self.backslash + "".join(self.pieces[self.read :])
        self.read = len(self.pieces)
        backslashes = len(text) - len(text.rstrip("\\"))
        self.backslash = "\\" if backslashes % 2 else ""
        text = text.removesuffix(self.backslash)
        for found in _STRUCTURE.finditer(text):
            mark = found[0]
            if mark == '"':
                self.in_string = not self.in_string
            elif not self.in_string and len(mark) == 1:
                self.depth += 1 if mark in "{[" else -1
                self.is_whole = self.depth == 0
        return self.is_whole and not self.backslash


@final
class CallFragments:
    """Assembles the tool calls of one reply."""

    def __init__(self) -> None:
        self._emitted = ToolCallAccumulator()
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._held: dict[int, _Call] = {}
        """Calls with a name that may still be held, by their position."""
        self.last_position = 0
        """The position of the call that the last fragment belonged to."""

    def add_fragment(self, fragment: dict[str, Any]) -> Sequence[Delta]:
        """Add a fragment; return the deltas that are certain now.

        Raises:
            TypeError: the name is not a string, or the arguments cannot be written as JSON.
            ValueError: there are too many calls, or a call's name is too long or changes after its
                arguments.
        """
        function = called_function(fragment)
        call_id = as_string(fragment.get("id"))
        name = need_string(function.get("name") or "")
        arguments = function_arguments(function)
        index = fragment.get("index")
        if isinstance(index, float) and index.is_integer():
            index = int(index)
        call = self._find_call(index, call_id, name, arguments)
        if call is None:
            if not (call_id or name or arguments):
                return ()
            call = self._begin_call(call_id)
            before = self._by_index.get(index) if isinstance(index, int) else None
            call.may_be_echo = before is not None and before.name == name
        self.last_position = call.position
        if isinstance(index, int):
            self._by_index[index] = call
        if name and call.repeats(call_id, arguments):
            return ()
        call.call_id = call.call_id or call_id
        self._by_id.setdefault(call.call_id, call)
        if name:
            _add_name(call, name)
            self._held[call.position] = call
        call.add_arguments(call.new_part(arguments))
        if call.number is None and call.is_held:
            return ()
        return self._emit(call) if call.name and call.pieces else ()

    def flush(self) -> Sequence[Delta]:
        """Return deltas for calls that are still held or have no arguments."""
        # An echo is emitted with its arguments, if any follow.
        held, self._held = self._held, {}
        return [
            delta
            for _, call in sorted(held.items())
            if call.number is None and not call.is_echo
            for delta in self._emit(call)
        ]

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls; a name that was never received is empty and matches no tool."""
        for call in self._calls:
            if call.number is None and not call.is_echo:
                self._emit(call)
        return self._emitted.tool_calls()

    def emitted_numbers(self) -> dict[int, int]:
        """Return the index in the reply of each emitted call, by the call's position.

        A held call is emitted after the calls that follow it.
        """
        return {call.position: call.number for call in self._calls if call.number is not None}

    def _find_call(self, index: Any, call_id: str, name: str, arguments: str) -> _Call | None:
        """Return the call that the fragment continues; None if it begins a new one."""
        known = self._by_index.get(index) if isinstance(index, int) else None
        if known is None and call_id:
            known = self._by_id.get(call_id) if index is None or not name else None
        if known is None and self._calls and (index is None or not name):
            last = self._calls[-1]
            # A fragment with only an id may begin another call whose name follows later.
            continues = bool(last.name and arguments and not last.has_whole_arguments())
            known = last if continues or (index is None and not (name or call_id)) else None
            if index is None and name:
                known = last
        if known is None or not name:
            return known
        if not _begins_another(known, call_id, name, arguments):
            return known
        # Names at one index are pieces of one name until arguments are received.
        placed = isinstance(index, int) and known.name and not known.pieces
        return known if placed else None

    def _begin_call(self, call_id: str) -> _Call:
        if len(self._calls) >= MAX_TOOL_CALLS:
            raise ValueError(f"more than {MAX_TOOL_CALLS:,} tool calls in one reply")
        self._calls.append(_Call(call_id=call_id, position=len(self._calls)))
        return self._calls[-1]

    def _emit(self, call: _Call) -> Sequence[Delta]:
        """Return a delta with the start of the call, or with its new arguments."""
        arguments, call.sent = "".join(call.pieces[call.sent :]), len(call.pieces)
        if call.number is None:
            arguments = arguments_text(arguments) if arguments else ""
            call.number = len(self._emitted)
            return (self._emitted.start_call(call.call_id, call.name, arguments),)
        return (self._emitted.add_arguments(call.number, arguments),) if arguments else ()


def _begins_another(call: _Call, call_id: str, name: str, arguments: str) -> bool:
    """Return True if a fragment with a name begins another call instead of continuing `call`."""
    other_id = bool(call_id) and bool(call.call_id) and call_id != call.call_id
    if not call.name:
        return other_id and call.has_whole_arguments()
    if call.has_whole_arguments():
        again = call.repeats(call_id, arguments)
        return other_id or name != call.name or (bool(arguments.strip()) and not again)
    if name.startswith(call.name):
        return False
    return other_id


def _add_name(call: _Call, name: str) -> None:
    """Add a name: a repetition, the whole name so far, or its next piece.

    Raises:
        ValueError: the name changes after the call was emitted, or is too long.
    """
    whole = name if name.startswith(call.name) else call.name + name
    if len(whole) > _MAX_NAME_CHARACTERS:
        raise ValueError("the name of a tool call is too long")
    if call.number is not None and whole != call.name:
        raise ValueError("the name of a tool call changes after its arguments")
    call.name = whole


def called_function(call: dict[str, Any]) -> dict[str, Any]:
    """Return the object with a call's name and arguments; some servers put both beside the id."""
    return as_object(call.get("function")) or call


def function_arguments(function: dict[str, Any]) -> str:
    """Return the arguments as JSON text; some servers send an object, or use another field name."""
    names = ("arguments", "parameters", "input")
    arguments = next((function[name] for name in names if function.get(name) is not None), None)
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else dump_json(arguments)
