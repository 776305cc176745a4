"""A conductor's decisions: a plan, an accepted answer, or a draft that is no workflow."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from batuta.core.message import Request
from batuta.core.workflow import Workflow
from batuta.usage import ZERO_COST, ZERO_USAGE, Cost, Usage


@dataclass(frozen=True, slots=True)
class Cropping:
    """How much of a long conversation a conductor was shown; its workers get the whole."""

    shown: int
    """Characters."""
    whole: int
    """Characters of the whole."""
    turns: int = 0
    """Turns that were left out; others may have lost their middles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Text that a conductor's model wrote, verbatim; its tokens are paid and trained on."""

    text: str = ""
    usage: Usage = ZERO_USAGE
    cost: Cost = ZERO_COST
    request: Request | None = None
    cropping: Cropping | None = None
    """None: the model was shown the whole conversation."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A workflow to run."""

    workflow: Workflow
    draft: Draft = Draft()
    _: KW_ONLY
    kind: Literal["plan"] = "plan"
    reason: str = ""
    """Why this workflow, as a clause with figures, where a rule says so; empty: no rule does."""


@dataclass(frozen=True, slots=True)
class AcceptedAnswer:
    """The previous round's answer is returned as it is (recursion, paper section 3.3)."""

    draft: Draft = Draft()
    kind: Literal["accepted"] = "accepted"
    reason: str = ""
    """Why, as a clause, where a rule says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedPlan:
    """A draft that is no workflow, or a conductor that could not be reached."""

    draft: Draft
    reason: str
    outage: bool = False
    """True: the conductor's model failed; the draft is nobody's fault."""
    kind: Literal["malformed"] = "malformed"
    again: bool = True
    """False: another draft would be no better, so none is asked for."""


Decision = Plan | AcceptedAnswer | MalformedPlan
