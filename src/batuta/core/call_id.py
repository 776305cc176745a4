"""Ids of tool calls that say which step of which run asked, so that its worker gets the result."""

from __future__ import annotations

import re
from typing import NamedTuple

_RUN_PREFIX = "run_"
_CALL_ID_PATTERN = re.compile(r"call_([A-Za-z0-9-]{1,24})_(\d{1,4})_(\d{1,3})")
"""Holds at most 40 characters, the most that OpenAI takes."""
_ROUND_FACTOR = 100


class ToolCallOrigin(NamedTuple):
    """The place in a run from which a tool call came."""

    run: str
    """The run's id."""
    round: int
    step: int
    number: int
    """Position of the call among those of its step, from 0."""


def encode_call_id(origin: ToolCallOrigin) -> str:
    """The id that says so."""
    place = origin.round * _ROUND_FACTOR + origin.step
    return f"call_{origin.run.removeprefix(_RUN_PREFIX)}_{place}_{origin.number}"


def decode_call_id(tool_call_id: str) -> ToolCallOrigin | None:
    """Return where the call came from; None for an id that is not Batuta's."""
    found = _CALL_ID_PATTERN.fullmatch(tool_call_id)
    if found is None:
        return None
    round_number, step = divmod(int(found[2]), _ROUND_FACTOR)
    return ToolCallOrigin(_RUN_PREFIX + found[1], round_number, step, int(found[3]))
