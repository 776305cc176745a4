"""The policy by which a worker checks that the answer says what its sources say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from batuta.core import Worker

GROUNDED = "grounded"
"""The kind of such a policy in the settings."""


class GroundedAction(StrEnum):
    """The action that follows a statement that is not supported."""

    FLAG = "flag"
    """The record says how many there are."""
    MARK = "mark"
    """Each has a mark after it."""
    REPAIR = "repair"
    """The worker that wrote them is asked once more; what is not supported then is marked."""
    REFUSE = "refuse"
    """There is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundedPolicy:
    """The engine carries it out, since it calls a worker."""

    name: str
    worker: Worker
    """The checker."""
    action: GroundedAction
    bounds: tuple[str, ...] = ()
    """Keywords by which its provider bounds a list in a schema: a small model may not end one."""
    fail_closed: bool = True
    """Whether an answer that could not be checked is refused."""
