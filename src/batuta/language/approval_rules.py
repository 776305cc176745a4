"""Which plans a person must approve before they are carried out. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from batuta.core import Pool, Question, WorkerId, Workflow
from batuta.core.tool_classes import ToolClass, ToolClasses
from batuta.core.worker import CHANGES

DEFAULT_EXPIRY = 900.0
"""Seconds after which a plan that nobody has looked at counts as refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRule:
    """Plans that wait for a person; every condition that is set must hold."""

    name: str
    tenant: str = ""
    """Empty: of every tenant."""
    tag: str = ""
    """Empty: of questions with any tags or none."""
    workers: frozenset[WorkerId] = frozenset()
    """Plans with one of these workers; empty: with any."""
    above_usd: Decimal | None = None
    """Plans after which the run is expected to have cost more; None: at any price."""
    changes: bool = False
    """Whether only plans count that may call a tool which changes something."""
    expires_s: float = DEFAULT_EXPIRY

    def may_hold(self, tenant: str, tags: Iterable[str]) -> bool:
        """Return True if plans for questions of that tenant with those tags may need it."""
        return self.tenant in {"", tenant} and (not self.tag or self.tag in tags)

    def holds(self, question: Question, workflow: Workflow, usd: Decimal, *, changes: bool) -> bool:
        """Return True if that plan for a question of the rule's tenant needs it.

        Args:
            question: it is planned for.
            workflow: the plan.
            usd: what the run is expected to have cost after it.
            changes: whether the plan may call a tool that changes something.
        """
        if self.tag and self.tag not in question.tags:
            return False
        if self.workers and self.workers.isdisjoint(step.worker for step in workflow.steps):
            return False
        if self.above_usd is not None and usd <= self.above_usd:
            return False
        return changes or not self.changes


def may_change(question: Question, workflow: Workflow, pool: Pool, classes: ToolClasses) -> bool:
    """Return True if the plan may call a tool that changes something.

    That is one of the client's tools, or a worker whose tags say so, such as an MCP server's tool.
    """
    if any(classes.of(tool) is ToolClass.CHANGE for tool in question.tools):
        return True
    changing = {worker.id for worker in pool if CHANGES in worker.tags}
    return not changing.isdisjoint(step.worker for step in workflow.steps)
