"""Leases: money that processes take beforehand passes no budget, whatever happens to them."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import orjson
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import URL, text
from sqlalchemy.exc import OperationalError
from tests.store.test_budgets import NOW, bucket, costing

from batuta.core import RunId
from batuta.errors import StoreError
from batuta.store import Store
from batuta.store.budgets import LEASE_SECONDS, Budgets
from batuta.store.database import explained_errors, open_database, parse_url
from batuta.store.leases import Leases
from batuta.store.ledger import LEASE_PREFIX, BudgetStatus, Reservation, RunCharge, utc_day
from batuta.store.rows import RunEntry
from batuta.store.schema import upgrade_database
from batuta.store.spend_report import report_spending
from batuta.store.writer import RunWriter

DAY_SECONDS = 86_400
CAPS = {"tenant:acme": (20_000, 60_000), "key:a": (9_000, 10**6), "key:b": (15_000, 30_000)}


def buckets_of(key, at):
    day = utc_day(at)
    return tuple(
        bucket(cap, account, period)
        for account in ("tenant:acme", f"key:{key}")
        for cap, period in zip(CAPS[account], (day, day[:7]), strict=True)
    )


class UnsureDatabase:
    """A database that now and then does what it was told and says that it failed."""

    def __init__(self, database: Any):
        self.database, self.url, self.loses_next = database, database.url, False

    def __getattr__(self, name):
        return getattr(self.database, name)

    async def run_write(self, work):
        result = await self.database.run_write(work)
        if self.loses_next:
            self.loses_next = False
            with explained_errors(self.url):
                raise OperationalError("COMMIT", None, Exception("the connection was lost"))
        return result


@dataclass
class World:
    """What all processes have in common."""

    url: URL
    now: float = 0.0
    """Seconds that have passed for everybody: fractions of two, so that sums of them are exact."""
    today: float = NOW
    numbers: int = 0


@dataclass
class Process:
    """A server without its loops, which the machine turns by hand."""

    world: World
    wall_step: float = 0.0
    frozen_since: float | None = None
    running: list[tuple[Reservation, RunId, str, float]] = field(default_factory=list)

    def __post_init__(self):
        self.database: Any = UnsureDatabase(open_database(self.world.url))
        self.leases = Leases(
            self.database, seconds=LEASE_SECONDS, clock=lambda: self.world.now, wall=self.wall
        )
        self.writer = RunWriter(self.database, self.leases)
        self.budgets = Budgets(
            self.database, self.writer, self.leases, clock=lambda: self.world.now
        )
        self.task = asyncio.get_running_loop().create_task(self.writer.work())

    def wall(self):
        return self.world.today + self.world.now + self.wall_step

    async def look_after(self):
        """What its loop does from time to time."""
        await self.budgets.renew(self.wall())
        await self.budgets.reap(self.world.now)
        await self.leases.tidy(lambda asked: self.writer.find(asked.run_id) is not None)

    async def kill(self):
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.database.close()


WHO = st.integers(0, 2)
RARELY = st.integers(0, 7).map(lambda number: number == 7)
AMOUNTS = st.one_of(st.integers(0, 40), st.integers(0, 2_000))


class Money(RuleBasedStateMachine):
    """Three processes on one database."""

    @initialize()
    def begin(self):
        self.loop = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        url = parse_url(Path(self.folder.name) / "runs.db")
        upgrade_database(url)
        self.world = World(url)
        self.costs = 0
        """Of runs that have ended, as budgets count them."""
        self.overdue = 0
        """What runs held whose process was frozen for so long that others gave it up."""
        self.counts_more = False
        self.processes = [self.loop.run(self.started()) for _ in range(3)]

    async def started(self):
        return Process(self.world)

    def go(self, work):
        return self.loop.run(work)

    def living(self, who):
        assume(self.processes[who].frozen_since is None)
        return self.processes[who]

    @rule(who=WHO, key=st.sampled_from("ab"), nano=AMOUNTS, times=st.integers(1, 8), part=st.integers(1, 4), loses=RARELY, returns=st.booleans())  # fmt: skip
    def reserve(self, who, key, nano, times, part, loses, returns):
        """Some at once, maybe while what was taken is given back."""
        one, at = self.living(who), self.world.today
        one.database.loses_next = loses

        async def take(number):
            run_id, buckets = RunId(f"run_{number}"), buckets_of(key, at)
            try:
                found = await one.budgets.reserve(
                    run_id, nano, buckets, tenant="acme", key=key, least=nano // part, at=at
                )
            except StoreError:
                return
            if isinstance(found, Reservation):
                assert nano // part <= found.nano <= nano
                one.running.append((found, run_id, key, at))

        async def work():
            async with anyio.create_task_group() as tasks:
                if returns:
                    tasks.start_soon(one.budgets.give_back_leases)
                for _ in range(times):
                    self.world.numbers += 1
                    tasks.start_soon(take, self.world.numbers)

        self.go(work())

    @rule(who=WHO, nano=AMOUNTS, pick=st.integers(0, 99), loses=RARELY)
    def grow(self, who, nano, pick, loses):
        one = self.living(who)
        assume(one.running)
        one.database.loses_next = loses
        place = pick % len(one.running)
        held, *rest = one.running[place]
        try:
            found = self.go(one.budgets.grow(held, nano, nano))
        except StoreError:
            return
        if isinstance(found, Reservation):
            assert found.nano == held.nano + nano
            one.running[place] = (found, *rest)

    @rule(who=WHO, part=st.integers(0, 4), pick=st.integers(0, 99), times=st.integers(1, 5), loses=RARELY)  # fmt: skip
    def end(self, who, part, pick, times, loses):
        one = self.living(who)
        assume(one.running)
        one.database.loses_next = loses

        async def work():
            for _ in range(min(times, len(one.running))):
                held, run_id, key, at = one.running.pop(pick % len(one.running))
                cost = held.nano * part // 4
                self.costs += cost
                await one.writer.append(ended(run_id, cost, key, at, held))
            await flush(one)

        self.go(work())

    @rule(who=WHO, key=st.sampled_from("ab"), nano=st.integers(1, 100), times=st.integers(1, 60))
    def spend(self, who, key, nano, times):
        """One after another, each costs all that it may."""
        one, at = self.living(who), self.world.today
        one.database.loses_next = False

        async def work():
            for _ in range(times):
                self.world.numbers += 1
                buckets, run_id = buckets_of(key, at), RunId(f"run_{self.world.numbers}")
                found = await one.budgets.reserve(run_id, nano, buckets, tenant="acme", key=key, at=at)  # fmt: skip
                if isinstance(found, BudgetStatus):
                    break
                self.costs += nano
                await one.writer.append(ended(run_id, nano, key, at, found))
            await flush(one)

        self.go(work())

    @rule(who=WHO, part=st.integers(0, 2), pick=st.integers(0, 99))
    def cut_off(self, who, part, pick):
        """A run of which no line is written."""
        one = self.living(who)
        assume(one.running)
        one.database.loses_next = False
        held, *_ = one.running.pop(pick % len(one.running))
        counted = held.nano * part // 2
        self.costs += counted
        self.go(one.budgets.release(held, counted))

    @rule(who=WHO, seconds=st.sampled_from([0.25, 1.125, 20.0]))
    def wait(self, who, seconds):
        self.world.now += seconds
        for one in self.processes:
            if one.frozen_since is None:
                self.look_after(one)

    @rule(who=WHO)
    def sleep_on_it(self, who):
        """All others wait for as long as it takes to give one up."""
        one = self.living(who)
        one.frozen_since = self.world.now

    @rule(who=WHO)
    def wake(self, who):
        one = self.processes[who]
        assume(one.frozen_since is not None)
        self.thaw(one)

    def thaw(self, one):
        if one.frozen_since is not None and self.world.now - one.frozen_since >= LEASE_SECONDS:
            self.overdue += sum(held.nano for held, *_ in one.running)
            self.counts_more = True  # all that it had counts as spent, if others gave it up
        one.frozen_since = None

    @rule(who=WHO, seconds=st.sampled_from([-DAY_SECONDS, -100, 100, DAY_SECONDS]))
    def set_clock(self, who, seconds):
        self.processes[who].wall_step += seconds

    @rule()
    def midnight(self):
        self.world.today += DAY_SECONDS

    @rule(who=WHO)
    def crash(self, who):
        """What it had counts as spent: at least what its runs had reserved."""
        one = self.processes[who]
        self.thaw(one)
        kept = self.kept_of(one)
        assert kept >= sum(held.nano for held, *_ in one.running) - self.overdue
        self.costs += kept
        self.go(one.kill())
        self.processes[who] = self.loop.run(self.started())

    def kept_of(self, one):
        """What rows of the process hold of a day of the tenant."""
        return sum(
            row["nano"]
            for row in self.read("SELECT * FROM reservations")
            for account, period in orjson.loads(row["buckets"])
            if row["owner"] == one.leases.owner
            and account == "tenant:acme"
            and period.count("-") == 2
        )

    def look_after(self, one):
        try:
            self.go(one.look_after())
        except StoreError:
            return

    def read(self, statement):
        async def work():
            return await self.processes[0].database.database.fetch_rows(text(statement))

        return self.go(work())

    @invariant()
    def no_budget_is_passed(self):
        held = {}
        for one in self.processes:
            for found, _, _, _ in one.running:
                for each in found.buckets:
                    place = (each.account, each.period)
                    held[place] = held.get(place, 0) + found.nano
        for row in self.read("SELECT * FROM spending"):
            place = (row["account"], row["period"])
            cap = CAPS[row["account"]][row["period"].count("-") == 1]
            used = row["spent"] + held.get(place, 0)
            assert row["spent"] + row["reserved"] <= cap + self.overdue, (row, cap)
            if all(one.frozen_since is None for one in self.processes):
                assert used <= cap + self.overdue, (row, cap, held)

    @invariant()
    def what_is_reserved_is_what_rows_hold(self):
        sums = {}
        for row in self.read("SELECT buckets, nano FROM reservations"):
            for account, period in orjson.loads(row["buckets"]):
                sums[account, period] = sums.get((account, period), 0) + row["nano"]
            assert row["nano"] >= 0 or self.overdue
        for row in self.read("SELECT * FROM spending"):
            assert row["reserved"] == sums.get((row["account"], row["period"]), 0)

    async def stop(self, one):
        """An orderly end: nothing is left for others to find."""
        for held, *_ in one.running:
            await one.budgets.release(held)
        await one.look_after()
        await one.leases.give_back()
        one.running = []

    def teardown(self):
        for one in self.processes:
            self.thaw(one)
            one.database.loses_next = False
        for one in self.processes[1:]:
            self.go(self.stop(one))
        mine = {one.leases.owner for one in self.processes[1:]}
        assert not mine & {row["owner"] for row in self.read("SELECT owner FROM reservations")}
        self.costs += self.kept_of(self.processes[0])
        for one in self.processes:
            self.go(one.kill())
        last = self.processes[0] = self.loop.run(self.started())
        self.world.now += 1
        self.go(last.budgets.reap(self.world.now))
        self.world.now += LEASE_SECONDS
        self.go(last.budgets.reap(self.world.now))
        assert self.read("SELECT * FROM reservations") == []
        spent = 0
        for row in self.read("SELECT * FROM spending"):
            assert row["reserved"] == 0
            if row["account"] == "tenant:acme" and row["period"].count("-") == 2:
                spent += row["spent"]
        assert spent >= self.costs if self.counts_more else spent == self.costs
        self.go(last.kill())
        self.loop.close()
        self.folder.cleanup()


async def flush(one):
    while one.writer.pending_count:
        with suppress(StoreError):
            await one.writer.flush()


def ended(run_id, nano, key, at, held):
    """A run that cost so many billionths, on its way to the database."""
    run = costing(int(run_id.removeprefix("run_")), Decimal(nano) / 10**9)
    run = replace(run, header=replace(run.header, id=run_id))
    charge = RunCharge(tenant="acme", key=key, at=at, reservation=held)
    return RunEntry(run=run, tenant="acme", content=True, charge=charge, keep=True)


TestMoney = Money.TestCase
TestMoney.settings = settings(
    deadline=None,
    max_examples=settings().max_examples * 25 // 100,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
)


CAP = bucket(10**6)


async def reserve(store, number, nano=100, buckets=(CAP,), **options):
    options = {"at": NOW, **options}
    found = await store.budgets.reserve(
        RunId(f"run_{number}"), nano, buckets, tenant="acme", key="k", **options
    )
    assert isinstance(found, Reservation), found
    return found


async def rows(store):
    found = await store.database.fetch_rows(text("SELECT id FROM reservations"))
    return [row["id"] for row in found]


async def leased(store, number=3, **options):
    """A run whose money is from memory, and two before it whose money is not."""
    first = [await reserve(store, 1), await reserve(store, 2)]
    found = await reserve(store, number, **options)
    assert found.id not in await rows(store)
    return found, first


async def until_none(store):
    with anyio.fail_after(60):
        while await rows(store):
            await anyio.sleep(0.05)


@pytest.mark.anyio
async def test_a_lease_that_is_being_given_back_is_not_told_as_reserved(target):
    async with Store(target) as store:
        await leased(store)
        told = []

        async def tell():
            told.extend(await store.budgets.budget_status([CAP]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.budgets.give_back_leases)
            for _ in range(8):
                tasks.start_soon(tell)
        assert {status.reserved for status in told} == {300}


@pytest.mark.anyio
async def test_requests_that_follow_each_other_are_paid_from_memory(target):
    async with Store(target) as store:
        found, first = await leased(store)
        [full] = await store.budgets.budget_status([CAP])
        assert full.reserved == 300, "what runs hold, and not what can still be handed out"
        [lease] = [name for name in await rows(store) if name.startswith(LEASE_PREFIX)]
        assert lease
        for held in (found, *first):
            await store.budgets.release(held)
        await until_none(store)  # nobody uses it
        [full] = await store.budgets.budget_status([CAP])
        assert (full.spent, full.reserved) == (0, 0)


@pytest.mark.anyio
async def test_requests_that_are_far_apart_take_no_lease(target):
    async with Store(target) as store:
        await reserve(store, 1)
        await anyio.sleep(1.1)
        await reserve(store, 2)
        assert len(await rows(store)) == 2


@pytest.mark.anyio
async def test_a_lowered_budget_is_not_paid_from_a_lease(target):
    async with Store(target) as store:
        await leased(store)
        lower = CAP._replace(cap=350)
        found = await store.budgets.reserve(RunId("run_4"), 100, (lower,))
        assert isinstance(found, BudgetStatus) and found.remaining <= 50


@pytest.mark.anyio
async def test_a_server_that_stops_leaves_no_lease(target):
    async with Store(target) as store:
        found, first = await leased(store)
        for held in (found, *first):
            await store.budgets.release(held)
    async with Store(target) as store:
        assert await rows(store) == []
        [full] = await store.budgets.budget_status([CAP])
        assert (full.spent, full.reserved) == (0, 0)


@pytest.mark.anyio
async def test_a_refusal_counts_the_runs_whose_money_is_in_a_lease(target):
    async with Store(target) as store:
        await leased(store)
        found = await store.budgets.reserve(RunId("run_4"), CAP.cap, (CAP,))
        assert isinstance(found, BudgetStatus)
        assert (found.spent, found.reserved, found.holders) == (0, 300, 3)
        async with Store(target) as other:  # which can read it a moment later
            with anyio.fail_after(60):
                while True:
                    found = await other.budgets.reserve(RunId("run_5"), CAP.cap, (CAP,))
                    assert isinstance(found, BudgetStatus)
                    if found.holders == 3:
                        break
                    await anyio.sleep(0.05)


@pytest.mark.anyio
async def test_what_a_run_of_yesterday_cost_is_yesterdays(target):
    yesterday = bucket(10**6, period=utc_day(NOW - DAY_SECONDS))
    async with Store(target) as store:
        found = None
        for number in (1, 2, 3):
            found = await reserve(store, number, buckets=(yesterday,), at=NOW - DAY_SECONDS)
        assert found is not None and found.id not in await rows(store)
        await reserve(store, 4, at=NOW)
        entry = ended(RunId("run_3"), 70, "k", NOW - DAY_SECONDS, found)
        await store.append(entry.run, "acme", charge=entry.charge)
        await store.flush()
        await store.budgets.give_back_leases()  # after what is on its way back, on a slow machine
        before, now = await store.budgets.budget_status([yesterday, CAP])
        assert (before.spent, before.reserved) == (70, 200)
        assert (now.spent, now.reserved) == (0, 100)


@pytest.mark.anyio
async def test_what_a_process_had_that_died_counts_as_spent_with_a_line_of_its_last_runs(target):
    async with Store(target) as living, Store(target) as dying:
        _, first = await leased(dying)
        [lease] = [name for name in await rows(dying) if name.startswith(LEASE_PREFIX)]
        await dying.budgets.close()
        [full] = await living.budgets.budget_status([CAP])
        assert full.reserved > 300, "counts as spent until it has ended"
        now = monotonic()
        await living.budgets.reap(now)
        assert lease in await rows(living)
        held = full.reserved
        await living.budgets.reap(now + LEASE_SECONDS + 1)
        assert await rows(living) == []
        [full] = await living.budgets.budget_status([CAP])
        assert (full.spent, full.reserved) == (held, 0)
        assert 300 <= held <= 600, "what runs had, and a lease for four more"
        [found] = await report_spending(living.database, ("kind",))
        assert found.group == ("lost",)
        assert found.assumed_usd == Decimal(held) / 10**9
        assert found.cost.unpriced_calls in {len(first) + 1, len(first) + 2}


@pytest.mark.anyio
async def test_a_run_that_has_grown_is_settled_once_whatever_the_database_said(tmp_path):
    """Its money has moved to a row of its own, and nobody was told so."""
    url = parse_url(tmp_path / "runs.db")
    await anyio.to_thread.run_sync(upgrade_database, url)
    one = Process(World(url))
    buckets = buckets_of("a", NOW)
    for number in (1, 2, 3, 4):
        found = await one.budgets.reserve(RunId(f"run_{number}"), 20, buckets, tenant="acme", key="a", at=NOW)  # fmt: skip
    assert isinstance(found, Reservation)
    assert one.leases.find(found.id) is not None
    one.database.loses_next = True
    with pytest.raises(StoreError, match="connection was lost"):
        await one.budgets.grow(found, 3000, 3000)
    with pytest.raises(StoreError, match="reservation is unknown"):
        await one.budgets.grow(found, 10, 10)
    await one.writer.append(ended(RunId("run_4"), 15, "a", NOW, found))
    await one.writer.flush()
    for status in await one.budgets.budget_status(buckets):
        assert (status.spent, status.reserved) == (15, 60)
    await one.kill()


@pytest.mark.anyio
@pytest.mark.parametrize("settled", [True, False])
async def test_leases_of_a_budget_before_and_after_a_change_of_its_cap_are_both_returned(
    tmp_path, settled
):
    url = parse_url(tmp_path / "runs.db")
    await anyio.to_thread.run_sync(upgrade_database, url)
    one, last = Process(World(url)), dict[RunId, Reservation]()
    for cap in (10**6, 2 * 10**6):
        for number in range(4):
            name = RunId(f"run_{cap + number}")
            found = await one.budgets.reserve(name, 100, (bucket(cap),), tenant="acme", at=NOW)
        assert isinstance(found, Reservation) and one.leases.find(found.id) is not None
        last[name] = found
    if settled:
        for name, found in last.items():
            await one.writer.append(ended(name, 50, None, NOW, found))
        await one.writer.flush()
    else:
        one.world.now += 2
        await one.leases.tidy(lambda _: False)
    [held] = await one.database.fetch_rows(text("SELECT sum(nano) AS nano FROM reservations"))
    [total] = await one.database.fetch_rows(text("SELECT sum(reserved) AS nano FROM spending"))
    assert total == held
    await one.kill()


@pytest.mark.anyio
async def test_a_lease_has_about_what_is_used_in_a_second(tmp_path):
    """So that little counts as spent that was never used, should the process die."""
    url = parse_url(tmp_path / "runs.db")
    await anyio.to_thread.run_sync(upgrade_database, url)
    one, buckets, held = Process(World(url)), buckets_of("a", NOW), list[str]()

    async def run():
        name = RunId(f"run_{len(held)}")
        found = await one.budgets.reserve(name, 10, buckets, tenant="acme", key="a", at=NOW)
        assert isinstance(found, Reservation)
        held.append(found.id)

    async def free():
        found = await one.database.fetch_rows(text("SELECT * FROM reservations"))
        leases = [row["nano"] for row in found if row["id"].startswith(LEASE_PREFIX)]
        leased = sum(one.leases.find(name) is not None for name in held)
        return max(leases) - 10 * leased

    for _ in range(40):
        await run()
    assert 100 < await free() < 400
    for _ in range(5):
        one.world.now += 0.6
        await run()
        await one.leases.tidy(lambda _: False)
    assert await free() <= 50
    await one.kill()


@pytest.mark.anyio
async def test_calls_of_a_run_that_need_more_at_once_all_get_it(target):
    async with Store(target) as store:
        found, _ = await leased(store)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(store.budgets.grow, found, 100_000, 100_000)
        assert found.id in await rows(store), "more than the lease has"
        [full] = await store.budgets.budget_status([CAP])
        assert full.reserved == 300 + 3 * 100_000
        await store.budgets.release(found)
        [full] = await store.budgets.budget_status([CAP])
        assert full.reserved == 200


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("part", [1, 3])
async def test_fifty_calls_at_once_on_two_replicas_spend_a_budget_to_its_end(target, part):
    """Its last cent can be spent, and no more; each call costs all or a third of what it may."""
    buckets = (bucket(30_000), bucket(10**9, "key:k"))
    costs, numbers = [], iter(range(10**6))

    async def call(store):
        while True:
            number = next(numbers)
            found = await store.budgets.reserve(
                RunId(f"run_{number}"), 90, buckets, tenant="acme", key="k", least=30, at=NOW
            )
            if isinstance(found, BudgetStatus):
                return
            await anyio.sleep(0)
            costs.append(found.nano // part)
            entry = ended(RunId(f"run_{number}"), found.nano // part, "k", NOW, found)
            await store.append(entry.run, "acme", charge=entry.charge, keep=False)

    async with Store(target) as one, Store(target) as two:
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(call, (one, two)[number % 2])
        for store in (one, two):
            await store.flush()
            await store.budgets.give_back_leases()
        assert await rows(one) == []
        for status in await one.budgets.budget_status(buckets):
            assert (status.spent, status.reserved) == (sum(costs), 0)
        assert sum(costs) <= 30_000
        if part == 1:
            await call(one)
            await one.flush()
            assert 30_000 - 30 < sum(costs) <= 30_000, "what is left is less than a short answer"
