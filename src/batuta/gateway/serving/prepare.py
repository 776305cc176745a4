"""Decides which model, pool and limits a call runs with.

Nothing here reserves money or calls a worker; `execute.py` does both.

Coding agents also send requests of their own: titles, topic checks, probes, searches and
compactions. They are recognised by the form in which the agents send them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

from batuta.clients.public_addresses import is_public_url
from batuta.conductors import FixedConductor, single_worker
from batuta.conductors.sessions.patterns import ActingWorker
from batuta.config.effort import conductor_for_effort, limits_for_effort, pool_for_effort
from batuta.core import (
    Client,
    GuardrailTriggered,
    Limits,
    Message,
    Pool,
    Price,
    Question,
    Request,
    Role,
    RunId,
    Worker,
    WorkerId,
    Workflow,
    WorkflowEstimate,
)
from batuta.core.conductor import conductor_worker
from batuta.core.message import SYSTEM_ROLES
from batuta.core.server_tools import WEB_SEARCH as SEARCH_TOOL
from batuta.core.token_estimate import estimate_request_tokens
from batuta.core.worker import PROGRAM, VISION, token_price
from batuta.engine import LatencyLookup, estimate_workflow, new_run_id
from batuta.engine.confidence import ConfidenceModel
from batuta.engine.planning import restrict_workers
from batuta.engine.step_prompt import able_workers
from batuta.errors import ConfigError
from batuta.gateway.access.caller import Caller
from batuta.gateway.errors import APIError, invalid_value, model_not_found, unsupported_parameter
from batuta.gateway.serving.admission import (
    Admission,
    PreparedCall,
    caller_limits,
    permitted_workers,
)
from batuta.gateway.serving.capabilities import capable_workers, check_attachments, check_choices
from batuta.gateway.serving.models import Catalogue, ServedModel
from batuta.gateway.serving.parsed_call import (
    NO_OPTIONS,
    ORCHESTRATION_FIELD,
    ParsedCall,
    RunOptions,
)
from batuta.gateway.serving.server_tools import grant_tools
from batuta.gateway.serving.tenant_memory import ConversationWorkers, tenant_key
from batuta.gateway.serving.uploaded_files import UploadedFiles
from batuta.guardrails import Guardrails, GuardrailStage
from batuta.language.approval_rules import ApprovalRule
from batuta.language.plan_rules import NO_RULES, PlanRule, PlanRules


def find_served_model(catalogue: Catalogue, name: str, *, embeds: bool = False) -> ServedModel:
    """Return the served model of a name.

    Args:
        catalogue: the models.
        name: the name in the request: of a model, or the id of a worker or an alias.
        embeds: whether embeddings are requested; then only the name of a model counts.

    Raises:
        APIError: no served model has this name.
    """
    served = catalogue.find_model(name) if embeds else catalogue.resolve_model(name)
    if served is None:
        raise model_not_found(name, catalogue.unavailable_models.get(name))
    return served


async def load_served_model(catalogue: Catalogue, name: str) -> None:
    """Import the method of a served model, if a plugin provides the method.

    Raises:
        APIError: the method cannot be imported; the message says why.
    """
    try:
        await catalogue.load_model(name)
    except ConfigError as error:
        raise model_not_found(name, str(error)) from error


def _with_workflow(served: ServedModel, options: RunOptions, limits: Limits) -> ServedModel:
    """Return the model with the caller's own workflow, if there is one.

    Raises:
        APIError: a dry run is requested of a method, which writes no workflow, or a method makes
            more calls than the steps allowed.
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
        reason = f"it must be at least {served.calls}, as many calls as {served.name} makes."
        raise invalid_value(f"{ORCHESTRATION_FIELD}.max_steps", reason)
    return served


def _with_effort(call: ParsedCall, effort: str | None) -> ParsedCall:
    """Return the call with the default effort, if there is one and the call sets none."""
    sampling = call.question.sampling
    if effort is None or sampling.effort is not None:
        return call
    sampling = replace(sampling, effort=effort)
    return replace(call, question=replace(call.question, sampling=sampling))


def _check_kind(call: ParsedCall, served: ServedModel) -> None:
    """Raise APIError if an answer is requested of an embedding model, or the reverse."""
    if served.embeds != call.embeds:
        does = "is an embedding model" if served.embeds else "gives no embeddings"
        raise invalid_value("model", f"{served.name} {does}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEstimate:
    """The workflow of a request, with its estimate."""

    workflow: Workflow
    pool: Pool
    """The workers that the caller may use for the workflow."""
    expected: WorkflowEstimate


@final
class CallPreparer:
    """Chooses the model, pool and limits of each call."""

    def __init__(
        self, catalogue: Catalogue, conversations: ConversationWorkers, files: UploadedFiles
    ) -> None:
        """Connect the parts that calls are prepared with.

        Args:
            catalogue: the workers and the models.
            conversations: the substitutes that last answered conversations.
            files: the uploaded files.
        """
        self._files = files
        self._catalogue = catalogue
        self._conversations = conversations

    def prepare(self, call: ParsedCall, caller: Caller, run_id: RunId) -> PreparedCall:
        """Return the call with its model, pool and limits.

        Raises:
            APIError: the model is unknown or cannot serve the call, or a permission, rule or policy
                forbids it.
        """
        served = find_served_model(self._catalogue, call.model, embeds=call.embeds)
        call = tagged_call(_with_effort(call, served.effort), caller)
        options, question = call.options, call.question
        _check_kind(call, served)
        tags = question.needed_tags
        if VISION in tags:
            check_pictures(question, private=self._catalogue.private_pictures)
        effort = question.sampling.effort if options.workflow is None else None
        limits = self._choose_limits(caller, served, options, effort=effort)
        if question.sampling.choices is not None or question.sampling.logprobs is not None:
            check_choices(question, served, self._catalogue.guardrails)
        check_grounded(served, self._catalogue.guardrails)
        served = _with_workflow(served, options, limits)
        pool = permitted_workers(caller, served, options.select_workers(served.pool))
        rules = self._rules_for(caller, question)
        clients = self._catalogue.clients
        pool, clients, acts = permit_workers(rules, served, options, pool=pool, clients=clients)
        options.check_workflow(pool, limits)
        if effort is not None:
            pool = pool_for_effort(effort, served, pool)
            served = replace(served, conductor=conductor_for_effort(effort, served))
        min_confidence = required_confidence(options, caller, served, self._catalogue.confidence)
        if tags:
            conducted = served.solver is None and not served.direct and limits.steps > 1
            pool = capable_workers(pool, question, conducted=conducted)
            options.check_workflow(pool, limits)
            check_attachments(options.workflow, question, pool)
        if question.cache is not None:
            call = replace(call, question=tenant_key(question, caller.tenant))
        auxiliary = auxiliary_kind(call)
        call, clients = self._with_tools(call, clients, pool, caller)
        if any(PROGRAM in worker.tags for worker in pool):
            pool, clients = self._files.open_for_programs(call, caller, pool, clients)
        served = self._keep_worker(served, call.question, pool, caller)
        if auxiliary is not None and self._answers_alone(auxiliary, served):
            served = answer_alone(served, auxiliary, call.question, pool)
            limits, min_confidence = replace(limits, steps=1, rounds=1), None
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
            guarded=acts,
            rules=rules,
            approvals=self._find_approvals(caller, served, question),
            min_confidence=min_confidence,
            refuses_unsure=self._catalogue.refuses_unsure,
            auxiliary=auxiliary,
        )

    def estimate_plan(
        self, call: ParsedCall, caller: Caller, seconds: LatencyLookup
    ) -> PlanEstimate:
        """Estimate the workflow that the request contains, without calling a worker.

        Raises:
            APIError: the request contains no workflow, or one that may not run.
        """
        workflow = call.options.workflow
        if workflow is None:
            raise invalid_value(f"{ORCHESTRATION_FIELD}.workflow", "it is missing.")
        prepared = self.prepare(call, caller, new_run_id())
        question, pool = prepared.call.question, prepared.pool
        conductor, model = prepared.served_model.conductor, self._catalogue.confidence
        samples = None
        if conductor is not None and model is not None:
            samples = model.expected_samples(conductor.name, workflow)
        return PlanEstimate(
            workflow=workflow,
            pool=pool,
            expected=estimate_workflow(question, workflow, pool, latency=seconds, again=samples),
        )

    def _rules_for(self, caller: Caller, question: Question) -> PlanRules:
        """Return the plan rules that apply to the question's tenant and tags."""
        rules = self._catalogue.plan_rules
        if rules is NO_RULES:
            return rules
        return rules.of_tenant(caller.tenant).of_tags(question.tags)

    def _find_approvals(
        self, caller: Caller, served: ServedModel, question: Question
    ) -> tuple[ApprovalRule, ...]:
        """Return the rules that may require a person's approval of a plan for this question.

        Raises:
            APIError: such rules apply, and the model has no plan to approve.
        """
        if not self._catalogue.approvals:
            return ()
        found = tuple(
            rule
            for rule in self._catalogue.approvals
            if rule.may_hold(caller.tenant, question.tags)
        )
        if found and served.solver is not None:
            reason = f"{served.name} has no plan, but the rule {found[0].name} needs an approval."
            raise APIError(403, "approval_refused", reason, param="model")
        return found

    def _choose_limits(
        self, caller: Caller, served: ServedModel, options: RunOptions, *, effort: str | None
    ) -> Limits:
        """Return the limits of the run.

        Raises:
            APIError: the options require more steps or rounds than possible, or stream the steps
                although a policy checks the output.
        """
        limits = served.limits if effort is None else limits_for_effort(effort, served)
        if options is NO_OPTIONS:
            return caller_limits(caller, limits)
        options.check_limits(served.limits.steps, served.max_rounds)
        if options.stream_steps and GuardrailStage.OUTPUT in self._catalogue.guardrails.stages:
            reason = "a policy checks the output, but not the steps before the answer."
            raise unsupported_parameter(f"{ORCHESTRATION_FIELD}.stream_steps", reason)
        return caller_limits(caller, options.limits(limits, served.limits_ceiling))

    def _with_tools(
        self, call: ParsedCall, clients: Mapping[WorkerId, Client], pool: Pool, caller: Caller
    ) -> tuple[ParsedCall, Mapping[WorkerId, Client]]:
        """Return the call with the server's tools that its key permits, and the clients.

        Raises:
            APIError: a tool is not available, and the dialect does not ignore missing tools.
        """
        if not call.server_tools:
            return call, clients
        offered, permissions = self._catalogue.server_tools, caller.permissions
        if offered is not None and permissions.tools:
            allowed = {n: tool for n, tool in offered.tools.items() if permissions.allows_tool(n)}
            offered = replace(offered, tools=allowed)
        return grant_tools(call, clients, pool, offered=offered)

    def _answers_alone(self, kind: str, served: ServedModel) -> bool:
        """Return True if an agent's own request of this kind is answered by the cheapest worker."""
        if served.conductor is None or self._catalogue.conducts_auxiliary:
            return False
        return not served.direct or kind in _SMALL_KINDS

    def _keep_worker(
        self, served: ServedModel, question: Question, pool: Pool, caller: Caller
    ) -> ServedModel:
        """Return the model; a direct one uses the substitute that answered last, if remembered."""
        if not served.direct or len(pool) == 1 or served.conductor is None:
            return served
        worker = self._conversations.find_worker(question, served.name, caller.tenant)
        if worker is None or worker not in pool:
            return served
        return replace(served, conductor=single_worker(worker))


def tagged_call(call: ParsedCall, caller: Caller) -> ParsedCall:
    """Return the call with the tags of its request and of its caller's key."""
    if not (call.options.tags or caller.permissions.tags):
        return call
    tags = tuple(sorted({*call.options.tags, *caller.permissions.tags}))
    return replace(call, question=replace(call.question, tags=tags))


def permit_workers(
    rules: PlanRules,
    served: ServedModel,
    options: RunOptions,
    *,
    pool: Pool,
    clients: Mapping[WorkerId, Client],
) -> tuple[Pool, Mapping[WorkerId, Client], tuple[GuardrailTriggered, ...]]:
    """Return the workers that the rules permit, their clients, and a finding per excluding rule.

    Args:
        rules: the rules of the question's tenant and tags.
        served: the requested model.
        options: the request's options; its own workflow must keep the rules.
        pool: the workers before the rules are applied.
        clients: the workers' clients.

    Raises:
        APIError: the rules exclude every worker or the conductor, the request's workflow breaks a
            rule, or the model is a method and a rule requires that every answer is checked.
    """
    if rules is NO_RULES:
        return pool, clients, ()
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
    return restrict_workers(rules, pool, clients)


def rule_error(rule: PlanRule, status: int, param: str) -> APIError:
    """Return the error for a request that a rule forbids, with the rule's sentence."""
    message = f"The rule {rule.name} for plans: {rule.sentence}"
    return APIError(status, "plan_rule", message, param=param)


def required_confidence(
    options: RunOptions, caller: Caller, served: ServedModel, model: ConfidenceModel | None
) -> float | None:
    """Return the required confidence: the highest of the model's, the key's and the request's.

    Return None if none of the three is set. For embeddings only the model's counts.

    Raises:
        APIError: the request or its key requires a confidence, but no confidence model was fitted
            to runs of the model's conductor.
    """
    own, requested = caller.permissions.min_confidence, options.min_confidence
    if (own is None and requested is None) or served.embeds:
        return served.min_confidence
    conductor = served.conductor.name if served.conductor is not None else ""
    if model is None or conductor not in model.conductors:
        reason = (
            f"the confidence of {served.name}'s answers is unknown; fit a model with "
            "batuta eval --calibrate and name its file in [confidence]."
        )
        if requested is not None:
            raise unsupported_parameter(f"{ORCHESTRATION_FIELD}.min_confidence", reason)
        message = f"This key needs answers with a confidence of at least {own:g}, but {reason}"
        raise APIError(403, "permission_denied", message, param="model")
    return max(least for least in (served.min_confidence, own, requested) if least is not None)


def check_pictures(question: Question, *, private: bool = False) -> None:
    """Check that every picture is a data URL or has a public URL.

    Host names are not resolved, since their addresses may change at any time.

    Args:
        question: the question.
        private: whether every URL is allowed, also of private networks.

    Raises:
        APIError: a URL is invalid, or of this machine or a private network.
    """
    for index, message in enumerate(question.messages):
        for image in message.images:
            if image.url.startswith("data:") or private:
                continue
            if not is_public_url(image.url):
                reason = "a picture's URL must be public; else send the picture as a data URL."
                raise invalid_value(f"messages[{index}]", reason)


TITLE = "a title"
TOPIC_CHECK = "a topic check"
QUOTA_PROBE = "a quota probe"
COMPACTION = "a compaction"
WEB_SEARCH = "a web search"
_SMALL_KINDS = frozenset({TITLE, TOPIC_CHECK, QUOTA_PROBE})
"""Kinds that the cheapest worker answers even where one worker answers the whole conversation."""

_TITLE_REQUEST = "Generate a title for this conversation:"
"""The whole first message of opencode's request for a title."""
_TOPIC_CHECK = "Analyze if this message indicates a new conversation topic."
COMPACTION_BEGINNING = "You are performing a CONTEXT CHECKPOINT COMPACTION."
"""The beginning of the last message of Codex's request for a summary of the conversation."""
_TEXT_ONLY = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."
"""The beginning of the last message of Claude Code's request for a summary."""
_TRANSCRIPT = "Here is the conversation so far:\n\n<conversation>\n"
"""The beginning of the only message of opencode's request for a summary."""
_SUMMARY_REQUESTS = ("Create a new anchored summary", "Construct a new summary that combines both")
"""Texts that follow the transcript in opencode's request for a summary."""
_SUMMARY = "Your task is to create a detailed summary of the conversation so far"
"""Another text in Claude Code's request for a summary."""
_SEARCH = "Perform a web search for the query: "
"""The beginning of the only message of Claude Code's request for a search."""
_LONGEST_PROBE = 16
"""Maximum number of characters in the only message of a probe."""


def auxiliary_kind(call: ParsedCall) -> str | None:
    """Return the kind of an agent's own request; None for a user's question.

    A request for embeddings, with a workflow or for a dry run is not an agent's own. Call this
    before the server's tools are granted, after which a web search is among the question's tools.
    """
    question, options = call.question, call.options
    if call.embeds or options.workflow is not None or options.dry_run:
        return None
    if question.tools:
        return COMPACTION if _wants_summary(question.messages[-1]) else None
    messages = [message for message in question.messages if message.role not in SYSTEM_ROLES]
    return _kind_without_tools(call, messages) if messages else None


def _kind_without_tools(call: ParsedCall, messages: list[Message]) -> str | None:
    question = call.question
    if _wants_title(question, messages):
        return TITLE
    if _is_probe(question, messages):
        return QUOTA_PROBE
    if messages[-1].role is Role.USER and _wants_plain_summary(messages):
        return COMPACTION
    searches = any(requested.tool == SEARCH_TOOL for requested in call.server_tools)
    if searches and len(messages) == 1 and messages[0].text.startswith(_SEARCH):
        return WEB_SEARCH
    system = (message for message in question.messages if message.role in SYSTEM_ROLES)
    if any(_TOPIC_CHECK in message.text for message in system):
        return TOPIC_CHECK
    return None


def _wants_plain_summary(messages: list[Message]) -> bool:
    """Return True for a request for a summary as Codex and opencode send it, without tools."""
    text = messages[-1].text
    if text.startswith(COMPACTION_BEGINNING):
        return True
    is_transcript = len(messages) == 1 and text.startswith(_TRANSCRIPT)
    return is_transcript and any(words in text for words in _SUMMARY_REQUESTS)


def _wants_summary(last: Message) -> bool:
    """Return True for a request for a summary as Claude Code sends it, with tools."""
    text = last.text if last.role is Role.USER else ""
    return text.startswith(_TEXT_ONLY) and _SUMMARY in text


def _wants_title(question: Question, messages: list[Message]) -> bool:
    """Return True for a request for a title, as opencode and Claude Code send it."""
    first = messages[0]
    if first.role is not Role.USER:
        return False
    if len(messages) > 1 and len(first.text) <= len(_TITLE_REQUEST) + 2:
        return first.text.strip() == _TITLE_REQUEST
    form = question.response_format
    fields = form.schema.get("properties") if form else None
    if not isinstance(fields, dict) or fields.keys() != {"title"}:
        return False
    return len(messages) == 1 and first.text.lstrip().startswith("<session>")


def _is_probe(question: Question, messages: list[Message]) -> bool:
    """Return True for a probe: one token for a tiny message, to test whether the key works."""
    sampling = question.sampling
    if sampling.max_tokens != 1 or sampling.logprobs is not None or len(question.messages) > 1:
        return False
    return not messages[0].attachments and len(messages[0].text) <= _LONGEST_PROBE


def answer_alone(served: ServedModel, kind: str, question: Question, pool: Pool) -> ServedModel:
    """Return the model with one call of the cheapest worker instead of its conductor.

    Args:
        served: the requested model.
        kind: the kind of request, from `auxiliary_kind`.
        question: the question.
        pool: the workers that may answer.
    """
    worker = _cheapest_worker(question, pool, served.limits.unknown)
    name = f"{kind}: answered by {worker.id}, not conducted"
    alone = ActingWorker(name=name, worker=worker.id)
    return replace(served, conductor=alone, direct=True, explore=None)


def _cheapest_worker(question: Question, pool: Pool, unknown: Price) -> Worker:
    """Return the cheapest able model whose context window fits the question; on ties the best.

    If no model's window fits, all able models are compared; if the pool has no model, all workers.
    An ability that no model has is not required.
    """
    models = able_workers(question, [worker for worker in pool.ranked() if worker.is_model])
    size = estimate_request_tokens(Request(messages=question.messages))
    fitting = [w for w in models if w.context_window is None or w.context_window > size]
    return min(fitting or models or pool.ranked(), key=lambda w: token_price(w, unknown))


def check_grounded(served: ServedModel, guardrails: Guardrails) -> None:
    """Check that answers can be checked against their sources, if a policy requires it.

    Raises:
        APIError: the model is a method: the engine does not know which reply is its answer.
    """
    if guardrails.grounded is not None and served.solver is not None:
        reason = (
            f"{served.name} chooses among replies: {guardrails.grounded.name} cannot check them."
        )
        raise APIError(403, "policy_blocked", reason, param="model")
