"""The client's tools that a reply calls: those that were offered, under our numbers and ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import final

from batuta.core import Delta, Reply, Request, ToolCall


@final
class OfferedTools:
    """What a call's client is told of tools, fragment by fragment and as a whole."""

    def __init__(self, request: Request, make_id: Callable[[int], str] | None) -> None:
        """No tool is called yet.

        Args:
            request: which tools are offered.
            make_id: our id of the call of that number; None: the worker's own are as good.
        """
        self._request = request
        self._make_id = make_id
        self._indices: dict[tuple[int, int], int | None] = {}
        """The reply's number and the worker's index to ours; None: not a tool of the client's, so
        nobody is told of it."""
        self._offered_calls: Counter[int] = Counter()
        """How many of those there are, by the reply's number."""

    def forget_calls(self) -> None:
        """Another attempt begins."""
        self._indices.clear()
        self._offered_calls.clear()

    def renumber_delta(self, delta: Delta, index: int) -> Delta | None:
        """The fragment of a tool call under our index and id; None: it is no tool of theirs."""
        place = (delta.choice, index)
        if place not in self._indices:
            offered = self._is_offered(delta.tool_name)
            self._indices[place] = self._offered_calls[delta.choice] if offered else None
            self._offered_calls[delta.choice] += offered
        mine = self._indices[place]
        if mine is None:
            return None
        return replace(
            delta,
            tool_index=mine,
            tool_id=self._call_id(delta.tool_id, mine) if delta.tool_id else "",
        )

    def drop_undeclared_calls(self, reply: Reply) -> Reply:
        """The reply without calls of tools that were not offered, under our ids."""
        if reply.alternatives:
            others = tuple(self.drop_undeclared_calls(other) for other in reply.alternatives)
            reply = replace(reply, alternatives=others)
        if not reply.tool_calls:
            return reply
        offered = [call for call in reply.tool_calls if self._is_offered(call.name)]
        calls = tuple(
            ToolCall(id=self._call_id(call.id, number), name=call.name, arguments=call.arguments)
            for number, call in enumerate(offered)
        )
        return replace(reply, tool_calls=calls)

    def _is_offered(self, name: str) -> bool:
        """Only tools that the client declared reach the client."""
        if self._request.tool_choice == "none":
            return False
        return any(tool.name == name for tool in self._request.tools)

    def _call_id(self, given: str, number: int) -> str:
        return given if self._make_id is None else self._make_id(number)
