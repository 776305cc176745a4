"""The calls of tools in a streamed chat completion.

The index of a fragment says which call it belongs to. Servers are known to leave the index out or
repeat it for every call, to give each fragment another id, and to send the name late or in pieces.
So a fragment without a name continues a call, and a name begins another call only if the call
before is whole.
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
_UNTOLD = {"", "n", '"', "`"}
"""Arguments that begin so are told only when they are whole."""
_BEGUN_OBJECT = re.compile(r'\s*\{\s*"[^\s:,}\]"\\]')
"""An object and the first letter of a key, which nothing but a beginning text may hold."""
_STRUCTURE = re.compile(r'\\.|["{}\[\]]', re.DOTALL)


@final
@dataclass(slots=True, kw_only=True)
class _Call:
    """A call while its fragments come."""

    call_id: str
    place: int
    """The call's position in the order in which the calls began."""
    name: str = ""
    may_be_echo: bool = False
    """True if it begins at the index of a whole call of the same name: it is that call's last
    fragment, with another id, unless arguments follow."""
    number: int | None = None
    """The number under which its start was sent on; None: not yet, as more of its name may come."""
    pieces: list[str] = field(default_factory=list[str])
    """The pieces of its arguments."""
    size: int = 0
    """Characters of its arguments."""
    sent: int = 0
    """The number of pieces that were sent on."""
    read: int = 0
    """The number of pieces that were searched for the end of the arguments."""
    backslash: str = ""
    """An escaping backslash at the end of the searched pieces; it belongs to the next character."""
    depth: int = 0
    in_string: bool = False
    says_all_again: bool = False
    """True if each fragment has been seen to repeat the arguments before it."""
    is_whole: bool = False
    """True if the arguments searched so far end a whole object or array."""

    @property
    def is_echo(self) -> bool:
        """True if only the name of the call before has come."""
        return self.may_be_echo and not self.pieces

    @property
    def is_held(self) -> bool:
        """True if the arguments so far may be told only when they are whole.

        They are blank so far, `null`, the text of an object, one in a code block, or an empty one,
        as which some servers begin every call.
        """
        return self.pieces == ["{}"] or "".join(self.pieces[:2]).lstrip()[:1] in _UNTOLD

    def add_arguments(self, arguments: str) -> None:
        """Take in a piece of the arguments."""
        if arguments:
            if self.pieces == ["{}"] and self.number is None:
                self.pieces, self.size, self.read, self.is_whole = [], 0, 0, False
            self.pieces.append(arguments)
            self.size += len(arguments)

    def unsaid_part(self, arguments: str) -> str:
        """Return what a fragment adds: some servers say all arguments so far in each."""
        if not self.size or len(arguments) < self.size:
            return arguments
        so_far = "".join(self.pieces)
        if not arguments.startswith(so_far):
            return arguments
        self.says_all_again = self.says_all_again or not self._can_hold(arguments, so_far)
        return arguments[self.size :] if self.says_all_again else arguments

    def _can_hold(self, arguments: str, so_far: str) -> bool:
        """Tell whether an object can go on with what begins as it does itself."""
        self.has_whole_arguments()
        if not self.depth or not _BEGUN_OBJECT.match(arguments):
            return True
        return not self.in_string and so_far.rstrip()[-1] in ":[,"

    def repeats(self, call_id: str, arguments: str) -> bool:
        """Tell whether a fragment says all of this call again, as some servers do at its end."""
        is_same = bool(call_id) and call_id == self.call_id
        if not self.pieces or not (is_same or self.says_all_again):
            return False
        return self.size == len(arguments) and "".join(self.pieces) == arguments

    def has_whole_arguments(self) -> bool:
        """Tell whether the arguments so far are a whole object."""
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
    """The tool calls of one reply."""

    def __init__(self) -> None:
        self._told = ToolCallAccumulator()
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._untold: dict[int, _Call] = {}
        """Calls that have a name and no arguments yet, by their place."""
        self.last_number = 0
        """The position of the call that the last fragment belonged to."""

    def add_fragment(self, fragment: dict[str, Any]) -> Sequence[Delta]:
        """Take in a fragment, and return what can be told now.

        Raises:
            TypeError: what a provider sent in place of a string is none.
            ValueError: the calls are too many, or the name of one changes after its arguments.
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
        self.last_number = call.place
        if isinstance(index, int):
            self._by_index[index] = call
        if name and call.repeats(call_id, arguments):
            return ()
        call.call_id = call.call_id or call_id
        self._by_id.setdefault(call.call_id, call)
        if name:
            _add_name(call, name)
            self._untold[call.place] = call
        call.add_arguments(call.unsaid_part(arguments))
        if call.number is None and call.is_held:
            return ()
        return self._tell(call) if call.name and call.pieces else ()

    def flush(self) -> Sequence[Delta]:
        """Tell the calls that no arguments came of, or whose arguments were held."""
        # An echo is told with its arguments, if any follow.
        untold, self._untold = self._untold, {}
        return [
            delta
            for _, call in sorted(untold.items())
            if call.number is None and not call.is_echo
            for delta in self._tell(call)
        ]

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls; one whose name never came has none, and is nobody's tool."""
        for call in self._calls:
            if call.number is None and not call.is_echo:
                self._tell(call)
        return self._told.tool_calls()

    def _find_call(self, index: Any, call_id: str, name: str, arguments: str) -> _Call | None:
        """Find the call that the fragment continues; return None if it begins one."""
        known = self._by_index.get(index) if isinstance(index, int) else None
        if known is None and call_id:
            known = self._by_id.get(call_id) if index is None or not name else None
        if known is None and self._calls and (index is None or not name):
            last = self._calls[-1]
            # A fragment with only an id may announce another call whose name comes later.
            goes_on = bool(last.name and arguments and not last.has_whole_arguments())
            known = last if goes_on or (index is None and not (name or call_id)) else None
            if index is None and name:
                known = last
        if known is None or not name:
            return known
        if not _begins_another(known, call_id, name, arguments):
            return known
        # Names at one index are pieces of one name until arguments come.
        placed = isinstance(index, int) and known.name and not known.pieces
        return known if placed else None

    def _begin_call(self, call_id: str) -> _Call:
        if len(self._calls) >= MAX_TOOL_CALLS:
            raise ValueError(f"more than {MAX_TOOL_CALLS:,} tool calls in one reply")
        self._calls.append(_Call(call_id=call_id, place=len(self._calls)))
        return self._calls[-1]

    def _tell(self, call: _Call) -> Sequence[Delta]:
        """Tell the start of the call, or what is new of its arguments."""
        arguments, call.sent = "".join(call.pieces[call.sent :]), len(call.pieces)
        if call.number is None:
            arguments = arguments_text(arguments) if arguments else ""
            call.number = len(self._told)
            return (self._told.start_call(call.call_id, call.name, arguments),)
        return (self._told.add_arguments(call.number, arguments),) if arguments else ()


def _begins_another(call: _Call, call_id: str, name: str, arguments: str) -> bool:
    """Tell whether a fragment with a name begins another call than the one in its place."""
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
    """Take in a name: the same again, all of it so far, or its next piece.

    Raises:
        ValueError: it changes after the call was told, or has no end.
    """
    whole = name if name.startswith(call.name) else call.name + name
    if len(whole) > _MAX_NAME_CHARACTERS:
        raise ValueError("the name of a tool call is too long")
    if call.number is not None and whole != call.name:
        raise ValueError("the name of a tool call changes after its arguments")
    call.name = whole


def called_function(call: dict[str, Any]) -> dict[str, Any]:
    """Return the name and the arguments of a call; some servers put them beside its id."""
    return as_object(call.get("function")) or call


def function_arguments(function: dict[str, Any]) -> str:
    """Return the arguments as JSON text; some servers send the object itself, or call it so."""
    names = ("arguments", "parameters", "input")
    arguments = next((function[name] for name in names if function.get(name) is not None), None)
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else dump_json(arguments)
