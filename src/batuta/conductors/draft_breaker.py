"""A conductor whose drafts are malformed again and again is skipped for a while.

The breaker is the one of workers (`clients.breaker`), counting questions instead of calls: a
question counts by its first draft, so that the samples that follow do not open it alone.
"""

from __future__ import annotations

from batuta.clients.resilience import BreakerPolicy, BreakerState, WorkerHealth
from batuta.core import Decision, Draft, MalformedPlan, PlanningContext

DRAFT_BREAKER = BreakerPolicy(failures=3, pause=60.0)
"""Three questions in a row without a workflow, then a minute without this conductor."""
MALFORMED = "malformed_draft"
"""The code of such a failure."""


def may_draft(health: WorkerHealth, context: PlanningContext) -> bool:
    """Whether the model may be asked; `note_decision` or `health.left` must follow."""
    if context.sample or context.previous:
        return health.state is not BreakerState.OPEN
    return health.allow_call()


def left_alone(health: WorkerHealth) -> MalformedPlan:
    """The decision without a draft while the model is skipped."""
    reason = (
        f"the conductor wrote no workflow for {health.row} questions in a row and is skipped "
        f"for {max(health.wait, 1):.0f} s"
    )
    return MalformedPlan(draft=Draft(), reason=reason, outage=True, again=False)


def note_decision(
    health: WorkerHealth, context: PlanningContext, decision: Decision, seconds: float
) -> None:
    """Count what came of the draft.

    Args:
        health: of the conductor.
        context: what it was asked.
        decision: what it wrote; an outage says nothing of its drafts.
        seconds: what it took.
    """
    if not isinstance(decision, MalformedPlan):
        health.record_success(seconds)
    elif decision.outage or context.sample or context.previous:
        health.record_abandoned()
    else:
        health.record_failure(MALFORMED)
