"""Decides with which model, pool and limits a call is run.

The decisions are pure functions of values; `execute.py` reserves, asks and runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from batuta.conductors import FixedConductor, single_worker
from batuta.config.effort import conductor_for_effort, limits_for_effort, pool_for_effort
from batuta.core import (
    Client,
    Limits,
    Pool,
    Question,
    RunId,
    WorkerId,
)
from batuta.core.worker import VISION
from batuta.errors import ConfigError
from batuta.gateway.access.caller import Caller
from batuta.gateway.errors import (
    APIError,
    invalid_value,
    model_not_found,
    unsupported_parameter,
)
from batuta.gateway.serving.admission import (
    Admission,
    PreparedCall,
    caller_limits,
    permitted_workers,
)
from batuta.gateway.serving.auxiliary_requests import answer_alone, auxiliary_kind
from batuta.gateway.serving.capabilities import (
    capable_workers,
    check_choices,
    check_grounded,
)
from batuta.gateway.serving.confidence import check_confidence
from batuta.gateway.serving.image_addresses import check_pictures
from batuta.gateway.serving.models import Catalogue, ServedModel
from batuta.gateway.serving.parsed_call import (
    NO_OPTIONS,
    ORCHESTRATION_FIELD,
    ParsedCall,
    RunOptions,
)
from batuta.gateway.serving.plan_rules import permit_workers, tagged_call
from batuta.gateway.serving.server_tools import grant_tools
from batuta.gateway.serving.tenant_memory import (
    ConversationWorkers,
    tenant_key,
)
from batuta.guardrails import GuardrailStage
from batuta.language.approval_rules import ApprovalRule


def find_served_model(catalogue: Catalogue, name: str, *, embeds: bool = False) -> ServedModel:
    """The model that answers a request for that name.

    Args:
        catalogue: the models.
        name: as the request has it.
        embeds: whether vectors are wanted; no alias stands for a model that gives them.

    Raises:
        APIError: there is none.
    """
    served = catalogue.find_model(name) if embeds else catalogue.resolve_model(name)
    if served is None:
        raise model_not_found(name, catalogue.unavailable_models.get(name))
    return served


async def load_served_model(catalogue: Catalogue, name: str) -> None:
    """Import the method behind a served model, where a plugin brings it.

    Raises:
        APIError: it cannot be imported; the reason says why.
    """
    try:
        await catalogue.load_model(name)
    except ConfigError as error:
        raise model_not_found(name, str(error)) from error


def _with_workflow(served: ServedModel, options: RunOptions, limits: Limits) -> ServedModel:
    """The model as the caller's own workflow, if there is one, makes it.

    Raises:
        APIError: it has none to be written, or fewer steps are allowed than it needs.
    """
    workflow = options.workflow
    if options.dry_run and served.solver is not None:
        raise unsupported_parameter(
            f"{ORCHESTRATION_FIELD}.dry_run", f"{served.name} writes no workflow."
        )
    if workflow is not None:
        by_hand = FixedConductor("by-hand", lambda _: workflow)
        return replace(served, conductor=by_hand, solver=None, direct=False)
    if served.calls is not None and limits.steps < served.calls:
        raise invalid_value(
            f"{ORCHESTRATION_FIELD}.max_steps", f"{served.name} makes {served.calls} calls."
        )
    return served


def _with_effort(call: ParsedCall, effort: str | None) -> ParsedCall:
    """The call with that effort, if there is one and the call names none."""
    sampling = call.question.sampling
    if effort is None or sampling.effort is not None:
        return call
    sampling = replace(sampling, effort=effort)
    return replace(call, question=replace(call.question, sampling=sampling))


@final
class CallPreparer:
    """Says what each call is run with."""

    def __init__(self, catalogue: Catalogue, conversations: ConversationWorkers) -> None:
        """Learns what there is.

        Args:
            catalogue: the workers and the models.
            conversations: which worker answered a conversation before.
        """
        self._catalogue = catalogue
        self._conversations = conversations

    def prepare(self, call: ParsedCall, caller: Caller, run_id: RunId) -> PreparedCall:
        """The call with its model, pool and limits.

        Raises:
            APIError: it asks for what there is not, or what its caller may not have.
        """
        served = find_served_model(self._catalogue, call.model, embeds=call.embeds)
        call = _with_effort(call, served.effort)
        call = tagged_call(call, caller)
        options, question = call.options, call.question
        if served.embeds != call.embeds:
            does = "gives embeddings and no answers" if served.embeds else "gives no embeddings"
            raise invalid_value("model", f"{served.name} {does}.")
        tags = question.needed_tags
        if VISION in tags:
            check_pictures(question, private=self._catalogue.private_pictures)
        effort = question.sampling.effort if options.workflow is None else None
        limits = self._choose_limits(caller, served, options, effort=effort)
        if question.sampling.choices is not None or question.sampling.logprobs is not None:
            check_choices(question, served, self._catalogue.guardrails)
        check_grounded(served, self._catalogue.guardrails)
        served = _with_workflow(served, options, limits)
        check_confidence(options, served, self._catalogue.confidence)
        pool = permitted_workers(caller, served, options.select_workers(served.pool))
        rules = self._catalogue.plan_rules.of_tenant(caller.tenant).of_tags(question.tags)
        clients = self._catalogue.clients
        permitted = permit_workers(rules, served, options, pool=pool, clients=clients)
        pool = permitted.pool
        options.check_workflow(pool, limits)
        if effort is not None:
            pool = pool_for_effort(effort, served, pool)
            served = replace(served, conductor=conductor_for_effort(effort, served))
        if tags:
            pool = capable_workers(pool, question)
            options.check_workflow(pool, limits)
        if question.cache is not None:
            call = replace(call, question=tenant_key(question, caller.tenant))
        asked = call
        call, clients = self._with_tools(call, permitted.clients, pool)
        served = self._kept_on(served, call.question, pool, caller)
        if (kind := self._find_auxiliary(asked, served)) is not None:
            served = answer_alone(served, kind, call.question, pool)
            limits = replace(limits, steps=1, rounds=1)
        return PreparedCall(
            call=call,
            caller=caller,
            served_model=served,
            pool=pool,
            limits=limits,
            clients=clients,
            run_id=run_id,
            admission=Admission(run_id=run_id, model=served.name),
            guardrails=self._catalogue.guardrails,
            guarded=permitted.acts,
            rules=rules,
            approvals=self._find_approvals(caller, served, question),
        )

    def _find_approvals(
        self, caller: Caller, served: ServedModel, question: Question
    ) -> tuple[ApprovalRule, ...]:
        """Return the rules by which somebody may have to approve a plan.

        Raises:
            APIError: there are such rules, and the model shows no plan.
        """
        if not self._catalogue.approvals:
            return ()
        found = tuple(
            rule
            for rule in self._catalogue.approvals
            if rule.may_hold(caller.tenant, question.tags)
        )
        if found and served.solver is not None:
            reason = f"{served.name} shows no plan that {found[0].name} could have approved."
            raise APIError(403, "approval_refused", reason, param="model")
        return found

    def _choose_limits(
        self, caller: Caller, served: ServedModel, options: RunOptions, *, effort: str | None
    ) -> Limits:
        """Return the limits of the run.

        Raises:
            APIError: the options ask for what there is not.
        """
        limits = served.limits if effort is None else limits_for_effort(effort, served)
        if options is NO_OPTIONS:
            return caller_limits(caller, limits)
        options.check_limits(served.limits.steps, served.max_rounds)
        if options.stream_steps and GuardrailStage.OUTPUT in self._catalogue.guardrails.stages:
            reason = "a policy checks the output, and sees only the answer."
            raise unsupported_parameter(f"{ORCHESTRATION_FIELD}.stream_steps", reason)
        return caller_limits(caller, options.limits(limits, served.limits_ceiling))

    def _with_tools(
        self, call: ParsedCall, clients: Mapping[WorkerId, Client], pool: Pool
    ) -> tuple[ParsedCall, Mapping[WorkerId, Client]]:
        """Return the call whose models can call tools of the server, if it asks for some.

        Raises:
            APIError: they cannot, and the dialect refuses what it cannot honour.
        """
        if not call.server_tools:
            return call, clients
        return grant_tools(call, clients, pool, self._catalogue.server_tools)

    def _find_auxiliary(self, call: ParsedCall, served: ServedModel) -> str | None:
        """Return what an agent asks for itself of a conducting model; None: conduct the request."""
        if served.conductor is None or served.direct or self._catalogue.conducts_auxiliary:
            return None
        return auxiliary_kind(call)

    def _kept_on(
        self, served: ServedModel, question: Question, pool: Pool, caller: Caller
    ) -> ServedModel:
        """The model with the worker first that answered the conversation before."""
        if not served.direct or len(pool) == 1 or served.conductor is None:
            return served
        worker = self._conversations.find_worker(question, served.name, caller.tenant)
        if worker is None or worker not in pool:
            return served
        return replace(served, conductor=single_worker(worker))
