"""Whether a call may be played: scope, rate, concurrency, money. One way for every dialect.

What a key may not do is refused before anything is played; what a run takes from a budget is set
apart before it and settled with the run; whatever happens in between is given back.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import ceil
from time import time
from typing import final

import anyio

from batuta.config import PROMPTED
from batuta.core import Limits, Pool, Run, RunId, Worker
from batuta.errors import StoreError
from batuta.gateway.caller import Caller, Role
from batuta.gateway.funds import ReservedFunds
from batuta.gateway.models import Served
from batuta.gateway.rate import REQUESTS, TOKENS, LocalRates, Rates, Window
from batuta.gateway.refusal import Refusal
from batuta.gateway.wire.call import Call
from batuta.gateway.worst import FirstCalls, prompt_of
from batuta.store import Store
from batuta.store.ledger import (
    Bucket,
    Charge,
    accounts_of,
    cap_of,
    day_of,
    dollars_of,
    month_of,
    nano_of,
)
from batuta.store.spending import Exhausted

_LOG = logging.getLogger(__name__)


def mind_of(served: Served) -> Worker | None:
    """The worker whose model writes the workflows, if one does: it hears the question first."""
    name = served.conductor.name if served.conductor is not None else ""
    mind = name.removeprefix(PROMPTED)
    return served.pool[mind] if name.startswith(PROMPTED) and mind in served.pool else None


def permitted(caller: Caller, served: Served, pool: Pool) -> Pool:
    """The workers of `pool` that may hear this caller's question.

    Raises:
        Refusal: the caller may not ask that model, or nobody may hear it.
    """
    if caller.role in {Role.ADMIN, Role.NOBODY}:
        message = "The admin's token plays no runs: make a key and use that."
        raise Refusal(403, "permission_denied", message)
    policy = caller.policy
    model = served.name
    if not policy.allows_model(model):
        message = f"This key may not use the model '{model}'; GET /v1/models lists those it may."
        raise Refusal(403, "model_not_allowed", message, param="model")
    if policy.open_to_all:
        return pool
    left = [worker.id for worker in pool if policy.allows_worker(worker)]
    if not left:
        message = f"This key allows no worker of the model '{model}'."
        raise Refusal(403, "permission_denied", message, param="model")
    mind = mind_of(served)
    if mind is not None and not policy.allows_worker(mind):
        message = f"This key does not allow the worker '{mind.id}', which conducts '{model}'."
        raise Refusal(403, "permission_denied", message, param="model")
    return pool if len(left) == len(pool) else pool.subset(left)


def bounded(caller: Caller, limits: Limits) -> Limits:
    """The limits, with what the key allows one request to cost."""
    most = caller.policy.max_cost
    if most is None or (limits.usd is not None and limits.usd <= most):
        return limits
    return replace(limits, usd=float(most))


def buckets_of(caller: Caller, at: float) -> tuple[Bucket, ...]:
    """The budgets that a run of that moment takes from."""
    day = day_of(at)
    caps: dict[str, tuple[Decimal | None, Decimal | None]] = {
        "tenant": (caller.per_day, caller.per_month),
        "key": (caller.policy.per_day, caller.policy.per_month),
    }
    return tuple(
        Bucket(account, period, cap_of(cap))
        for account in accounts_of(caller.tenant, caller.key)
        for cap, period in zip(caps[account.partition(":")[0]], (day, month_of(day)), strict=True)
        if cap is not None
    )


@dataclass(slots=True)
class Admission:
    """What one call holds while it is played."""

    limits: Limits
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """What is left of the caller's rates."""
    charge: Charge = field(default_factory=Charge)
    expected: int = 0
    """Tokens that the key's rate counts already, if it has one."""
    settled: bool = False
    """Whether the run was handed to the store with its reservation."""
    lasting: bool = False
    """Whether what is not settled waits for the next process that plays the run."""
    funds: ReservedFunds | None = None
    """What is reserved for the run of its caller's budgets, if there are any."""


@final
class Turnstile:
    """Lets calls in one by one, and out again."""

    def __init__(self, store: Store | None, rates: Rates | None = None) -> None:
        self._store = store
        self._rates = rates or LocalRates()
        self._inside: Counter[str] = Counter()

    async def enter(
        self,
        caller: Caller,
        call: Call,
        run_id: RunId,
        limits: Limits,
        first: Callable[[], FirstCalls],
        *,
        counted: bool = False,
        lasting: bool = False,
    ) -> Admission:
        """Takes from the caller's rates and budgets; `leave` must follow.

        Args:
            caller: who asks.
            call: what is wanted.
            run_id: the run's id.
            limits: of the run.
            first: the most that the run's first calls can cost.
            counted: the rates were taken from when the call was submitted to be played later.
            lasting: the run is taken up again if this process ends before it does, and has what
                it set apart before.

        Raises:
            Refusal: too many runs or tokens, or no money; nothing is held.
        """
        charge = Charge(caller.tenant, caller.key, time())
        if caller.key is None:
            return Admission(limits, charge=charge)
        self._sit(caller, caller.key, checked=counted)
        try:
            expected = 0 if caller.policy.tpm is None else _expected(call)
            windows = [] if counted else await self._count(caller, caller.key, expected)
            headers = {name: value for w in windows for name, value in w.headers().items()}
            admission = Admission(limits, headers, charge, expected, lasting=lasting)
            await self._reserve(admission, caller, call, run_id, first)
        except BaseException:
            self._rise(caller.key)
            raise
        return admission

    async def used(self, caller: Caller, admission: Admission, run: Run) -> None:
        """Counts the tokens of a run that has ended."""
        cap = caller.policy.tpm
        if cap is not None and caller.key is not None:
            await self._rates.add(TOKENS, caller.key, cap, run.usage.total - admission.expected)

    async def leave(self, caller: Caller, admission: Admission) -> None:
        """Lets the call out; what was reserved and not settled is given back."""
        if caller.key is not None:
            self._rise(caller.key)
        held = admission.charge.reservation
        if held is None or admission.settled or admission.lasting or self._store is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await self._store.budgets.release(held)
            except StoreError as error:  # it expires when this process ends
                _LOG.warning("a reservation could not be given back: %s", error)

    def _sit(self, caller: Caller, key: str, *, checked: bool) -> None:
        most = caller.policy.concurrency
        if not checked and most is not None and self._inside[key] >= most:
            message = f"This key may have {most} requests at the same time; wait for one to end."
            raise Refusal(429, "rate_limit_exceeded", message, headers=_patience(1.0))
        self._inside[key] += 1

    def _rise(self, key: str) -> None:
        self._inside[key] -= 1
        if self._inside[key] <= 0:
            del self._inside[key]

    async def _count(self, caller: Caller, key: str, expected: int) -> list[Window]:
        """Takes the request and its expected tokens from the key's rates."""
        policy, windows = caller.policy, list[Window]()
        if policy.rpm is not None:
            windows.append(await self._rates.take(REQUESTS, key, policy.rpm))
            _pass(windows)
        if policy.tpm is not None:
            if expected > policy.tpm:
                message = (
                    f"The question has about {expected} tokens and this key may use {policy.tpm} "
                    "a minute: shorten it."
                )
                raise Refusal(429, "rate_limit_exceeded", message, headers=_NO_RETRY)
            windows.append(await self._rates.take(TOKENS, key, policy.tpm, expected))
            _pass(windows)
        return windows

    async def _reserve(
        self,
        admission: Admission,
        caller: Caller,
        call: Call,
        run_id: RunId,
        first: Callable[[], FirstCalls],
    ) -> None:
        """Sets apart what the run's first calls can cost; the run grows it before later ones."""
        buckets = buckets_of(caller, admission.charge.at or 0.0)
        if not buckets or self._store is None:
            return
        lasting, budgets, wanted = admission.lasting, self._store.budgets, first()
        least = nano_of(wanted.least)
        try:
            if lasting and await budgets.settled(run_id):
                return  # it ended, and is only told again
            held = await budgets.held(run_id, buckets) if lasting else None
            found = held or await budgets.reserve(
                run_id,
                nano_of(wanted.usd),
                buckets,
                tenant=caller.tenant,
                key=caller.key,
                model=call.model,
                lasting=lasting,
                least=least,
            )
        except StoreError as error:
            _LOG.error("budgets cannot be checked: %s", error)
            message = "The budget cannot be checked now; try again."
            raise Refusal(503, "overloaded", message, headers=_patience(1.0)) from None
        if isinstance(found, Exhausted):
            raise _exhausted(found, least)
        admission.charge = replace(admission.charge, reservation=found)
        admission.funds = ReservedFunds(budgets, found)


_NO_RETRY = {"x-should-retry": "false"}


def _expected(call: Call) -> int:
    return max(1, prompt_of(call.question))


def _pass(windows: list[Window]) -> None:
    """Nothing, if the last one let the call through.

    Raises:
        Refusal: it did not.
    """
    last = windows[-1]
    if last.allowed:
        return
    message = f"This key may use {last.cap} {last.what} a minute; try again in {last.reset:.1f} s."
    headers = {name: value for w in windows for name, value in w.headers().items()}
    raise Refusal(429, "rate_limit_exceeded", message, headers=headers | _patience(last.reset))


def _exhausted(found: Exhausted, asked: int) -> Refusal:
    """Whose budget it is, what is left of it, and what can be done."""
    bucket = found.bucket
    owner = "tenant" if bucket.account.startswith("tenant:") else "key"
    span = "day" if bucket.period.count("-") > 1 else "month"
    left, wanted = _money(found.left), _money(asked)
    message = (
        f"The {owner}'s budget of ${dollars_of(bucket.cap):f} a {span} has ${left} left and this "
        f"run may cost ${wanted} even with a short answer: shorten the question, ask a cheaper "
        "model, or ask for a larger budget."
    )
    return Refusal(429, "budget_exceeded", message, headers=_NO_RETRY)


def _money(nano: int) -> str:
    return f"{dollars_of(nano):.6f}".rstrip("0").rstrip(".") or "0"


def _patience(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, ceil(seconds))), "retry-after-ms": str(ceil(seconds * 1000))}
