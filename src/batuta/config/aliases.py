"""Names of the built-in models, and aliases of served models. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from batuta.core.tool_classes import find_by_name

MINI_MODEL = "batuta-mini"
ULTRA_MODEL = "batuta-ultra"
LONGEST_NAME = 200
"""Maximum number of characters of an alias; a longer name matches no alias."""
DEFAULT_ALIASES: Mapping[str, str] = MappingProxyType({
    "claude-*": ULTRA_MODEL,
    "claude-*haiku*": MINI_MODEL,
    "opus": ULTRA_MODEL,
    "sonnet": ULTRA_MODEL,
    "haiku": MINI_MODEL,
    "gpt-5*": ULTRA_MODEL,
    "gpt-*mini*": MINI_MODEL,
    "gpt-*nano*": MINI_MODEL,
    "codex-*": ULTRA_MODEL,
    "codex-*mini*": MINI_MODEL,
})  # fmt: skip
"""Served models by the names, or patterns of names, that Claude Code and Codex request by default.
"""


@dataclass(frozen=True, slots=True)
class Aliases:
    """The aliases of a server: configured aliases take precedence over the built-in ones."""

    configured: Mapping[str, str] = field(default_factory=dict[str, str])
    """Served models by alias: a name, or a pattern with `*` and `?`."""

    def find(self, name: str) -> str | None:
        """Return the model that the name is an alias of; None if the name is not an alias.

        In each table an exact name takes precedence, then the longest matching pattern.
        """
        if len(name) > LONGEST_NAME:
            return None
        configured = find_by_name(self.configured, name)
        return configured or find_by_name(DEFAULT_ALIASES, name)
