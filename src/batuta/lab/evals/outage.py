"""Decides from a run whether an outage, and not the system, determined its end. Pure.

Evaluation, tuning and training share this rule. A failure with one of the `SYSTEM_FAULT_CODES` is
due to the workflow, the worker or the limits, and the resulting answer is graded. Any other failure
is an outage, which does not show anything about the system.
"""

from __future__ import annotations

from batuta.core import Failure, Grade, MalformedPlan, Outcome, Run, StepRun
from batuta.engine.finalize import last_step
from batuta.errors import NotRecordedError
from batuta.lab.tasks.graders import JudgeGrade

SYSTEM_FAULT_CODES = frozenset(
    {
        "limit",
        "malformed_plan",
        "context_too_long",
        "cancelled",
        NotRecordedError.code,
        # A reply arrived that the engine could not use: the next question may get the same.
        "empty_reply",
        "no_output",
        "no_tool_call",
        "policy_blocked",
        "schema_too_slow",
        "unknown_tool",
        "unsupported_field",
        "wrong_form",
    }
)
"""Codes of failures that a system itself causes; any other code means that a model's API failed."""


def find_step_outage(step: StepRun) -> Failure | None:
    """Return the outage that determined which worker did a step, or how the step ended; or None.

    A retry that succeeded is not an outage. Neither is a substitution after the worker's own fault,
    such as an empty reply or a prompt that is too long for it.
    """
    failures = [step.result] if isinstance(step.result, Failure) else []
    if step.is_substituted or step.as_fallback:
        failures += [attempt.failure for attempt in step.attempts]
    return next((each for each in failures if each.code not in SYSTEM_FAULT_CODES), None)


def find_outage(run: Run, *, is_served: bool) -> str | None:
    """Return the message of an outage because of which the run does not measure its system.

    None if there was none. `is_served` says whether the system is one that a server answers with.
    """
    return outage_reason(run) or (None if is_served else lost_reply(run))


def lost_reply(run: Run) -> str | None:
    """Return the message of an outage that lost a worker's reply, even if another worker answered.

    None if there was no such outage.
    """
    found = (find_step_outage(step) for step in run.steps)
    return next((failure.message for failure in found if failure is not None), None)


def outage_reason(run: Run) -> str | None:
    """Return the message of the outage that determined the run; None if the system did.

    An outage determines a run if the conductor's model could not be called, or if no worker could
    do the last step. A substitute's answer counts for a served system, because a server would
    return it. It does not measure any other method; for those, `lost_reply` finds the outage.
    """
    if run.outcome is Outcome.LIMITED:
        return None
    for round_ in run.rounds:
        if isinstance(round_.decision, MalformedPlan) and round_.decision.outage:
            return round_.decision.reason
    if run.outcome is Outcome.FAILED:
        own_fault = run.error_code is None or run.error_code in SYSTEM_FAULT_CODES
        return None if own_fault else run.error
    return _fallback_outage(run) if run.outcome is Outcome.DEGRADED else None


def _fallback_outage(run: Run) -> str | None:
    """Return the outage that kept workers from doing the last workflow's last step, or None."""
    round_ = next((one for one in reversed(run.rounds) if one.workflow and not one.is_aside), None)
    last = last_step(round_) if round_ else None
    if last is None:
        return None
    failures = [attempt.failure for attempt in last.attempts if last.as_fallback]
    failures += [last.result] if isinstance(last.result, Failure) else []
    outages = [failure.message for failure in failures if failure.code not in SYSTEM_FAULT_CODES]
    return outages[-1] if outages else None


def is_judge_outage(grade: Grade) -> bool:
    """Return whether an outage kept a judge from grading the answer."""
    code = grade.failure if isinstance(grade, JudgeGrade) else ""
    return bool(code) and code not in SYSTEM_FAULT_CODES


def unrecorded_reason(run: Run) -> str | None:
    """Return why a record cannot run the plan; None if it can.

    A record cannot run it if it lacks a needed reply, and another worker took over the step, or the
    step failed and the run was not answered.
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
