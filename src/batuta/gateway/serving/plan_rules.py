"""Requests that rules for plans forbid are refused here, before anything is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from batuta.core import Client, GuardrailTriggered, Pool, WorkerId
from batuta.core.conductor import conductor_worker
from batuta.engine.plan_check import restrict_workers
from batuta.gateway.access.caller import Caller
from batuta.gateway.errors import APIError
from batuta.gateway.serving.models import ServedModel
from batuta.gateway.serving.parsed_call import ORCHESTRATION_FIELD, ParsedCall, RunOptions
from batuta.language.plan_rules import PlanRule, PlanRules


def tagged_call(call: ParsedCall, caller: Caller) -> ParsedCall:
    """The call with the tags of its request and those that its caller's key always has."""
    if not (call.options.tags or caller.permissions.tags):
        return call
    tags = tuple(sorted({*call.options.tags, *caller.permissions.tags}))
    return replace(call, question=replace(call.question, tags=tags))


@dataclass(frozen=True, slots=True, kw_only=True)
class PermittedWorkers:
    """These workers may see a question, by the rules for plans."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    """A forbidden worker has none, so that nothing can call it."""
    acts: tuple[GuardrailTriggered, ...] = ()
    """These rules left workers out."""


def permit_workers(
    rules: PlanRules,
    served: ServedModel,
    options: RunOptions,
    *,
    pool: Pool,
    clients: Mapping[WorkerId, Client],
) -> PermittedWorkers:
    """The workers that may see a question for which these rules hold.

    Args:
        rules: those of the question's tenant and tags.
        served: the model that is asked for.
        options: the request's; a workflow by hand must keep the rules.
        pool: who would be asked without rules.
        clients: how they are called.

    Raises:
        APIError: nobody is left, the conductor may not see it, or the workflow by hand breaks a
            rule.
    """
    if not rules:
        return PermittedWorkers(pool=pool, clients=clients)
    workflow = options.workflow
    broken = None if workflow is None else rules.find_broken(workflow)
    if broken is not None:
        raise rule_error(broken, 422, f"{ORCHESTRATION_FIELD}.workflow")
    conductor = conductor_worker(served.conductor)
    if conductor is not None and (rule := rules.forbidding_rule(conductor.id)) is not None:
        raise rule_error(rule, 403, "model")
    first = rules.forbidding_rule(pool.workers[0].id)
    if first is not None and not rules.allowed_workers(pool):
        raise rule_error(first, 403, "model")
    if served.solver is not None and (rule := rules.checking_rule) is not None:
        raise rule_error(rule, 422, "model")
    pool, clients, acts = restrict_workers(rules, pool, clients)
    return PermittedWorkers(pool=pool, clients=clients, acts=acts)


def rule_error(rule: PlanRule, status: int, param: str) -> APIError:
    """The error of a request that a rule forbids, with the rule's sentence."""
    message = f"The rule {rule.name} for plans: {rule.sentence}"
    return APIError(status, "plan_rule", message, param=param)
