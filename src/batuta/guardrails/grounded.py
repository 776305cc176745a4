"""The policy by which a worker checks that the answer is supported by its sources."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from batuta.core import Worker

GROUNDED = "grounded"
"""The kind of this policy in the settings."""


class GroundedAction(StrEnum):
    """The action on statements that are not supported."""

    FLAG = "flag"
    """The run records their number."""
    MARK = "mark"
    """Each such statement is followed by a mark; an answer in a response format is withheld."""
    REPAIR = "repair"
    """The worker that wrote them is called once more, unless the answer has several choices; for
    those that stay unsupported the action is `MARK`."""
    REFUSE = "refuse"
    """The answer is withheld."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundedPolicy:
    """One grounded policy; the engine carries it out, because it calls a worker."""

    name: str
    worker: Worker
    """The worker that checks."""
    action: GroundedAction
    bounds: tuple[str, ...] = ()
    """Schema keywords with which the worker's provider bounds the length of lists."""
    fail_closed: bool = True
    """Whether an answer that could not be checked is refused."""
