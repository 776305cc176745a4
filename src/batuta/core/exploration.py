"""How a served system chose what to run, where it learns from judgements while it serves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """A choice among several ways to answer; kept in the run, so that it can be reweighed."""

    system: str
    """Name and version of the system that chose; another version learns anew."""
    cell: str
    """The kind of question, within which ways are compared."""
    arm: str
    """The alternative that was chosen."""
    explored: bool
    """Whether something else than the best so far was tried."""
    propensity: float
    """How likely this choice was, in (0, 1]."""
