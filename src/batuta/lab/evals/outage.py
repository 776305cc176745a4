"""Whether an outage, and not the system, decided how a run ended: a pure function of the Run.

The one list of what is whose fault, for evaluation and for training: `SYSTEM_FAULT_CODES` are the
workflow's, the worker's or the limits' own doing and count as a wrong answer; anything else is an
outage and says nothing about who planned.
"""

from __future__ import annotations

from batuta.core import Failure, MalformedPlan, Outcome, Run, StepRun
from batuta.engine.finalize import last_step
from batuta.errors import NotRecordedError

SYSTEM_FAULT_CODES = frozenset(
    {
        "limit",
        "malformed_plan",
        "empty_reply",
        "context_too_long",
        "cancelled",
        NotRecordedError.code,
    }
)
"""Codes of failures that a system brings on itself; with any other a model's API failed."""


def find_step_outage(step: StepRun) -> Failure | None:
    """The outage that decided who answered a step or how it ended; None: there was none.

    A retry that ended well is no outage, and neither is a substitute for a worker whose own fault
    it was that it could not answer: an empty reply, a prompt that is too long for it.
    """
    failures = [step.result] if isinstance(step.result, Failure) else []
    if step.is_substituted or step.as_fallback:
        failures += [attempt.failure for attempt in step.attempts]
    return next((each for each in failures if each.code not in SYSTEM_FAULT_CODES), None)


def lost_reply(run: Run) -> str | None:
    """Describe the outage that took a worker's reply, if one did, whoever answered then."""
    found = (find_step_outage(step) for step in run.steps)
    return next((failure.message for failure in found if failure is not None), None)


def outage_reason(run: Run) -> str | None:
    """Describe what failed; None: the run's answer, or its lack, is the system's own.

    An outage decides where the conductor's model could not be asked, and where no worker could
    do the step that answers. A step that a substitute answered is a served system's own way out;
    of a method that is compared with it, `lost_reply` says that it was not measured.
    """
    if run.outcome is Outcome.LIMITED:
        return None
    for round_ in run.rounds:
        if isinstance(round_.decision, MalformedPlan) and round_.decision.outage:
            return round_.decision.reason
    if run.outcome is Outcome.FAILED:
        blamed = run.error_code is None or run.error_code in SYSTEM_FAULT_CODES
        return None if blamed else run.error
    return _fallback_outage(run) if run.outcome is Outcome.DEGRADED else None


def _fallback_outage(run: Run) -> str | None:
    """Why nobody could answer the last step of the last workflow, if that was an outage."""
    round_ = next((round_ for round_ in reversed(run.rounds) if round_.workflow), None)
    last = last_step(round_) if round_ else None
    if last is None:
        return None
    failures = [attempt.failure for attempt in last.attempts if last.as_fallback]
    failures += [last.result] if isinstance(last.result, Failure) else []
    outages = [failure.message for failure in failures if failure.code not in SYSTEM_FAULT_CODES]
    return outages[-1] if outages else None


def unrecorded_reason(run: Run) -> str | None:
    """Why the plan is none for the record that it ran on; None if it is one.

    It is none where the record does not know what it asks for, so that another worker took over
    or the run did not end with an answer of its own.
    """
    for step in run.steps:
        for attempt in step.attempts:
            if attempt.failure.code == NotRecordedError.code:
                return attempt.failure.message
        if run.outcome is Outcome.ANSWERED or not isinstance(step.result, Failure):
            continue
        if step.result.code == NotRecordedError.code:
            return step.result.message
    return None
