"""Rules for plans that a person must approve before they are run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from batuta.core import Pool, Question, WorkerId, Workflow
from batuta.core.tool_classes import ToolClass, ToolClasses
from batuta.core.worker import CHANGES

DEFAULT_EXPIRY = 900.0
"""Seconds after which an undecided request expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRule:
    """A selection of plans that a person must approve; all conditions that are set must hold."""

    name: str
    tenant: str = ""
    """The tenant of the question; empty: any tenant."""
    tag: str = ""
    """A tag of the question; empty: any tags or none."""
    workers: frozenset[WorkerId] = frozenset()
    """Plans with one of these workers; empty: any workers."""
    above_usd: Decimal | None = None
    """Plans with which the run is expected to cost more than these dollars; None: any cost."""
    changes: bool = False
    """If True, only plans that may call a tool that changes something."""
    expires_s: float = DEFAULT_EXPIRY
    """Seconds after which a request that nobody decided expires."""

    def may_hold(self, tenant: str, tags: Iterable[str]) -> bool:
        """Return True if plans for questions of that tenant with those tags may need approval."""
        return self.tenant in {"", tenant} and (not self.tag or self.tag in tags)

    def holds(self, question: Question, workflow: Workflow, usd: Decimal, *, changes: bool) -> bool:
        """Return True if that plan for a question of the rule's tenant needs approval.

        Args:
            question: the question that is planned for.
            workflow: the plan.
            usd: expected dollars of the run, including this plan.
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

    Such a tool is a client's tool of the class `CHANGE`, or a worker with the tag `changes`, such
    as an MCP server's tool.
    """
    if any(classes.of(tool) is ToolClass.CHANGE for tool in question.tools):
        return True
    changing = {worker.id for worker in pool if CHANGES in worker.tags}
    return not changing.isdisjoint(step.worker for step in workflow.steps)
