"""Runs by day: a partition for each in PostgreSQL, and the same answers as from one table."""

import time
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text
from tests.store.strategies import make_run

from batuta.core import Outcome, RunId
from batuta.store import Store
from batuta.store.codec import FORMAT
from batuta.store.database import open_database, parse_url
from batuta.store.models import RUNS
from batuta.store.retention import RetentionSweeper
from batuta.store.rows import RunEntry, pack_run
from batuta.store.run_filter import RunFilter
from batuta.store.schema import MIGRATIONS
from store.conftest import tell

pytestmark = pytest.mark.anyio
DAY = 86_400.0
NOON = 1_800_014_400.0  # 2027-01-15 12:00:00 UTC
LATER = ("session", "labels", "alone_usd", "acting", "took_over_from", "turn", "reason")
"""Columns of runs that came after the days."""


def run_at(name, at):
    run = make_run()
    return replace(run, header=replace(run.header, id=RunId(name), started=at))


async def fill(store, times):
    for number, at in enumerate(times):
        await store.append(run_at(f"run_{number:03}", at), f"tenant {number % 2}")
    await store.flush()


async def partitions(store):
    rows = await store.database.fetch_rows(
        text(
            "SELECT c.relname AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent IN ('runs'::regclass, 'run_contents'::regclass)"
        )
    )
    return {row["name"] for row in rows}


@pytest.fixture
def server(postgres):
    tell(postgres, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return postgres


def days_of(times):
    names = {f"{datetime.fromtimestamp(at, UTC):%Y%m%d}" for at in times}
    return {f"{table}_{name}" for table in ("runs", "run_contents") for name in names}


BOTH_ENDS = {f"{table}_{end}" for table in ("runs", "run_contents") for end in ("early", "late")}


async def test_each_day_has_a_partition_and_odd_times_have_a_place(server):
    times = [NOON, NOON + 1, NOON - DAY, NOON - 400 * DAY]
    odd = [0.0, -1e9, 2e11, 4_102_444_800.0]
    async with Store(server) as store:
        await fill(store, times + odd)
        assert await partitions(store) == days_of(times) | BOTH_ENDS
        listed = await store.list()
        assert [one.created for one in listed] == sorted(times + odd, reverse=True)
        assert all([await store.get(one.id) is not None for one in listed])


async def test_midnight_belongs_to_the_day_that_begins(server):
    midnight = NOON - DAY / 2
    async with Store(server) as store:
        await fill(store, [midnight, midnight - 0.001])
        assert await partitions(store) == days_of([NOON, NOON - DAY]) | BOTH_ENDS
        retention = RetentionSweeper(store.database, 1, clock=lambda: midnight + DAY)
        assert await retention.sweep() == (1, 0)
        assert [one.created for one in await store.list()] == [midnight]


async def test_pages_and_filters_go_on_over_days(target):
    times = [NOON - number * DAY / 3 for number in range(30)] + [NOON - 3 * DAY] * 5
    async with Store(target) as store:
        await fill(store, times)
        whole = [one.id for one in await store.list(limit=100)]
        assert len(whole) == 35
        paged, before = [], None
        while found := await store.list(limit=4, before=before):
            paged += [one.id for one in found]
            before = found[-1].cursor
        assert paged == whole
        mine = await store.list(limit=100, tenant="tenant 1")
        assert {one.tenant for one in mine} == {"tenant 1"} and len(mine) == 17
        answered = await store.find(RunFilter(outcomes=(Outcome.ANSWERED,)), limit=100)
        assert len(answered.rows) == 35
        found = await store.find(RunFilter(search="run_007"))
        assert [one.id for one in found.rows] == ["run_007"]


async def test_a_run_that_is_stored_stays_as_it_is_whatever_time_it_tells(target):
    async with Store(target) as store:
        await store.append(run_at("run_a", NOON))
        await store.flush()
        await store.append(run_at("run_a", NOON + 3 * DAY))
        await store.append(run_at("run_b", NOON))
        await store.flush()
        assert [(one.id, one.created) for one in await store.list()] == [
            ("run_b", NOON),
            ("run_a", NOON),
        ]
        assert (await store.get("run_a")).header.started == NOON


async def test_what_is_deleted_takes_its_words_along(target):
    async with Store(target) as store:
        await fill(store, [NOON - number * DAY for number in range(6)])
        assert await store.delete("run_001", tenant="tenant 1")
        assert not await store.delete("run_002", tenant="tenant 1")
        assert await store.forgetting.forget_runs(["run_004"], "tenant 0") == ["run_004"]
        assert await store.forgetting.forget_tenant("tenant 1")
        rows = await store.database.fetch_rows(text("SELECT run_id FROM run_contents"))
        assert {row["run_id"] for row in rows} == {"run_000", "run_002"}
        assert {one.id for one in await store.list()} == {"run_000", "run_002"}


async def test_two_processes_begin_the_same_day(server):
    async with Store(server) as one, Store(server) as other, anyio.create_task_group() as group:

        async def append_runs(store, name):
            for number in range(40):
                await store.append(run_at(f"run_{name}{number}", NOON + number % 4 * DAY))
                await store.flush()

        group.start_soon(append_runs, one, "a")
        group.start_soon(append_runs, other, "b")
    async with Store(server) as store:
        assert len(await store.list(limit=100)) == 80
        assert store.lost_count == one.lost_count == other.lost_count == 0


async def test_old_days_go_while_others_read_and_write(server):
    times = [NOON - number * DAY / 4 for number in range(80)]
    async with Store(server) as store:
        await fill(store, times)
        done = anyio.Event()

        async def read_on():
            while not done.is_set():
                await store.list(limit=100)

        async def write_on():
            number = 0
            while not done.is_set():
                number += 1
                await store.append(run_at(f"run_new{number}", NOON + number))
                await store.flush()

        async with anyio.create_task_group() as group:
            group.start_soon(read_on)
            group.start_soon(write_on)
            removed, _ = await RetentionSweeper(store.database, 5, clock=lambda: NOON).sweep()
            done.set()
        limit = (NOON - 5 * DAY) // DAY * DAY
        assert removed == sum(at < limit for at in times) > 0
        assert min(one.created for one in await store.list(limit=1_000)) >= limit
        left = await store.database.fetch_rows(text("SELECT min(created) AS at FROM run_contents"))
        assert left[0]["at"] >= limit
        assert store.lost_count == 0


def alembic_config(connection):
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


async def migrate(target, revision):
    database = open_database(parse_url(target), pooled=False)
    await database.run_write(lambda one: command.upgrade(alembic_config(one), revision))
    await database.close()


async def fill_old_schema(target, times):
    """Runs in the tables of the revision before days."""

    def insert(connection):
        for number, at in enumerate(times):
            packed = pack_run(
                RunEntry(run=run_at(f"run_{number:03}", at), tenant="t", content=True)
            )
            row = {name: value for name, value in packed.row.items() if name not in LATER}
            connection.execute(RUNS.insert(), row)
            connection.execute(
                text(
                    "INSERT INTO run_contents (run_id, format, body) VALUES (:id, :format, :body)"
                ),
                {"id": packed.row["id"], "format": FORMAT, "body": packed.body},
            )

    database = open_database(parse_url(target), pooled=False)
    await database.run_write(insert)
    await database.close()


@pytest.mark.parametrize("odd", [(), (0.0, -5.0, 2e11, 5e9)])
async def test_a_store_with_runs_is_kept_by_day_from_tomorrow_on(empty_target, odd):
    now = time.time()
    times = [now - number * DAY for number in range(20)] + list(odd)
    await migrate(empty_target, "0006")
    await fill_old_schema(empty_target, times)
    async with Store(empty_target) as store:
        assert sorted(one.created for one in await store.list(limit=100)) == sorted(times)
        for number, at in enumerate(times):
            assert (await store.get(f"run_{number:03}")).header.started == at
        await store.append(run_at("run_tomorrow", now + DAY))
        await store.append(run_at("run_today", now))
        await store.flush()
        assert await store.get("run_tomorrow") is not None
        removed, _ = await RetentionSweeper(store.database, 10.5, clock=lambda: now).sweep()
        assert removed == 9 + sum(at < now for at in odd)
