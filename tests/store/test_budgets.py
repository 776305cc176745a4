"""Budgets and the ledger, on both databases: the laws that money obeys."""

import subprocess
import sys
import time
from dataclasses import replace
from decimal import Decimal, localcontext

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from tests.store.strategies import make_run, runs

from batuta.core import Cost, RunId
from batuta.store import Store
from batuta.store.key_permissions import KeyPermissions
from batuta.store.ledger import (
    Bucket,
    BudgetStatus,
    Reservation,
    RunCharge,
    budgeted_nano,
    ledger_lines,
    usd_cap_to_nano,
    usd_to_nano,
    utc_day,
)
from batuta.store.spend_report import report_spending

pytestmark = pytest.mark.anyio
NOW = 1e9
DAY = utc_day(NOW)


def bucket(cap, account="tenant:acme", period=DAY):
    return Bucket(account, period, cap)


def costing(number, usd, **header):
    """A run whose only step cost that much."""
    run = make_run(number, started=NOW, **header)
    [round_] = run.rounds
    [step] = round_.steps
    step = replace(step, result=replace(step.result, cost=Cost(Decimal(usd))))
    decision = replace(round_.decision, draft=replace(round_.decision.draft, cost=Cost()))
    return replace(run, rounds=(replace(round_, steps=(step,), decision=decision),))


def charge(reservation=None, key="k"):
    return RunCharge(tenant="acme", key=key, at=NOW, reservation=reservation)


@settings(
    deadline=None,
    max_examples=settings().max_examples * 30 // 100,
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
)
@given(runs)
def test_the_lines_of_a_run_add_up_to_its_cost(run):
    with localcontext(prec=500):  # by default decimals have 28 digits: dollars have 20 at most
        lines = ledger_lines(run)
        assert sum((line.cost for line in lines), Cost()) == run.cost
    assert sum(line.usage.calls for line in lines) == run.usage.calls
    assert len({(line.kind, line.name) for line in lines}) == len(lines)
    assert budgeted_nano(lines) >= 0


@given(st.decimals(0, 10**6, places=15))
def test_billionths_are_never_less_than_the_dollars_and_caps_never_more(usd):
    assert usd_to_nano(usd) >= usd * 10**9 > usd_to_nano(usd) - 1
    assert usd_cap_to_nano(usd) <= usd * 10**9 < usd_cap_to_nano(usd) + 1


def test_dollars_of_any_size_are_converted_at_once():
    huge = Decimal("1e999990")
    assert usd_cap_to_nano(huge) == 2**63 - 1
    assert usd_to_nano(huge) == 2**53
    for usd in (huge, Decimal("1e-999990"), Decimal("0e-999990")):
        with pytest.raises(ValueError, match="per_day is not a number of dollars"):
            KeyPermissions(per_day=usd)


async def test_no_more_than_the_cap_is_spent_and_reserved_at_the_same_time(target):
    async with Store(target) as one, Store(target) as two:
        cap, granted, refused = bucket(1000), [], []

        async def go(store, number):
            await anyio.sleep(0)
            name = RunId(f"run_{number}")
            found = await store.budgets.reserve(name, 90, (cap, bucket(10**6, "key:k")))
            (granted if isinstance(found, Reservation) else refused).append((store, number, found))

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(go, (one, two)[number % 2], number)
        assert len(granted) == 11
        assert {found.remaining for _, _, found in refused} == {10}
        [full] = await one.budgets.budget_status([cap])
        assert (full.spent, full.reserved) == (0, 990)
        for store, number, found in granted:
            run = costing(number, "0.00000005")
            await store.append(run, "acme", charge=charge(found))
        await one.flush()
        await two.flush()
        [full] = await one.budgets.budget_status([cap])
        assert (full.spent, full.reserved) == (11 * 50, 0)


@pytest.mark.parametrize("which", [0, 1])
async def test_every_bucket_or_none(target, which):
    async with Store(target) as store:
        buckets = [bucket(10**6), bucket(10**6, period=DAY[:7])]
        buckets[which] = buckets[which]._replace(cap=5)
        found = await store.budgets.reserve(RunId("r"), 6, tuple(buckets))
        assert found == BudgetStatus(buckets[which], 0, 0)
        assert [full.reserved for full in await store.budgets.budget_status(buckets)] == [0, 0]


async def test_a_run_that_has_ended_makes_room_for_the_next(target):
    async with Store(target) as store:
        for number in range(30):  # each holds all that is left until it is settled
            cap = (bucket(1000),)
            found = await store.budgets.reserve(RunId(f"run_{number}"), 900, cap)
            assert isinstance(found, Reservation), number
            run = costing(number, "0.000000003")
            await store.append(run, "acme", charge=charge(found))
        assert isinstance(await store.budgets.reserve(RunId("x"), 911, cap), BudgetStatus)


async def test_what_is_given_back_is_given_back_once(target):
    async with Store(target) as store:
        found = await store.budgets.reserve(RunId("run_1"), 700, (bucket(1000),))
        for _ in range(2):
            await store.budgets.release(found)  # pyright: ignore[reportArgumentType]
        await store.append(costing(1, "0.000000003"), "acme", charge=charge(found))
        await store.flush()
        [full] = await store.budgets.budget_status([bucket(1000)])
        assert (full.spent, full.reserved) == (3, 0)


async def test_a_run_is_billed_once(target):
    async with Store(target) as store:
        for _ in range(3):
            await store.append(costing(1, "0.5"), "acme", charge=charge())
            await store.flush()
        [full] = await store.budgets.budget_status([bucket(0)])
        assert full.spent == 5 * 10**8
        [found] = await report_spending(store.database, ("tenant",))
        assert found.cost.usd == Decimal("0.5")


@pytest.mark.parametrize("usd", ["0.1", "0.0000000000000000001", "123456789.000000001"])
async def test_the_ledger_is_exact(target, usd):
    async with Store(target) as store:
        for number in range(12):
            await store.append(costing(number, usd), "acme", charge=charge())
        await store.append(
            costing(99, "1"), "other", charge=RunCharge(tenant="other", key=None, at=NOW + 86400)
        )
        await store.flush()
        found = await report_spending(store.database, ("day", "tenant", "key", "kind", "worker"))
        worker = next(one for one in found if one.group[3:] == ("worker", "a") and one.group[2])
        assert worker.group == (DAY, "acme", "k", "worker", "a")
        assert worker.cost.usd == Decimal(usd) * 12
        assert worker.runs == 12
        listed = sum((one.cost.usd for one in await store.list(100)), Decimal(0))
        assert sum((one.cost.usd for one in found), Decimal(0)) == listed
        [only] = await report_spending(store.database, ("tenant",), until=DAY)
        assert only.group == ("acme",)
        with pytest.raises(ValueError, match="grouped by"):
            await report_spending(store.database, ("digest",))


async def test_a_run_that_is_not_kept_is_in_the_ledger(target):
    async with Store(target) as store:
        await store.append(costing(1, "0.25"), "acme", keep=False, charge=charge())
        assert await store.get("run_000001") is None
        await store.flush()
        assert await store.list() == []
        [found] = await report_spending(store.database, ("key",))
        assert found.cost.usd == Decimal("0.25")


async def test_what_a_dead_process_held_counts_as_spent_and_is_written_down_as_lost(target):
    async with Store(target) as living, Store(target) as dying:

        async def hold(store, number, nano):
            return await store.budgets.reserve(
                RunId(f"run_{number:06}"), nano, (bucket(1000),), tenant="acme", key="k", at=NOW
            )

        lost, mine = await hold(dying, 9, 800), await hold(living, 1, 100)
        assert isinstance(lost, Reservation)
        await dying.budgets.close()  # it renews nothing any more
        now = time.monotonic()
        assert await living.budgets.reap(now) == 0
        await living.budgets.renew(10**10)
        assert await living.budgets.reap(now + 100) == 1
        assert await living.budgets.reap(now + 200) == 0
        [full] = await living.budgets.budget_status([bucket(1000)])
        assert (full.spent, full.reserved) == (800, 100)
        [found] = await report_spending(living.database, ("kind",))
        assert found.group == ("lost",)
        assert found.cost == Cost(Decimal(0), 1)  # unknown, and not zero
        assert found.assumed_usd == Decimal("0.0000008")
        # It was not dead but slow: what it spent counts, and nothing counts twice.
        await dying.append(costing(9, "0.000000007"), "acme", charge=charge(lost))
        await dying.flush()
        await living.budgets.release(mine)
        [full] = await living.budgets.budget_status([bucket(1000)])
        assert (full.spent, full.reserved) == (7, 0)
        [found] = await report_spending(living.database, ("day",))
        assert (found.calls, found.assumed_usd) == (2, 0)


async def test_a_job_that_was_given_up_and_is_run_again_counts_once(target):
    async with Store(target) as store:
        buckets = (bucket(1000), bucket(10**6, period=DAY[:7]))

        async def hold():
            return await store.budgets.reserve(
                RunId("run_000009"), 300, buckets, tenant="acme", key="k", at=NOW, for_job=True
            )

        await hold()
        [held] = await store.budgets.job_reservations()
        assert await store.budgets.end_job_reservations([held.id]) == 1
        for full in await store.budgets.budget_status(buckets):
            assert (full.spent, full.reserved) == (300, 0)
        await store.append(costing(9, "0.000000007"), "acme", charge=charge(await hold()))
        await store.flush()
        for full in await store.budgets.budget_status(buckets):
            assert (full.spent, full.reserved) == (7, 0)


async def test_a_reservation_that_nobody_waits_for_is_given_back(target):
    async with Store(target) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                cap = (bucket(10**6),)
                tasks.start_soon(store.budgets.reserve, RunId(f"run_{number}"), 10, cap)
            await anyio.sleep(0)
            tasks.cancel_scope.cancel()
        await store.budgets.give_back_leases()
        [full] = await store.budgets.budget_status(cap)
        rows = await store.database.fetch_rows(text("SELECT nano FROM reservations"))
        assert full.reserved == sum(row["nano"] for row in rows)


PROCESS = """
import sys, anyio
from batuta.core import RunId
from batuta.store import Store
from batuta.store.ledger import Bucket, Reservation, RunCharge
from tests.store.test_budgets import NOW, costing, bucket
async def main():
    mine, done = int(sys.argv[2]), 0
    async with Store(sys.argv[1]) as store:
        async def go(number):
            nonlocal done
            found = await store.budgets.reserve(RunId(f"run_{number}"), 100, (bucket(5000),))
            if isinstance(found, Reservation):
                done += 1
                await store.append(costing(number, "0.0000001"), "acme", charge=RunCharge(tenant="acme", key="k", at=NOW, reservation=found))
        async with anyio.create_task_group() as tasks:
            for number in range(mine, mine + 60):
                tasks.start_soon(go, number)
    print(done)
anyio.run(main)
"""


@pytest.mark.slow
def test_two_processes_share_a_budget(target, anyio_backend):
    async def check():
        async with Store(target) as store:
            [full] = await store.budgets.budget_status([bucket(5000)])
            [found] = await report_spending(store.database, ("tenant",))
            return full, found

    async def made():
        async with Store(target):
            pass

    anyio.run(made, backend=anyio_backend)
    command = [sys.executable, "-c", PROCESS, str(target)]
    processes = [
        subprocess.Popen([*command, str(start)], stdout=subprocess.PIPE, text=True)
        for start in (0, 1000)
    ]
    done = [int(process.communicate()[0]) for process in processes]
    assert sum(done) == 50
    full, found = anyio.run(check, backend=anyio_backend)
    assert (full.spent, full.reserved) == (5000, 0)
    assert found.cost.usd == Decimal("0.0000001") * 50
    assert found.runs == 50


async def test_a_tenant_that_is_deleted_while_its_budget_is_set_was_there_or_is_new(target):
    tenants = []

    async def allow(store):
        tenants.append(await store.keys.set_tenant_budget("acme", Decimal(1), None))

    async with Store(target) as store:
        for _ in range(20):
            async with anyio.create_task_group() as group:
                group.start_soon(allow, store)
                group.start_soon(store.forgetting.forget_tenant, "acme")
    assert [(tenant.name, tenant.per_day) for tenant in tenants] == [("acme", Decimal(1))] * 20
