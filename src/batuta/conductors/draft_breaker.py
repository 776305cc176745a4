"""A circuit breaker that skips a conductor for a while after malformed drafts in a row.

It is the workers' breaker (`WorkerHealth`), but counts questions instead of calls: of a question's
drafts only the first can count as a failure, and any usable draft ends the row of failures.
"""

from __future__ import annotations

from batuta.clients.resilience import BreakerPolicy, BreakerState, WorkerHealth
from batuta.core import Decision, Draft, MalformedPlan, PlanningContext

DRAFT_BREAKER = BreakerPolicy(failures=3, pause=60.0)
"""After three questions in a row without a workflow, the conductor is skipped for a minute. If the
next draft is malformed too, the pause is twice as long, up to five minutes."""
MALFORMED = "malformed_draft"
"""The failure code of a malformed draft."""


def may_draft(health: WorkerHealth, context: PlanningContext) -> bool:
    """Return True if the model may be asked.

    If so, the caller must report the result by `note_decision` or `record_abandoned`. While the
    breaker is open, only the first draft of a question may probe the model.
    """
    if is_first_draft(context):
        return health.allow_call()
    return health.state is not BreakerState.OPEN


def skipped_decision(health: WorkerHealth) -> MalformedPlan:
    """Return the decision for a question for which the model is skipped."""
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
        health: the conductor's breaker.
        context: the context of the decision.
        decision: the conductor's decision; an outage, or a malformed draft that is not the
            question's first, does not count.
        seconds: the duration of planning.
    """
    if not isinstance(decision, MalformedPlan):
        health.record_success(seconds)
    elif decision.outage:
        note_abandoned(health, context)
    elif is_first_draft(context):
        health.record_failure(MALFORMED)


def note_abandoned(health: WorkerHealth, context: PlanningContext) -> None:
    """Record a draft that says nothing about the model; only a first draft may be the probe."""
    if is_first_draft(context):
        health.record_abandoned()


def is_first_draft(context: PlanningContext) -> bool:
    """Return True if no draft for the question was requested before."""
    return not (context.sample or context.previous)
