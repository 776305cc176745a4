"""Classes of clients' tools by what they do, and the tools that a step may have. Pure.

A tool either observes, changes something or asks the user. Of a workflow one step acts: the last
one, whose reply is the client's. It alone may have tools that change or ask; the steps that end
before it have those that observe, and a step that can run at the same time has none.
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
    """Return the table's value for the name: of just that name, else of the longest pattern."""
    if name in table:
        return table[name]
    fitting = [pattern for pattern in table if _fits_pattern(name, pattern)]
    return table[max(fitting, key=len)] if fitting else None


def _fits_pattern(name: str, pattern: str) -> bool:
    """Tell whether the name fits the pattern; a bracket is itself, as names of models have some."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


MOST_READ = 200
"""Characters of a tool's name, and parameters of it, that are looked at."""


class ToolClass(StrEnum):
    """It says what a call of a tool can do."""

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
"""Parameters by which a tool that is named like one that observes can do anything else."""


def classify_tool(tool: Tool) -> ToolClass:
    """Return the class of the tool by the words of its name and the parameters of its schema.

    A tool of which neither says enough may change anything.
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
    """Tells tools apart, by the settings where they name one."""

    configured: Mapping[str, ToolClass] = field(default_factory=dict[str, ToolClass])
    """Classes by the names of tools, or by patterns with `*` and `?`."""

    def of(self, tool: Tool) -> ToolClass:
        """Return the class of the tool."""
        return find_by_name(self.configured, tool.name) or classify_tool(tool)

    def of_step(self, workflow: Workflow, index: int, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """Return those of the client's tools that the step may call."""
        last = len(workflow) - 1
        if index == last or not tools:
            return tools
        if index not in _steps_before(workflow, last):
            return ()
        return tuple(tool for tool in tools if self.of(tool) is ToolClass.OBSERVE)


def _steps_before(workflow: Workflow, index: int) -> set[int]:
    """Return the steps that must have ended before that step starts."""
    found: set[int] = set()
    left = list(workflow.steps[index].access)
    while left:
        step = left.pop()
        if step not in found:
            found.add(step)
            left += workflow.steps[step].access
    return found
