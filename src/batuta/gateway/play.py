"""The one way from a call to its run: every dialect, whole, streamed or in the background.

What must happen to each request whatever its form - who may ask, what it may spend, what is kept
of it - happens in `Player.book` (before anything is said to the reader) and `Player.play`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import final

import anyio

from batuta.baselines import Players, Solver
from batuta.baselines.solver import Stage
from batuta.core import (
    Client,
    Emit,
    Limits,
    Outcome,
    Pool,
    Resumed,
    Run,
    RunId,
    WorkerId,
)
from batuta.engine import Recorder, conduct, new_run_id
from batuta.errors import StoreError
from batuta.gateway.abilities import check_form, in_form, seeing
from batuta.gateway.admission import Admission, Turnstile, bounded, mind_of, permitted
from batuta.gateway.caller import Caller
from batuta.gateway.effort import ceiling_of, limits_of, planner_of, players_of
from batuta.gateway.middleware import log_fault
from batuta.gateway.models import Orchestra, Served
from batuta.gateway.refusal import Refusal, no_model, unsupported, wrong_value
from batuta.gateway.verdict import refusal_of
from batuta.gateway.wire.call import Call
from batuta.gateway.wire.orchestration import FIELD
from batuta.gateway.worst import FirstCalls, first_calls
from batuta.policies import Place, Policies
from batuta.solvers import Fixed

_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Booking:
    """A call that can be played: everything was looked up and found."""

    call: Call
    caller: Caller
    served: Served
    pool: Pool
    limits: Limits
    clients: Mapping[WorkerId, Client]
    run_id: RunId
    admission: Admission
    """What the call holds of its caller's rates and budgets."""
    policies: Policies = field(default_factory=Policies)
    resumed: Resumed | None = None
    """The workflow that goes on with the results of its tools."""
    goes_on: Callable[[], bool] = lambda: False
    """Whether a run that is cancelled now is taken up again by another process."""

    @property
    def live(self) -> bool:
        """Whether words can be shown as they come: nothing will replace them or forbid them."""
        settled = self.limits.rounds == 1 and self.served.solver is None
        unchecked = self.call.question.response_format is None
        return self.call.stream and settled and unchecked and not self.policies.on(Place.OUTPUT)

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's headers say before anything is played."""
        headers = {"x-batuta-run-id": str(self.run_id), **self.admission.headers}
        ignored = [name for name in self.call.ignored if _SAFE.fullmatch(name)]
        if ignored:
            headers["x-batuta-ignored"] = ", ".join(ignored)
        return headers

    def verdict(self, run: Run) -> Refusal | None:
        """The error that the caller gets; None if the run has an answer."""
        return refusal_of(run, direct=self.served.direct)


def seed_of(run_id: RunId) -> int:
    """A seed that nobody can guess who does not know the run's id."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4]) >> 1


@final
class Player:
    """Books calls and plays them."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra
        self._turnstile = Turnstile(orchestra.store, orchestra.rates)
        self._waiting = orchestra.waiting

    def served(self, name: str) -> Served:
        """The model served under that name.

        Raises:
            Refusal: there is none.
        """
        served = self._orchestra.find(name)
        if served is None:
            raise no_model(name, self._orchestra.absent.get(name))
        return served

    @asynccontextmanager
    async def book(
        self,
        call: Call,
        caller: Caller,
        *,
        run_id: RunId | None = None,
        counted: bool = False,
        lasting: bool = False,
    ) -> AsyncGenerator[Booking]:
        """A booking for the length of a block, in which it is played once or not at all.

        Args:
            call: what is wanted.
            caller: who wants it.
            run_id: the id that the run shall have; None: a new one.
            counted: it was booked before, to be played later: its caller's rates know it.
            lasting: it is taken up again if this process ends before it does.

        Raises:
            Refusal: the call cannot be played; nothing was, and nothing was said to the reader.
        """
        booking = self._booking(call, caller, run_id or new_run_id())
        resumed = await self._waiting.continued(call.question, booking.pool, caller.tenant)
        if resumed is not None and not call.wishes.dry_run:
            booking = replace(booking, resumed=resumed)

        def first() -> FirstCalls:
            served, pool, mind = booking.served, booking.pool, mind_of(booking.served)
            question, limits = call.question, booking.limits
            return first_calls(question, pool, limits, direct=served.direct, mind=mind)

        admission = await self._turnstile.enter(
            caller,
            call,
            booking.run_id,
            booking.limits,
            first,
            counted=counted,
            lasting=lasting,
        )
        try:
            # After the key, its rates and its money: whoever may not ask is told so for nothing.
            await check_form(call.question)
            yield replace(booking, limits=admission.limits, admission=admission)
        finally:
            await self._turnstile.leave(caller, admission)

    async def play(self, booking: Booking, emit: Emit | None = None) -> Run:
        """Conducts and keeps the run, also if this is cancelled."""
        recorder = Recorder()
        question, served = booking.call.question, booking.served
        if served.solver is not None:
            return await self._solve(booking, served.solver, emit)
        assert served.conductor is not None  # noqa: S101 - one of the two is there
        try:
            return await conduct(
                question,
                served.conductor,
                booking.pool,
                booking.clients,
                limits=booking.limits,
                funds=booking.admission.funds,
                seed=question.sampling.seed,
                emit=self._orchestra.metrics.ear(served.name, emit),
                live=booking.live,
                fallback=served.fallback,
                model=served.name,
                run_id=booking.run_id,
                recorder=recorder,
                resumed=booking.resumed,
                patience=self._orchestra.patience,
                policies=booking.policies,
                dry_run=booking.call.wishes.dry_run,
                pace=self._pace,
            )
        finally:
            if recorder.ended is not None:
                await self._keep(booking, recorder.run())

    def _pace(self, worker_id: WorkerId) -> float | None:
        """Seconds that a call of the worker takes, as far as was seen."""
        health = self._orchestra.health.get(worker_id)
        return health.seconds if health else None

    def _booking(self, call: Call, caller: Caller, run_id: RunId) -> Booking:
        served, workflow = self.served(call.model), call.wishes.workflow
        clients: Mapping[WorkerId, Client] = self._orchestra.clients
        effort = call.question.sampling.effort if workflow is None else None
        limits = bounded(caller, call.wishes.limits(limits_of(effort, served), ceiling_of(served)))
        if call.wishes.dry_run and served.solver is not None:
            raise unsupported(f"{FIELD}.dry_run", f"{served.name} writes no workflow.")
        if workflow is not None:
            by_hand = Fixed("by-hand", lambda _: workflow)
            served = replace(served, conductor=by_hand, solver=None, direct=False)
        elif served.calls is not None and limits.steps < served.calls:
            raise wrong_value(f"{FIELD}.max_steps", f"{served.name} makes {served.calls} calls.")
        allowed = permitted(caller, served, call.wishes.cast(served.pool))
        call.wishes.check(allowed, limits)
        pool = seeing(players_of(effort, served, allowed), call.question)
        served = planner_of(effort, served)
        call.wishes.check(pool, limits)
        return Booking(
            call,
            caller,
            served,
            pool,
            limits,
            clients,
            run_id,
            Admission(limits),
            self._orchestra.policies,
        )

    async def _solve(self, booking: Booking, solver: Solver, emit: Emit | None) -> Run:
        """The solver's run, kept also if this is cancelled."""
        question, recorder = booking.call.question, Recorder()
        stage = Stage(booking.run_id, booking.served.name, emit, recorder, booking.admission.funds)
        players = Players(booking.pool, booking.clients, booking.limits, stage)
        wanted = question.sampling.seed
        # Of a new run anything, of one that a crash cut off the same again.
        seed = seed_of(booking.run_id) if wanted is None else wanted
        run: Run | None = None
        try:
            run = await in_form(await solver.answer(question, players, seed))
            return run
        finally:
            if recorder.ended is not None:
                await self._keep(booking, run or recorder.run())

    async def _keep(self, booking: Booking, run: Run) -> None:
        """Stores the run and settles its cost; an answer is not lost because the disk fails."""
        if run.outcome is Outcome.CANCELLED and booking.goes_on():
            return  # this is not its end: what it paid for is kept by its job
        store, caller, admission = self._orchestra.store, booking.caller, booking.admission
        self._orchestra.ran(run, caller.tenant)
        with anyio.CancelScope(shield=True):
            self._waiting.admit(run, caller.tenant)
            await self._turnstile.used(caller, admission, run)
            if store is None:
                return
            try:
                await store.append(
                    run, caller.tenant, keep=booking.call.store, charge=admission.charge
                )
                admission.settled = True
            except StoreError as error:
                log_fault(error)
