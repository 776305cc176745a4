"""The constants by which sessions are conducted, as the settings say. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core.tool_classes import ToolClasses


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """The constants by which sessions are conducted."""

    tool_classes: ToolClasses = ToolClasses()
    """What the clients' tools do."""


DEFAULT_RULES = SessionRules()
