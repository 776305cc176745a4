"""The fields that Claude models take and refuse, by family and version.

Read from Anthropic's model pages and migration guides on 2026-11-24 (platform.claude.com/docs:
models/overview, models/opus-5-5/whats-new-opus-5-5, models/sonnet-5-5/migration-guide,
models/haiku-5-5/overview). A version that is not listed there follows the newest that is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

DEFAULT_MAX_TOKENS = 4096
"""Sent if no limit was asked for and the model's own is not known: the API wants one."""

_NAME = re.compile(
    r"claude-(?:(?P<family>opus|sonnet|haiku|fable|mythos)-)?"
    r"(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)(?:-(?P<old>opus|sonnet|haiku))?"
)
_ALWAYS_THINKING = {"fable", "mythos"}
"""Families whose thinking cannot be turned off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeRules:
    """The fields that a model takes."""

    max_output: int = DEFAULT_MAX_TOKENS
    """Tokens that it may write at most, thinking included."""
    thinking: Literal["none", "budget", "adaptive"] = "none"
    """How it is told to think: not at all, with `budget_tokens`, or by `output_config.effort`."""
    thinks_unasked: bool = False
    """Whether it thinks where nothing is said of thinking."""
    thinking_off: Literal["disabled", "between_tools", "never"] = "disabled"
    """How thinking is turned off, of a model that thinks unasked."""
    sampling: bool = True
    """Whether it takes temperature, top_p and top_k; others answer 400 to them."""
    forced_tools: bool = True
    """Whether a call of a tool can be forced; others answer 400 to that."""
    wide_efforts: bool = False
    """Whether it knows the efforts `xhigh` and `max`."""


_UNKNOWN = ClaudeRules()


@cache
def claude_rules(model: str) -> ClaudeRules:
    """Return the rules of the model; those of a model that is no Claude are the API's oldest."""
    named = _NAME.match(model.lower().rpartition("/")[2].rpartition("anthropic.")[2])
    if named is None:
        return _UNKNOWN
    version = int(named["major"]), int(named["minor"] or 0)
    family = named["family"] or named["old"] or ""
    if version < (4, 6):
        return ClaudeRules(
            max_output=_older_max_output(family, version),
            thinking="budget" if version >= (3, 7) else "none",
        )
    newest = family != "haiku" and version >= ((5, 1) if family in _ALWAYS_THINKING else (5, 5))
    return ClaudeRules(
        max_output=128_000,
        thinking="adaptive",
        thinks_unasked=version >= (5, 0),
        thinking_off=_thinking_off(family, version),
        sampling=version < (4, 7),
        forced_tools=not newest,
        wide_efforts=version >= (4, 7),
    )


def _thinking_off(
    family: str, version: tuple[int, int]
) -> Literal["disabled", "between_tools", "never"]:
    if family in _ALWAYS_THINKING or version >= (6, 0):
        return "never"
    if version < (5, 5) or family == "haiku":
        return "disabled"
    return "between_tools" if family == "sonnet" else "never"


def _older_max_output(family: str, version: tuple[int, int]) -> int:
    if version >= (4, 5) or version == (3, 7) or (version >= (4, 0) and family != "opus"):
        return 64_000
    if version >= (4, 0):
        return 32_000
    return 8_192 if version == (3, 5) else DEFAULT_MAX_TOKENS
