"""Ids of tool calls that say which step of which run asked, so that its worker gets the result."""

from __future__ import annotations

import re
from typing import NamedTuple

_RUN = "run_"
_ID = re.compile(r"call_([A-Za-z0-9-]{1,24})_(\d{1,4})_(\d{1,3})")
"""At most 40 characters: OpenAI takes no longer one."""
_ROUND = 100


class Place(NamedTuple):
    """Where a tool call came from."""

    run: str
    """The run's id."""
    round: int
    step: int
    number: int
    """Of the call among those of the step, from 0."""


def call_id(place: Place) -> str:
    """The id that says so."""
    return f"call_{place.run.removeprefix(_RUN)}_{place.round * _ROUND + place.step}_{place.number}"


def place_of(tool_call_id: str) -> Place | None:
    """Where the call came from; None for an id of somebody else."""
    found = _ID.fullmatch(tool_call_id)
    if found is None:
        return None
    played, step = divmod(int(found[2]), _ROUND)
    return Place(_RUN + found[1], played, step, int(found[3]))
