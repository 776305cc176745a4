"""A circuit breaker that skips a conductor for a while after malformed drafts in a row.

It is the breaker of workers (`clients.breaker`), but counts questions instead of calls: each
question counts by its first draft, so that further samples of one question do not open it.
"""

from __future__ import annotations

from batuta.clients.resilience import BreakerPolicy, BreakerState, WorkerHealth
from batuta.core import Decision, Draft, MalformedPlan, PlanningContext

DRAFT_BREAKER = BreakerPolicy(failures=3, pause=60.0)
"""Three questions in a row without a workflow skip the conductor for a minute."""
MALFORMED = "malformed_draft"
"""The code of such a failure."""


def may_draft(health: WorkerHealth, context: PlanningContext) -> bool:
    """Tell whether the model may be asked; `note_decision` or `health.left` must follow."""
    if context.sample or context.previous:
        return health.state is not BreakerState.OPEN
    return health.allow_call()


def left_alone(health: WorkerHealth) -> MalformedPlan:
    """Return the decision without a draft for a model that is skipped."""
    reason = (
        f"the conductor wrote no workflow for {health.row} questions in a row and is skipped "
        f"for {max(health.wait, 1):.0f} s"
    )
    return MalformedPlan(draft=Draft(), reason=reason, outage=True, again=False)


def note_decision(
    health: WorkerHealth, context: PlanningContext, decision: Decision, seconds: float
) -> None:
    """Record the result of a draft.

    Args:
        health: the health of the conductor.
        context: what it was asked.
        decision: its decision; an outage is not counted.
        seconds: the time that it took.
    """
    if not isinstance(decision, MalformedPlan):
        health.record_success(seconds)
    elif decision.outage or context.sample or context.previous:
        health.record_abandoned()
    else:
        health.record_failure(MALFORMED)
