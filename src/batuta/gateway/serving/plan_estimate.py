"""What a workflow by hand is expected to take, said before anybody is called or booked."""

from __future__ import annotations

from dataclasses import dataclass

from batuta.core import Pool, Workflow, WorkflowEstimate
from batuta.engine import LatencyLookup, estimate_workflow, new_run_id
from batuta.gateway.access.caller import Caller
from batuta.gateway.errors import invalid_value
from batuta.gateway.serving.parsed_call import ORCHESTRATION_FIELD, ParsedCall
from batuta.gateway.serving.prepare import CallPreparer
from batuta.language.plan_rules import PlanRule


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEstimate:
    """A workflow that may be run, and its price."""

    workflow: Workflow
    pool: Pool
    """The workers that its caller may use for it."""
    expected: WorkflowEstimate
    broken: PlanRule | None
    """The rule for plans that it breaks, so that it will be changed or refused."""


def estimate_plan(
    preparer: CallPreparer, call: ParsedCall, caller: Caller, seconds: LatencyLookup
) -> PlanEstimate:
    """Return what the call's own workflow is expected to take.

    Raises:
        APIError: it may not be run.
    """
    workflow = call.options.workflow
    if workflow is None:
        raise invalid_value(f"{ORCHESTRATION_FIELD}.workflow", "there is none.")
    prepared = preparer.prepare(call, caller, new_run_id())
    question, pool = prepared.call.question, prepared.pool
    return PlanEstimate(
        workflow=workflow,
        pool=pool,
        expected=estimate_workflow(question, workflow, pool, latency=seconds),
        broken=prepared.rules.find_broken(workflow),
    )
