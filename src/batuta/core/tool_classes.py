"""Classes of clients' tools by their effects, and the tools that a step may call. Pure.

A tool observes, changes something, or asks the user. The last step of a workflow answers the
client, so only that step may call tools that change or ask. The steps that must end before it may
call tools that observe; a step that can run at the same time as the last one may call none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, TypeVar, cast

from batuta.core.message import Tool
from batuta.core.workflow import Workflow

V = TypeVar("V")


def find_by_name(table: Mapping[str, V], name: str) -> V | None:
    """Return the value of the name, else of the longest pattern that matches it, else None."""
    if name in table:
        return table[name]
    fitting = [pattern for pattern in table if _fits_pattern(name, pattern)]
    return table[max(fitting, key=len)] if fitting else None


def _fits_pattern(name: str, pattern: str) -> bool:
    """Return True if the name matches the glob; `[` is literal, since model names contain it."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


MOST_READ = 200
"""Maximum number of a tool's parameters, and of its name's characters, that are examined."""


class ToolClass(StrEnum):
    """The effect that a call of a tool can have."""

    OBSERVE = "observe"
    CHANGE = "change"
    ASK = "ask"


def _read_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CHANGES = _read_words(
    "add append apply bash book buy call cancel click close commit copy create delete deploy drop "
    "edit exec execute fill insert install kill make merge modify move multiedit patch pay post "
    "push put remove rename replace reset restart revert run save send set shell spawn start stop "
    "submit task terminal type update upload write"
)
_ASKS = _read_words("ask clarify confirm followup question")
_OBSERVES = _read_words(
    "cat check count describe diff fetch find get glob grep head inspect list load lookup look ls "
    "peek query read retrieve screenshot search show stat status tail tree view weather"
)
_CHANGING_PARAMETERS = _read_words(
    "body cmd code command commands content contents data edits input method new_source new_string "
    "patch payload script sql statement"
)
"""Parameters with which a tool can change something even if its name says that it observes."""


def classify_tool(tool: Tool) -> ToolClass:
    """Return the class of the tool by the words of its name and the parameters of its schema.

    A tool that does not clearly observe or ask is in the class `CHANGE`.
    """
    words = {word.lower() for word in _WORD.findall(tool.name[:MOST_READ])}
    if words & _CHANGES:
        return ToolClass.CHANGE
    if words & _ASKS:
        return ToolClass.ASK
    if words & _OBSERVES and not _list_parameters(tool) & _CHANGING_PARAMETERS:
        return ToolClass.OBSERVE
    return ToolClass.CHANGE


def _list_parameters(tool: Tool) -> set[str]:
    """Return the names of the tool's parameters, in lower case."""
    listed = tool.parameters.get("properties")
    if not isinstance(listed, Mapping):
        return set()
    named = list(cast("Mapping[Any, Any]", listed))
    return {str(name).lower() for name in named[:MOST_READ]}


@dataclass(frozen=True, slots=True)
class ToolClasses:
    """A classifier of tools: the settings decide if they name the tool, else `classify_tool`."""

    configured: Mapping[str, ToolClass] = field(default_factory=dict[str, ToolClass])
    """Classes by tool name, or by a pattern with `*` and `?`."""

    def of(self, tool: Tool) -> ToolClass:
        """Return the class of the tool."""
        return find_by_name(self.configured, tool.name) or classify_tool(tool)

    def of_step(self, workflow: Workflow, index: int, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """Return the client's tools that the step may call."""
        last = len(workflow) - 1
        if index == last or not tools:
            return tools
        if index not in _steps_before(workflow, last):
            return ()
        return tuple(tool for tool in tools if self.of(tool) is ToolClass.OBSERVE)


def _steps_before(workflow: Workflow, index: int) -> set[int]:
    """Return the indices of the steps that must have ended before that step starts."""
    before: set[int] = set()
    left = list(workflow.steps[index].access)
    while left:
        step = left.pop()
        if step not in before:
            before.add(step)
            left += workflow.steps[step].access
    return before
