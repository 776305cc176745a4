"""The settings of sessions, `[sessions]`: what is conducted, and by which constants."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batuta.conductors.sessions.rules import SessionRules
from batuta.config.aliases import LONGEST_NAME
from batuta.config.settings_file import StrictModel
from batuta.core.tool_classes import ToolClass, ToolClasses

ToolName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class SessionsSetting(StrictModel):
    """How the sessions of coding agents are served; see docs/sessions.md."""

    conduct_auxiliary: bool = False
    """Whether also what agents ask for themselves, such as titles, is conducted."""
    tools: dict[ToolName, ToolClass] = Field(default={})
    """The classes of clients' tools where they are not what name and schema say."""

    @property
    def rules(self) -> SessionRules:
        """Return the rules by which sessions are conducted."""
        return SessionRules(tool_classes=ToolClasses(self.tools))
