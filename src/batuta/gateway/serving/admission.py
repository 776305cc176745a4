"""Decides whether a call may be run: scope, rate, concurrency, money. The same for all dialects.

What a key may not do is refused before anything is run; what a run takes from a budget is set
apart before it and settled with the run; whatever happens in between is given back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache, partial
from time import time
from types import MappingProxyType
from typing import final

import anyio

from batuta.core import (
    Client,
    GuardrailTriggered,
    Limits,
    Outcome,
    Pool,
    ResumeState,
    Run,
    RunId,
    WorkerId,
)
from batuta.core.conductor import conductor_worker
from batuta.engine.context import WorkflowRevision
from batuta.errors import StoreError
from batuta.gateway.access.caller import Caller, CallerRole
from batuta.gateway.access.key_watch import KeyWork
from batuta.gateway.access.rate_limit import (
    REQUESTS,
    TOKENS,
    LocalRateLimiter,
    RateLimiter,
    RateWindow,
    Taken,
    check_rate,
    enter_place,
    retry_headers,
)
from batuta.gateway.errors import APIError
from batuta.gateway.serving.answer_cache import CACHE_HEADER, RepeatableCall
from batuta.gateway.serving.cost_bound import FirstCallsCost, estimate_prompt_tokens
from batuta.gateway.serving.error_mapping import error_of_run, unsure_error
from batuta.gateway.serving.explore import ChosenArm
from batuta.gateway.serving.models import ServedModel
from batuta.gateway.serving.parsed_call import NO_OPTIONS, SESSION_HEADER, ParsedCall
from batuta.gateway.serving.reserved_budget import ReservedBudget, budget_error
from batuta.gateway.serving.session_call import SessionCall
from batuta.guardrails import NO_GUARDRAILS, Guardrails, GuardrailStage
from batuta.language.approval_rules import ApprovalRule
from batuta.language.plan_rules import NO_RULES, PlanRules
from batuta.offload.threads import read_off_loop
from batuta.store import Store
from batuta.store.ledger import (
    Bucket,
    BudgetStatus,
    PeriodCaps,
    RunCharge,
    charged_accounts,
    usd_cap_to_nano,
    usd_to_nano,
    utc_day,
    utc_month,
)

_LOG = logging.getLogger(__name__)


def permitted_workers(caller: Caller, served: ServedModel, pool: Pool) -> Pool:
    """Return the workers of `pool` that may hear this caller's question.

    Raises:
        APIError: the caller may not ask that model, or nobody may hear it.
    """
    if caller.role in {CallerRole.ADMIN, CallerRole.NOBODY}:
        message = "The admin's token starts no runs: make a key and use that."
        raise APIError(403, "permission_denied", message)
    if caller.role is CallerRole.LOCAL:
        return pool
    policy = caller.permissions
    model = served.name
    if not policy.allows_model(model):
        message = f"This key may not use the model '{model}'; GET /v1/models lists those it may."
        raise APIError(403, "model_not_allowed", message, param="model")
    if policy.allows_all_workers:
        return pool
    left = [worker.id for worker in pool if policy.allows_worker(worker)]
    if not left:
        message = f"This key allows no worker of the model '{model}'."
        raise APIError(403, "permission_denied", message, param="model")
    conductor = conductor_worker(served.conductor)
    if conductor is not None and not policy.allows_worker(conductor):
        message = f"This key does not allow the worker '{conductor.id}', which conducts '{model}'."
        raise APIError(403, "permission_denied", message, param="model")
    return pool if len(left) == len(pool) else pool.subset(left)


def caller_limits(caller: Caller, limits: Limits) -> Limits:
    """Return the limits, with what the key allows one request to cost."""
    most = caller.permissions.max_cost
    if most is None or (limits.usd is not None and limits.usd <= most):
        return limits
    return replace(limits, usd=float(most))


def caps_of(caller: Caller) -> Mapping[str, PeriodCaps]:
    """Return what the caller's accounts may spend in a day and in a month, in billionths."""
    permissions = caller.permissions
    tenant_caps = (caller.per_day, caller.per_month)
    return _read_caps(
        caller.tenant, caller.key, tenant_caps, (permissions.per_day, permissions.per_month)
    )


_UsdCaps = tuple[Decimal | None, Decimal | None]
_KNOWN_CALLERS = 1024


@lru_cache(maxsize=_KNOWN_CALLERS)  # the same for every request of a key
def _read_caps(
    tenant: str, key: str | None, tenant_caps: _UsdCaps, key_caps: _UsdCaps
) -> Mapping[str, PeriodCaps]:
    caps = {"tenant": tenant_caps, "key": key_caps}
    found: dict[str, PeriodCaps] = {}
    for account in charged_accounts(tenant, key):
        day, month = caps[account.partition(":")[0]]
        found[account] = (_cap_to_nano(day), _cap_to_nano(month))
    return MappingProxyType(found)


def _cap_to_nano(cap: Decimal | None) -> int | None:
    return None if cap is None else usd_cap_to_nano(cap)


def buckets_of(caller: Caller, at: float) -> tuple[Bucket, ...]:
    """Return the budgets that a run of that moment takes from."""
    day = utc_day(at)
    return tuple(
        Bucket(account, period, cap)
        for account, caps in caps_of(caller).items()
        for cap, period in zip(caps, (day, utc_month(day)), strict=True)
        if cap is not None
    )


@dataclass(slots=True, kw_only=True)
class Admission:
    """A call's share of rates and budgets while it is run."""

    run_id: RunId
    """Under which it is counted among what goes on."""
    model: str = ""
    """The name of the served model."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers with the rest of the caller's rates."""
    charge: RunCharge = field(default_factory=RunCharge)
    expected_tokens: int = 0
    """Tokens that the key's rate counts already, if it has one."""
    taken_tokens: Taken | None = None
    """The tokens as the limiter counted them; None: another process did, or the run has ended."""
    has_place: bool = False
    """True while it counts towards its key's concurrency."""
    is_settled: bool = False
    """Whether the run was handed to the store with its reservation."""
    is_durable: bool = False
    """Whether what is not settled waits for the next process that executes the run."""
    key_work: KeyWork | None = None
    """The run as what its key's end ends; None: it has not begun, or there is no key."""
    reserved_budget: ReservedBudget | None = None
    """The reservation in the caller's budgets, if there are any."""

    @property
    def has_lost_key(self) -> bool:
        """True if the run was ended because its key had."""
        return self.key_work is not None and self.key_work.refusal is not None

    @property
    def final_charge(self) -> RunCharge:
        """Return who pays, and the least that budgets count for the run."""
        held = self.reserved_budget
        return self.charge if held is None else replace(self.charge, counted=held.counted)


@final
class AdmissionController:
    """Lets calls in one by one, and out again."""

    def __init__(self, store: Store | None, rate_limiter: RateLimiter | None = None) -> None:
        self._store = store
        self._rate_limiter = rate_limiter or LocalRateLimiter()

    async def admit(
        self,
        caller: Caller,
        call: ParsedCall,
        admission: Admission,
        bound_cost: Callable[[], FirstCallsCost],
        *,
        in_background: bool = False,
        already_counted: bool = False,
        durable: bool = False,
    ) -> None:
        """Take from the caller's rates and budgets; `release` must follow.

        Args:
            caller: who asks.
            call: what is wanted.
            admission: is told what is held.
            bound_cost: the most that the run's first calls can cost.
            in_background: a job runs it, and is itself counted among what the key runs.
            already_counted: the rates were taken from when the call was submitted.
            durable: the run is resumed if this process ends before it does, with the money
                that was reserved for it.

        Raises:
            APIError: too many runs or tokens, or no money; nothing is held.
        """
        admission.charge = RunCharge(tenant=caller.tenant, key=caller.key, at=time())
        if caller.key is None:
            return
        try:
            await self._take_all(
                caller,
                call,
                admission,
                bound_cost,
                in_background=in_background,
                already_counted=already_counted,
                durable=durable,
            )
        except APIError as refusal:
            if refusal.status == TOO_MANY_REQUESTS and self._store is not None:
                # To be found by whoever asks why requests fail.
                self._store.refusals.note(caller.tenant, caller.key, refusal.code)
            raise

    async def _take_all(
        self,
        caller: Caller,
        call: ParsedCall,
        admission: Admission,
        bound_cost: Callable[[], FirstCallsCost],
        *,
        in_background: bool,
        already_counted: bool,
        durable: bool,
    ) -> None:
        """Take a place, from the rates and from the budgets; all, or nothing."""
        key = caller.key or ""
        if not in_background:
            await self._take_place(caller, key, admission)
        try:
            expected = 0 if caller.permissions.tpm is None else await _expected_tokens(call)
            if not already_counted:
                windows = await self._take_rates(caller, key, expected)
                admission.headers = {n: v for w in windows for n, v in w.headers().items()}
                admission.taken_tokens = windows[-1].taken if expected else None
            admission.expected_tokens, admission.is_durable = expected, durable
            await self._reserve_budget(admission, caller, call, bound_cost=bound_cost)
        except BaseException:
            await self._leave_place(key, admission)
            await self.give_back_tokens(admission)
            raise

    async def count_tokens(self, caller: Caller, admission: Admission, run: Run) -> None:
        """Count the tokens of a run that has ended."""
        cap = caller.permissions.tpm
        if cap is None or caller.key is None:
            return
        more = run.usage.total - admission.expected_tokens
        if more < 0:
            await self.give_back_tokens(admission, -more)
        elif more > 0:
            await self._rate_limiter.add(TOKENS, caller.key, cap, more)
        admission.taken_tokens = None

    async def give_back_tokens(self, admission: Admission, unused: int | None = None) -> None:
        """Give back what was counted of tokens that no call used.

        Args:
            admission: what holds them.
            unused: how many of them; None: all, for nothing was run.
        """
        taken, admission.taken_tokens = admission.taken_tokens, None
        if taken is not None:
            await self._rate_limiter.give_back(taken, taken.amount if unused is None else unused)

    async def release(self, caller: Caller, admission: Admission) -> None:
        """Let the call out; what was reserved and counts for no call is given back."""
        if caller.key is not None:
            await self._leave_place(caller.key, admission)
        held = admission.charge.reservation
        if held is None or admission.is_settled or admission.is_durable or self._store is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                counted = admission.final_charge.counted or Decimal(0)
                await self._store.budgets.release(held, usd_to_nano(counted))
            except StoreError as error:  # it expires when this process ends
                _LOG.warning("a reservation could not be given back: %s", error)

    async def _take_place(self, caller: Caller, key: str, admission: Admission) -> None:
        most = caller.permissions.concurrency
        await enter_place(self._rate_limiter, key, admission.run_id, most)
        admission.has_place = True

    async def _leave_place(self, key: str, admission: Admission) -> None:
        if admission.has_place:
            admission.has_place = False
            await self._rate_limiter.concurrency.leave(key, admission.run_id)

    async def _take_rates(self, caller: Caller, key: str, expected: int) -> list[RateWindow]:
        """Take the request and its expected tokens from the key's rates."""
        policy, windows = caller.permissions, list[RateWindow]()
        if policy.rpm is not None:
            windows.append(await self._rate_limiter.take(REQUESTS, key, policy.rpm))
            check_rate(windows)
        if policy.tpm is not None:
            if expected > policy.tpm:
                message = (
                    f"The question has about {expected} tokens and this key may use {policy.tpm} "
                    "a minute: shorten it."
                )
                raise APIError(429, "rate_limit_exceeded", message, headers=_NO_RETRY)
            windows.append(await self._rate_limiter.take(TOKENS, key, policy.tpm, expected))
            check_rate(windows)
        return windows

    async def _reserve_budget(
        self,
        admission: Admission,
        caller: Caller,
        call: ParsedCall,
        *,
        bound_cost: Callable[[], FirstCallsCost],
    ) -> None:
        """Set apart what the run's first calls can cost; the run grows it before later ones."""
        charge, run_id = admission.charge, admission.run_id
        buckets = buckets_of(caller, charge.at or 0.0)
        if self._store is None or not (buckets or admission.is_durable):
            return
        lasting, budgets = admission.is_durable, self._store.budgets
        wanted = await read_off_loop(call.question.messages, bound_cost)
        least = usd_to_nano(wanted.least_usd)
        try:
            if lasting and await budgets.is_settled(run_id):
                return  # it ended, and is only told again
            held = await budgets.find_job_reservation(run_id, caps_of(caller)) if lasting else None
            if held is None and not buckets:
                return
            if held is not None:  # the charge belongs to the day of its reservation
                charge = replace(charge, at=held[1])
            found = (
                held[0]
                if held is not None
                else await budgets.reserve(
                    run_id,
                    usd_to_nano(wanted.usd),
                    buckets,
                    tenant=caller.tenant,
                    key=caller.key,
                    model=admission.model,
                    for_job=lasting,
                    least=least,
                    at=charge.at,
                )
            )
        except StoreError as error:
            _LOG.error("budgets cannot be checked: %s", error)
            message = "The budget cannot be checked now; try again."
            raise APIError(503, "overloaded", message, headers=retry_headers(1.0)) from None
        if isinstance(found, BudgetStatus):
            raise budget_error(found, least)
        admission.charge = replace(charge, reservation=found)
        admission.reserved_budget = ReservedBudget(budgets, found)


def _is_session_limit(session: SessionCall, run: Run) -> bool:
    return run.limit == "usd" and (session.is_bound or session.is_refused)


_NO_RETRY = {"x-should-retry": "false"}
TOO_MANY_REQUESTS = 429


async def _expected_tokens(call: ParsedCall) -> int:
    estimate = partial(estimate_prompt_tokens, call.question)
    return max(1, await read_off_loop(call.question.messages, estimate))


_MAX_NAMED = 20
"""Ignored fields that are told; what a client made up does not fill our headers."""
_OUTCOMES_WITHOUT_ANSWER = {Outcome.FAILED, Outcome.CANCELLED, Outcome.REFUSED}
_HEADER_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(slots=True, kw_only=True)
class PreparedCall:
    """A call that can be run: everything was looked up and found.

    It finds its session after it was made, and is not changed once it is run.
    """

    call: ParsedCall
    caller: Caller
    served_model: ServedModel
    pool: Pool
    limits: Limits
    clients: Mapping[WorkerId, Client]
    run_id: RunId
    session: str | None = None
    """The id of the session that it belongs to; None: to none."""
    in_session: SessionCall | None = None
    """Its place in that session."""
    revise: WorkflowRevision | None = None
    """Changes the workflows of its conductor, as its session has it."""
    admission: Admission
    """The call's share of its caller's rates and budgets."""
    guardrails: Guardrails = NO_GUARDRAILS
    guarded: tuple[GuardrailTriggered, ...] = ()
    """The guardrails' findings in what came with the question, and which rules left workers out."""
    rules: PlanRules = NO_RULES
    """The rules say what its workflows may not be."""
    approvals: tuple[ApprovalRule, ...] = ()
    """The plans that somebody must approve before they are run."""
    min_confidence: float | None = None
    """The probability below which the answer is not sure."""
    refuses_unsure: bool = False
    """Whether an answer that is not sure is no answer."""
    resumed: ResumeState | None = None
    """The workflow that continues with the results of its tools."""
    auxiliary: str | None = None
    """It names what an agent asks for itself by the call, such as a title, and is None for
    somebody's question."""
    will_resume: Callable[[], bool] = lambda: False
    """Whether a run that is cancelled now is taken up again by another process."""
    repeatable: RepeatableCall | None = None
    """The call with all that its answer depends on, if the answer may be given again."""
    earlier: Run | None = None
    """The run whose answer is given again."""
    cache_result: str = "miss"
    """The result of the cache: `hit`, `similar` or `miss`."""
    chosen: ChosenArm | None = None
    """The alternative that is run where the system learns while it serves."""

    @property
    def can_stream(self) -> bool:
        """True if words can be shown as they come: nothing will replace or forbid them."""
        settled = self.served_model.solver is None and self.min_confidence is None
        return self.call.stream and settled and GuardrailStage.OUTPUT not in self.guardrails.stages

    @property
    def headers(self) -> dict[str, str]:
        """The answer's headers that are known before anything is run."""
        headers = {"x-batuta-run-id": str(self.run_id), **self.admission.headers}
        if self.session is not None:
            headers[SESSION_HEADER] = self.session
        if self.in_session is not None:
            headers.update(self.in_session.headers)
        if self.repeatable is not None:
            headers[CACHE_HEADER] = self.cache_result
        if self.chosen is not None:
            headers.update(self.chosen.headers)
        if self.call.ignored:
            ignored = [n for n in self.call.ignored if _HEADER_SAFE.fullmatch(n)][:_MAX_NAMED]
            if ignored:
                headers["x-batuta-ignored"] = ", ".join(ignored)
        options = self.call.options
        if options is not NO_OPTIONS and (lowered := options.lowered_limits(self.limits)):
            headers["x-batuta-lowered"] = ", ".join(f"{n}={v:g}" for n, v in lowered.items())
        return headers

    def error_for(self, run: Run) -> APIError | None:
        """Return the error that the caller gets; None if the run has an answer."""
        if run.outcome is Outcome.UNSURE and self.refuses_unsure:
            return unsure_error(run.confidence, self.min_confidence or 0.0)
        if run.reply is not None and run.outcome not in _OUTCOMES_WITHOUT_ANSWER:
            return None
        budget = self.admission.reserved_budget
        if budget is not None and run.outcome is Outcome.LIMITED and run.limit == "usd":
            refused = budget.refusal()
            if refused is not None:
                return refused
        session = self.in_session
        if session is not None and _is_session_limit(session, run):
            return session.cost_error()
        return error_of_run(run, direct=self.served_model.direct)
