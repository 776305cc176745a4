"""The names of the models that every server has, and names that stand for a served model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from batuta.core.tool_classes import find_by_name

MINI_MODEL = "batuta-mini"
ULTRA_MODEL = "batuta-ultra"
LONGEST_NAME = 200
"""Characters of an alias at most; a longer name stands for nothing."""
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
"""Claude Code and Codex ask for these names unless they are told otherwise."""


@dataclass(frozen=True, slots=True)
class Aliases:
    """The aliases of a server: those of the settings, then the built-in ones."""

    configured: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names of models by what stands for them: names, or patterns with `*` and `?`."""

    def find(self, name: str) -> str | None:
        """Return the model that the name stands for; None: it stands for nothing.

        Of one table an alias of just that name goes first, then the longest pattern.
        """
        if len(name) > LONGEST_NAME:
            return None
        configured = find_by_name(self.configured, name)
        return configured or find_by_name(DEFAULT_ALIASES, name)
