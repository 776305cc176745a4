"""A workflow, and the decisions of a conductor: a plan, an accepted answer, or a malformed draft.

A workflow says who does what, and who may read whose answer.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from batuta.core.message import Request
from batuta.core.worker import WorkerId
from batuta.usage import ZERO_COST, ZERO_USAGE, Cost, Usage

MAX_STEPS = 5
"""Steps a workflow may have (Conductor paper, section 3)."""
MAX_ROUNDS = 3
"""Workflows that may be run for one question, each of which reads the answer before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of one worker."""

    subtask: str
    """The instruction; if it is empty and nothing is read, the worker gets the question itself,
    unwrapped."""
    worker: WorkerId
    access: tuple[int, ...] = ()
    """Earlier steps whose subtask and reply it reads, ascending."""
    previous: bool = False
    """True in a corrective round if the step reads every step before it and the previous round
    ("all")."""
    continues: bool = False
    """True in a corrective round if its worker goes on from its own reply of the round before: it
    is told the subtask behind that reply, so that its provider's cache holds all before it."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow has at least one step; a step reads earlier steps only; the last one answers."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a workflow needs at least one step")
        for index, step in enumerate(self.steps):
            if list(step.access) != sorted(set(step.access)):
                raise ValueError(f"access of step {index} is not ascending: {step.access}")
            if any(not 0 <= earlier < index for earlier in step.access):
                raise ValueError(f"access of step {index} does not look back: {step.access}")
            if step.previous and len(step.access) != index:
                raise ValueError(f"step {index} reads the previous round but not all of this one")

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def levels(self) -> tuple[int, ...]:
        """Numbers of steps that must end one after another before each step starts."""
        levels: list[int] = []
        for step in self.steps:
            levels.append(1 + max((levels[i] for i in step.access), default=-1))
        return tuple(levels)

    @property
    def depth(self) -> int:
        """Steps on the longest chain."""
        return 1 + max(self.levels)

    @property
    def width(self) -> int:
        """Steps on the fullest level: what can run at the same time."""
        levels = self.levels
        return max(levels.count(level) for level in set(levels))


@dataclass(frozen=True, slots=True)
class Cropping:
    """The part of a long conversation that a conductor was shown; its workers get the whole."""

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
    purpose: Literal["answer", "check", "samples"] = "answer"
    """It is run for an answer, or to learn something of an answer that is there already."""


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
