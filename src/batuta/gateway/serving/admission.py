"""Decides whether a call may run: permissions, rates, concurrency and budgets, in all dialects.

A call that its key does not permit is refused before anything runs. Money is reserved before the
run and settled with it; an unused reservation is released.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
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
    enter_concurrency,
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


def check_starts_runs(caller: Caller) -> None:
    """Check that the caller has a key, or needs none.

    Raises:
        APIError: the caller is the admin or has no key.
    """
    if caller.role in {CallerRole.ADMIN, CallerRole.NOBODY}:
        message = "The administrator starts no runs: create a key and use it."
        raise APIError(403, "permission_denied", message)


def permitted_workers(caller: Caller, served: ServedModel, pool: Pool) -> Pool:
    """Return the workers of `pool` that this caller may use.

    Raises:
        APIError: the caller is the admin or has no key, or may not use the model, its conductor or
            any of its workers.
    """
    check_starts_runs(caller)
    if caller.role is CallerRole.LOCAL:
        return pool
    policy = caller.permissions
    model = served.name
    if not policy.allows_model(model):
        message = f"This key may not use the model '{model}'; GET /v1/models lists those it may."
        raise APIError(403, "model_not_allowed", message, param="model")
    if policy.allows_all_workers:
        return pool
    permitted = [worker.id for worker in pool if policy.allows_worker(worker)]
    if not permitted:
        message = f"This key allows no worker of the model '{model}'."
        raise APIError(403, "permission_denied", message, param="model")
    conductor = conductor_worker(served.conductor)
    if conductor is not None and not policy.allows_worker(conductor):
        message = f"This key does not allow the worker '{conductor.id}', which conducts '{model}'."
        raise APIError(403, "permission_denied", message, param="model")
    return pool if len(permitted) == len(pool) else pool.subset(permitted)


def caller_limits(caller: Caller, limits: Limits) -> Limits:
    """Return the limits, lowered to the key's maximum cost per request if it has one."""
    most = caller.permissions.max_cost
    if most is None or (limits.usd is not None and limits.usd <= most):
        return limits
    return replace(limits, usd=float(most))


def caps_of(caller: Caller) -> Mapping[str, PeriodCaps]:
    """Return the caps of the caller's accounts per day and month, in billionths of a dollar."""
    permissions = caller.permissions
    tenant_caps = (caller.per_day, caller.per_month)
    return _read_caps(
        caller.tenant, caller.key, tenant_caps, (permissions.per_day, permissions.per_month)
    )


_UsdCaps = tuple[Decimal | None, Decimal | None]
_KNOWN_CALLERS = 1024


@lru_cache(maxsize=_KNOWN_CALLERS)  # they rarely change between requests of a key
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
    """Return the budgets that pay for a run; `at` is its time in seconds since the epoch."""
    day = utc_day(at)
    return tuple(
        Bucket(account, period, cap)
        for account, caps in caps_of(caller).items()
        for cap, period in zip(caps, (day, utc_month(day)), strict=True)
        if cap is not None
    )


@dataclass(slots=True, kw_only=True)
class Admission:
    """The shares of its caller's rates, concurrency and budgets that a call holds."""

    run_id: RunId
    """The id under which the call counts towards its key's concurrency."""
    model: str = ""
    """The name of the served model."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The rate-limit headers of the response, by name."""
    charge: RunCharge = field(default_factory=RunCharge)
    """The tenant and key that pay for the run, and the reservation in their budgets."""
    expected_tokens: int = 0
    """Tokens that the key's rate limit has counted before the run; 0 without such a limit."""
    taken_tokens: Taken | None = None
    """The tokens counted by the limiter; None: counted at submission, settled, or no limit."""
    in_concurrency: bool = False
    """True while the call counts towards its key's concurrency."""
    is_settled: bool = False
    """Whether the run was passed to the store, which settles its reservation."""
    is_durable: bool = False
    """Whether another process resumes the run if this one dies; its reservation is then kept."""
    key_work: KeyWork | None = None
    """The run as watched by `KeyWatch`; None before it begins, or without a key."""
    reserved_budget: ReservedBudget | None = None
    """The reservation in the caller's budgets, if any."""

    @property
    def has_lost_key(self) -> bool:
        """True if the run was cancelled because its key became invalid."""
        return self.key_work is not None and self.key_work.refusal is not None

    @property
    def final_charge(self) -> RunCharge:
        """The payer, and the minimum that budgets count for the run."""
        held = self.reserved_budget
        return self.charge if held is None else replace(self.charge, counted=held.counted)


@final
class AdmissionController:
    """Admits calls and releases what they hold."""

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
        """Take from the caller's rates, concurrency and budgets; `release` must follow.

        Nothing is taken for a caller without a key.

        Args:
            caller: the caller.
            call: the call.
            admission: records what the call holds.
            bound_cost: returns an upper bound on the cost of the run's first calls.
            in_background: whether a job runs the call; `KeyLimitGate` then counts the job instead.
            already_counted: whether the rate limits counted the call when it was submitted.
            durable: whether another process resumes the run, with its reservation, if this one
                dies.

        Raises:
            APIError: the key has too many runs, requests or tokens, a budget is exhausted, or the
                budgets cannot be read; nothing is held.
        """
        admission.charge = RunCharge(tenant=caller.tenant, key=caller.key, at=time())
        admission.is_durable = durable
        if caller.key is None:
            return
        key = caller.key
        with self._count_refusals(caller.tenant, key):
            if not in_background:
                await self._enter_concurrency(caller, key, admission)
            try:
                expected = 0 if caller.permissions.tpm is None else await _expected_tokens(call)
                if not already_counted:
                    windows = await self._take_rates(caller, key, expected)
                    admission.headers = {n: v for w in windows for n, v in w.headers().items()}
                    admission.taken_tokens = windows[-1].taken if expected else None
                admission.expected_tokens = expected
                await self._reserve_budget(admission, caller, call, bound_cost=bound_cost)
            except BaseException:
                await self._leave_concurrency(key, admission)
                await self.give_back_tokens(admission)
                raise

    @contextmanager
    def _count_refusals(self, tenant: str, key: str) -> Generator[None]:
        """Count the block's refusals with status 429, so that operators see why calls fail."""
        try:
            yield
        except APIError as refusal:
            if refusal.status == TOO_MANY_REQUESTS and self._store is not None:
                self._store.refusals.note(tenant, key, refusal.code)
            raise

    async def count_tokens(self, caller: Caller, admission: Admission, run: Run) -> None:
        """Correct the counted tokens to those that the finished run used."""
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
        """Give back counted tokens that were not used; do nothing if they were settled before.

        Args:
            admission: holds the counted tokens.
            unused: the number of unused tokens; None: all, since nothing ran.
        """
        taken, admission.taken_tokens = admission.taken_tokens, None
        if taken is not None:
            await self._rate_limiter.give_back(taken, taken.amount if unused is None else unused)

    async def release(self, caller: Caller, admission: Admission) -> None:
        """Leave the concurrency; release the reservation unless it was settled or is durable.

        If the database fails, the reservation is released later.
        """
        if caller.key is not None:
            await self._leave_concurrency(caller.key, admission)
        held = admission.charge.reservation
        if held is None or admission.is_settled or admission.is_durable or self._store is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                counted = admission.final_charge.counted or Decimal(0)
                await self._store.budgets.release(held, usd_to_nano(counted))
            except StoreError as error:  # `budgets` tries again
                _LOG.warning("a reservation could not be released: %s", error)

    async def _enter_concurrency(self, caller: Caller, key: str, admission: Admission) -> None:
        most = caller.permissions.concurrency
        await enter_concurrency(self._rate_limiter, key, admission.run_id, most)
        admission.in_concurrency = True

    async def _leave_concurrency(self, key: str, admission: Admission) -> None:
        if admission.in_concurrency:
            admission.in_concurrency = False
            await self._rate_limiter.concurrency.leave(key, admission.run_id)

    async def _take_rates(self, caller: Caller, key: str, expected: int) -> list[RateWindow]:
        policy, windows = caller.permissions, list[RateWindow]()
        if policy.rpm is not None:
            windows.append(await self._rate_limiter.take(REQUESTS, key, policy.rpm))
            check_rate(windows)
        if policy.tpm is not None:
            if expected > policy.tpm:
                message = (
                    f"The question has about {expected} tokens, but this key may use "
                    f"{policy.tpm} tokens per minute: shorten it."
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
        """Reserve what the run's first calls can cost; the run reserves more before later ones."""
        charge, run_id = admission.charge, admission.run_id
        buckets = buckets_of(caller, charge.at or 0.0)
        if self._store is None or not (buckets or admission.is_durable):
            return
        durable, budgets = admission.is_durable, self._store.budgets
        first_calls = await read_off_loop(call.question.messages, bound_cost)
        least = usd_to_nano(first_calls.least_usd)
        try:
            if durable and await budgets.is_settled(run_id):
                return  # the run has ended; only its result is sent again
            held = await budgets.find_job_reservation(run_id, caps_of(caller)) if durable else None
            if held is None and not buckets:
                return
            if held is not None:  # a resumed run is charged to the day of its reservation
                charge = replace(charge, at=held[1])
            found = (
                held[0]
                if held is not None
                else await budgets.reserve(
                    run_id,
                    usd_to_nano(first_calls.usd),
                    buckets,
                    tenant=caller.tenant,
                    key=caller.key,
                    model=admission.model,
                    for_job=durable,
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
"""Maximum number of ignored fields that the header `x-batuta-ignored` names."""
_OUTCOMES_WITHOUT_ANSWER = {Outcome.FAILED, Outcome.CANCELLED, Outcome.REFUSED}
_HEADER_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(slots=True, kw_only=True)
class PreparedCall:
    """A call that is ready to run, with its model, workers, limits and policies.

    `session` and `in_session` are set when the call joins its session.
    """

    call: ParsedCall
    caller: Caller
    served_model: ServedModel
    pool: Pool
    limits: Limits
    clients: Mapping[WorkerId, Client]
    run_id: RunId
    session: str | None = None
    """The id of the call's session, if any."""
    in_session: SessionCall | None = None
    """The call as a request of that session."""
    revise: WorkflowRevision | None = None
    """Revises the conductor's workflows for the session."""
    admission: Admission
    """The shares of its caller's rates, concurrency and budgets that the call holds."""
    guardrails: Guardrails = NO_GUARDRAILS
    guarded: tuple[GuardrailTriggered, ...] = ()
    """Guardrail findings in the caller's workflow, and rules that excluded workers."""
    rules: PlanRules = NO_RULES
    """Rules that the run's workflows must keep."""
    approvals: tuple[ApprovalRule, ...] = ()
    """Rules by which a person must approve a plan before it runs."""
    min_confidence: float | None = None
    """The confidence below which an answer counts as unsure; None: no confidence is required."""
    refuses_unsure: bool = False
    """Whether an unsure answer is refused instead of marked."""
    resumed: ResumeState | None = None
    """The paused workflow that continues with the results of client tools."""
    auxiliary: str | None = None
    """The kind of an agent's own request, such as a title; None for a user's question."""
    will_resume: Callable[[], bool] = lambda: False
    """Whether another process will resume the run if it is cancelled now."""
    repeatable: RepeatableCall | None = None
    """The cache key of the call; None if its answer must not be cached."""
    earlier: Run | None = None
    """The cached run whose answer is returned, if any."""
    cache_result: str = "miss"
    """The result of the cache: `hit`, `similar` or `miss`."""
    chosen: ChosenArm | None = None
    """The arm that exploration has chosen, if any; it may be the default."""

    @property
    def can_stream(self) -> bool:
        """True if text is to be streamed as it arrives, since nothing will replace or block it."""
        settled = self.served_model.solver is None and self.min_confidence is None
        return self.call.stream and settled and GuardrailStage.OUTPUT not in self.guardrails.stages

    @property
    def headers(self) -> dict[str, str]:
        """The response headers known before the run."""
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
            headers["x-batuta-lowered"] = ", ".join(f"{n}={v:.15g}" for n, v in lowered.items())
        return headers

    def error_for(self, run: Run) -> APIError | None:
        """Return the error for the caller; None if the run has an answer that may be returned."""
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
