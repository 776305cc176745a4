"""The request that a person approves a plan, and the verdict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

from batuta.core import Question, RunId, Step, WorkerId, Workflow

MAX_EDIT = 100_000
"""Maximum number of characters of an edited plan."""
UNAVAILABLE = "unavailable"
"""The state of a request that could not be stored, so that no person sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A plan that a person is asked to approve."""

    run_id: RunId
    round: int
    """The round's number, from 0, counted over all runs that continue the same workflow."""
    rule: str
    """The name of the rule that requires the approval."""
    question: Question
    workflow: Workflow
    usd: Decimal
    """Expected dollars of the run including this plan; workers without a price count at the assumed
    price."""
    expires_in: float
    """Seconds after which the request expires and the run ends as refused."""
    revise: Callable[[Workflow], ApprovalRequest] | None = field(
        default=None, compare=False, repr=False
    )
    """Returns the request for an edited workflow, with its expected cost. Raises a ValueError with
    the reason if the workflow may not be run. None: the plan cannot be edited."""

    @property
    def digest(self) -> str:
        """The SHA-256, in hexadecimal, of the plan, run and round; an approval must quote it."""
        steps = [
            [step.worker, step.subtask, list(step.access), step.previous]
            for step in self.workflow.steps
        ]
        content = json.dumps([self.run_id, self.round, steps], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalVerdict:
    """The decision on a request."""

    state: str
    """`approved`, `refused`, `expired` or `unavailable`."""
    by: str = ""
    """The person who decided; empty if no person did."""
    reason: str = ""
    workflow: Workflow | None = None
    """The edited plan; None if the plan was not edited."""
    edited_by: str = ""
    """The person who edited the plan last; empty if it was not edited."""


Approver = Callable[[ApprovalRequest], Awaitable[ApprovalVerdict]]
"""Waits for a person's verdict."""


def read_steps(text: str) -> Workflow:
    """Parse edited steps, in the form that `batuta.core.workflow.steps_json` returns.

    All fields of a step but its worker may be left out.

    Raises:
        ValueError: the text is not a valid plan; the message says why.
    """
    if len(text) > MAX_EDIT:
        raise ValueError(f"an edited plan may have at most {MAX_EDIT} characters")
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list):
        raise ValueError("an edited plan must be a JSON list of steps")  # noqa: TRY004 - bad JSON
    return Workflow(tuple(map(_read_step, cast("list[object]", rows))))


def _read_step(row: object) -> Step:
    given = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    worker, subtask = given.get("worker"), given.get("subtask", "")
    access, previous = given.get("access", []), given.get("previous", False)
    known = given.keys() <= {"worker", "subtask", "access", "previous"}
    if not known or not isinstance(worker, str) or not isinstance(subtask, str):
        raise ValueError(
            "a step needs a worker, and may have a subtask, access and previous, but nothing else"
        )
    indices = cast("list[Any]", access if isinstance(access, list) else [None])
    if any(type(index) is not int for index in indices):
        raise ValueError("access must be a list of the indices of earlier steps, from 0")
    if not isinstance(previous, bool):
        raise ValueError("previous must be true or false")  # noqa: TRY004 - bad JSON
    return Step(
        subtask=subtask,
        worker=WorkerId(worker),
        access=tuple(indices),
        previous=previous,
    )
