"""A workflow, and the decisions of a conductor: a plan, an accepted answer, or a malformed draft.

A workflow gives each of its steps a worker, a subtask, and the earlier steps that the step reads.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from batuta.core.message import Request
from batuta.core.worker import WorkerId
from batuta.usage import ZERO_COST, ZERO_USAGE, Cost, Usage

MAX_STEPS = 5
"""Maximum number of steps of a workflow (Conductor paper, section 3)."""
MAX_ROUNDS = 3
"""Maximum number of rounds of one question; each can read the previous round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One subtask for one worker."""

    subtask: str
    """The instruction. If it is empty and the step reads nothing, the worker gets the question
    itself, unwrapped."""
    worker: WorkerId
    access: tuple[int, ...] = ()
    """Indices of the earlier steps whose subtask and reply the step reads, ascending."""
    previous: bool = False
    """True if the step reads all steps before it and the whole previous round ("all"); only in a
    second or third round."""
    continues: bool = False
    """True if the worker continues its conversation of the previous round: the subtask is appended
    to that conversation, so that the provider's prompt cache is reused."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A list of at least one step; a step reads only earlier steps, and the last step answers."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a workflow needs at least one step")
        for index, step in enumerate(self.steps):
            if list(step.access) != sorted(set(step.access)):
                raise ValueError(
                    f"access of step {index} must be strictly ascending: {step.access}"
                )
            if any(not 0 <= earlier < index for earlier in step.access):
                raise ValueError(
                    f"access of step {index} may name only earlier steps: {step.access}"
                )
            if step.previous and len(step.access) != index:
                raise ValueError(
                    f"step {index} reads the previous round but not all steps before it"
                )

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def levels(self) -> tuple[int, ...]:
        """For each step, the number of steps that must end one after another before it starts."""
        levels: list[int] = []
        for step in self.steps:
            levels.append(1 + max((levels[i] for i in step.access), default=-1))
        return tuple(levels)

    @property
    def depth(self) -> int:
        """Number of steps on the longest chain."""
        return 1 + max(self.levels)

    @property
    def width(self) -> int:
        """Number of steps on the fullest level, which can run at the same time."""
        levels = self.levels
        return max(levels.count(level) for level in set(levels))


def steps_json(workflow: Workflow) -> list[dict[str, Any]]:
    """Return the steps as JSON values, as edited plans and stored workflow selectors contain them.

    Whether a step `continues` is left out. The digest of a stored selector depends on these values.
    """
    return [
        {"worker": step.worker, "subtask": step.subtask, "access": list(step.access)}
        | ({"previous": True} if step.previous else {})
        for step in workflow.steps
    ]


@dataclass(frozen=True, slots=True)
class Cropping:
    """How much of a long conversation a conductor was shown; workers get all of it."""

    shown: int
    """Characters that were shown."""
    whole: int
    """Characters of the whole conversation."""
    turns: int = 0
    """Number of messages and tool results that were left out; the middles of others may be left out
    too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Text that a conductor's model wrote, verbatim, with its usage and cost."""

    text: str = ""
    usage: Usage = ZERO_USAGE
    cost: Cost = ZERO_COST
    request: Request | None = None
    """The request to the model; None if there was none, or if it was removed."""
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
    """The reason for this workflow, as a clause; empty if none is given."""
    purpose: Literal["answer", "check", "samples"] = "answer"
    """`answer`, or the evaluation of an existing answer: `check` compares it with its sources, and
    `samples` asks the question again, to measure how often the answer is the same."""


@dataclass(frozen=True, slots=True)
class AcceptedAnswer:
    """The decision to return the previous round's answer unchanged (paper, section 3.3)."""

    draft: Draft = Draft()
    kind: Literal["accepted"] = "accepted"
    reason: str = ""
    """The reason, as a clause; empty if none is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedPlan:
    """A failed attempt to plan: the draft is not a valid or allowed workflow, or there is none."""

    draft: Draft
    reason: str
    """The reason, as a clause."""
    outage: bool = False
    """True if the conductor's model was not called or its call failed, so that it wrote no draft.
    """
    kind: Literal["malformed"] = "malformed"
    again: bool = True
    """False if another draft would be no better, so that none is requested."""


Decision = Plan | AcceptedAnswer | MalformedPlan
