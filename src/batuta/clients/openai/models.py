"""The API and the reasoning efforts of OpenAI's own models, by generation.

They were read from OpenAI's model guidance and migration pages on 2026-11-24
(developers.openai.com/api/docs: guides/latest-model, guides/deployment-checklist). A newer
generation is treated like the newest one that is listed there.
"""

from __future__ import annotations

import re
from functools import cache

_NAME = re.compile(r"gpt-(?!35\b)(\d{1,2})(?:\.(\d{1,2}))?(?!\d)")
"""The name of a numbered GPT; Azure writes `gpt-35` for generation 3.5, which is not matched."""
_ALWAYS_REASONING = ("-astra", "-sol", "-terra")
"""The tiers that take no effort below `low`: Sol and Terra from generation 6.1 on, Astra always."""
_UNNUMBERED: tuple[int, int] = (0, 0)


@cache
def gpt_version(model: str) -> tuple[int, int] | None:
    """Return the generation, such as (6, 1) for `gpt-6.1-sol`; None for other models."""
    named = _NAME.match(model)
    return (int(named[1]), int(named[2] or 0)) if named else None


def needs_responses(model: str) -> bool:
    """Return True for a numbered GPT that needs the Responses API, at least for tools."""
    version = gpt_version(model)
    if version is None:
        return False
    return version >= (5, 4) or "-pro" in model or "-codex" in model


def reasoning_effort(model: str, effort: str) -> str:
    """Return the nearest effort that the model accepts; OpenAI answers others with status 400."""
    version = gpt_version(model) or _UNNUMBERED
    if effort == "none" and _reasons_always(model, version):
        effort = "minimal"
    if effort == "minimal" and not (5, 0) <= version < (5, 1):
        return "low"
    if effort in {"xhigh", "max"} and version < (5, 2):
        return "high"
    return "xhigh" if effort == "max" and version < (6, 0) else effort


def _reasons_always(model: str, version: tuple[int, int]) -> bool:
    """Return True if the model does not accept the effort `none`."""
    if version < (5, 1) or "-astra" in model or "-pro" in model:
        return True
    return version >= (6, 1) and any(tier in model for tier in _ALWAYS_REASONING)
