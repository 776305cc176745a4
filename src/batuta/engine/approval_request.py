"""What a person is asked to approve, and what they say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

from batuta.core import Question, RunId, Step, WorkerId, Workflow

MAX_EDIT = 100_000
"""Characters of an edited plan."""
UNAVAILABLE = "unavailable"
"""The state of a request that could not be put to anybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A plan that somebody is asked to approve."""

    run_id: RunId
    round: int
    rule: str
    """The name of the rule that asks for it."""
    question: Question
    workflow: Workflow
    usd: Decimal
    """What the run is expected to have cost after it; steps without a price at the assumed one."""
    expires_in: float
    """Seconds after which it counts as refused."""
    revise: Callable[[Workflow], ApprovalRequest] | None = field(
        default=None, compare=False, repr=False
    )
    """Makes the request for an edited workflow, priced anew, or raises a ValueError that says why
    it may not be run; None: the plan cannot be edited."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the plan, which an approval must name."""
        steps = [
            [step.worker, step.subtask, list(step.access), step.previous]
            for step in self.workflow.steps
        ]
        content = json.dumps([self.run_id, self.round, steps], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalVerdict:
    """What became of the request."""

    state: str
    """`approved`, `refused`, `expired` or `unavailable`."""
    by: str = ""
    reason: str = ""
    workflow: Workflow | None = None
    """The plan as it was edited before it was approved; None: it was not."""
    edited_by: str = ""


Approver = Callable[[ApprovalRequest], Awaitable[ApprovalVerdict]]
"""Waits for somebody's verdict."""


def steps_json(workflow: Workflow) -> list[dict[str, Any]]:
    """Return the steps of a plan as whoever approves it reads and edits them."""
    return [
        {
            "worker": step.worker,
            "subtask": step.subtask,
            "access": list(step.access),
            **({"previous": True} if step.previous else {}),
        }
        for step in workflow.steps
    ]


def read_steps(text: str) -> Workflow:
    """Return the workflow of such steps.

    Raises:
        ValueError: it is none; the sentence says why.
    """
    if len(text) > MAX_EDIT:
        raise ValueError(f"an edited plan has at most {MAX_EDIT} characters")
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list):
        raise ValueError("an edited plan is a list of steps as JSON")  # noqa: TRY004 - it is a text
    return Workflow(tuple(map(_read_step, cast("list[object]", rows))))


def _read_step(row: object) -> Step:
    given = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    worker, subtask = given.get("worker"), given.get("subtask", "")
    access, previous = given.get("access", []), given.get("previous", False)
    known = given.keys() <= {"worker", "subtask", "access", "previous"}
    if not known or not isinstance(worker, str) or not isinstance(subtask, str):
        raise ValueError("a step has a worker, and may have a subtask, access and previous")
    places = cast("list[Any]", access if isinstance(access, list) else [None])
    if any(type(place) is not int for place in places):
        raise ValueError("access is a list of the numbers of earlier steps, from 0")
    return Step(
        subtask=subtask,
        worker=WorkerId(worker),
        access=tuple(places),
        previous=previous is True,
    )
