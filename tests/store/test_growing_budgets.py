"""Reservations that grow with their run, on both databases and over two replicas."""

from __future__ import annotations

import random
import time
from decimal import Decimal

import anyio
import pytest
from tests.engine.test_budget import PRICE, Q, Spender
from tests.store.test_budgets import DAY, NOW, bucket

from batuta.conductors import FixedConductor
from batuta.core import Limits, Pool, Price, RunId, Step, Worker, WorkerId, Workflow
from batuta.engine import RunHooks, conduct, new_run_id
from batuta.errors import LimitReachedError, StoreError
from batuta.gateway.serving.reserved_budget import ReservedBudget
from batuta.store import Store
from batuta.store.ledger import BudgetStatus, Reservation, RunCharge, nano_to_usd, usd_to_nano

pytestmark = pytest.mark.anyio


async def test_it_grows_in_every_bucket_or_in_none(target):
    async with Store(target) as store:
        buckets = (bucket(1000), bucket(700, "key:k"))
        held = await store.budgets.reserve(RunId("run_1"), 500, buckets)
        more = await store.budgets.grow(held, 100, 100)  # pyright: ignore[reportArgumentType]
        assert (more.id, more.nano) == (held.id, 600)  # pyright: ignore[reportAttributeAccessIssue]
        assert await store.budgets.grow(more, 101, 101) == BudgetStatus(buckets[1], 0, 600)  # pyright: ignore[reportArgumentType]
        most = await store.budgets.grow(more, 400, 50)  # as much as there is  # pyright: ignore[reportArgumentType]
        assert most.nano == 700  # pyright: ignore[reportAttributeAccessIssue]
        assert [full.reserved for full in await store.budgets.budget_status(buckets)] == [700, 700]
        await store.budgets.release(most)  # pyright: ignore[reportArgumentType]
        assert [full.reserved for full in await store.budgets.budget_status(buckets)] == [0, 0]


async def test_what_there_is_will_do_where_that_is_enough(target):
    async with Store(target) as store:
        buckets = (bucket(1000), bucket(700, "key:k"))
        refused = await store.budgets.reserve(RunId("run_1"), 2000, buckets, least=701)
        assert isinstance(refused, BudgetStatus)
        found = await store.budgets.reserve(RunId("run_1"), 2000, buckets, least=100)
        assert found.nano == 700  # pyright: ignore[reportAttributeAccessIssue]


async def test_what_has_ended_with_its_lease_does_not_grow(target):
    async with Store(target) as living, Store(target) as dying:
        held = await dying.budgets.reserve(RunId("run_1"), 500, (bucket(1000),))
        held = await dying.budgets.grow(held, 300, 300)  # pyright: ignore[reportArgumentType]
        await dying.budgets.close()  # it renews nothing any more
        now = time.monotonic()
        assert await living.budgets.reap(now) == 0
        assert await living.budgets.reap(now + 100) == 1
        with pytest.raises(StoreError, match="not renewed in time"):
            await dying.budgets.grow(held, 10, 10)  # pyright: ignore[reportArgumentType]
        funds = ReservedBudget(dying.budgets, held)  # pyright: ignore[reportArgumentType]
        with pytest.raises(LimitReachedError, match="the next call may spend none of it"):
            await funds.raise_to(nano_to_usd(900), nano_to_usd(900))
        [full] = await living.budgets.budget_status([bucket(1000)])
        assert (full.spent, full.reserved) == (0, 0)  # all that it had grown to was given back


async def test_many_grow_at_once_on_two_replicas_and_the_cap_holds(target):
    async with Store(target) as one, Store(target) as two:
        held = {
            store: [
                await store.budgets.reserve(new_run_id(), 10, (bucket(2000),)) for _ in range(8)
            ]
            for store in (one, two)
        }
        grown = []

        async def grow(store, found, amount):
            more = await store.budgets.grow(found, amount, amount // 2)
            grown.append(more.nano if isinstance(more, Reservation) else found.nano)

        rng = random.Random(7)
        async with anyio.create_task_group() as tasks:
            for store, several in held.items():
                for found in several:
                    tasks.start_soon(grow, store, found, rng.randrange(100, 400))
        await two.budgets.give_back_leases()
        [full] = await one.budgets.budget_status([bucket(2000)])
        assert 1800 < full.reserved == sum(grown) <= 2000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_runs_of_two_replicas_spend_no_more_than_there_is(target, seed):
    """Random prices, parallel steps, retries and limits of callers; each worker costs all it can."""
    rng = random.Random(seed)
    cap = bucket(usd_to_nano(Decimal(rng.randrange(50, 400)) / 1000), "key:k")
    workers = tuple(
        Worker(id=WorkerId(f"w{n}"), model="m", price=rng.choice([PRICE, None, Price(input=Decimal(rng.randrange(9)), output=Decimal(rng.randrange(40)))]))
        for n in range(3)
    )  # fmt: skip
    costs = []

    async def spend(store):
        flow = Workflow(
            tuple(
                Step(
                    subtask="x",
                    worker=rng.choice(workers).id,
                    access=tuple(i for i in range(n) if rng.random() < 0.3),
                )
                for n in range(rng.randrange(1, 5))
            )
        )
        usd = rng.choice([None, 1e-9, 0.01, 0.2])
        run_id = new_run_id()
        found = await store.budgets.reserve(run_id, usd_to_nano(Decimal("0.07")), (cap,), least=0)
        if isinstance(found, BudgetStatus):
            return
        clients = {w.id: Spender(w, 0.002, rng.randrange(2)) for w in workers}
        funds = ReservedBudget(store.budgets, found)
        run = await conduct(
            Q,
            FixedConductor("by-hand", lambda _: flow),
            Pool(workers),
            clients,
            limits=Limits(usd=usd),
            hooks=RunHooks(funds=funds, run_id=run_id),
        )
        spent = sum(c.price(r)[1].usd for c in clients.values() for r in c.requests)
        assert usd is None or spent <= Decimal(str(usd))
        assert spent <= funds.granted
        costs.append(spent)
        await store.append(
            run, "acme", charge=RunCharge(tenant="acme", key="k", at=NOW, reservation=found)
        )

    async with Store(target) as one, Store(target) as two:
        async with anyio.create_task_group() as tasks:
            for store in (one, two) * 6:
                tasks.start_soon(spend, store)
        await one.flush()
        await two.flush()
        [full] = await one.budgets.budget_status([cap])
        assert full.reserved == 0
        assert sum(costs) * 10**9 <= full.spent + len(costs)
        assert full.spent <= cap.cap + len(costs)
        assert cap.period == DAY
