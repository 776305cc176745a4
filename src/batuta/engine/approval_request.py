"""What a person is asked to approve, and what they say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal

from batuta.core import Question, RunId, Workflow


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

    @property
    def digest(self) -> str:
        """The SHA-256 of the plan, which an approval must name."""
        steps = [
            [step.worker, step.subtask, list(step.access), step.previous]
            for step in self.workflow.steps
        ]
        told = json.dumps([self.run_id, self.round, steps], ensure_ascii=True)
        return hashlib.sha256(told.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalVerdict:
    """What became of the request."""

    state: str
    """`approved`, `refused` or `expired`."""
    by: str = ""
    reason: str = ""


Approver = Callable[[ApprovalRequest], Awaitable[ApprovalVerdict]]
"""Waits for somebody's verdict."""
