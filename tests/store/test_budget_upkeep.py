"""Background work on budgets: warned of once while the database fails, and finished at the end."""

import logging
from functools import partial
from typing import Any, cast

import anyio
import pytest
from sqlalchemy.exc import SQLAlchemyError

from batuta.core import RunId
from batuta.errors import StoreError
from batuta.store import Store
from batuta.store.budgets import LEASE_SECONDS, Budgets
from batuta.store.database import DatabaseFailedError, open_database, parse_url
from batuta.store.leases import Leases
from batuta.store.ledger import Bucket, Reservation
from batuta.store.schema import upgrade_database
from batuta.store.writer import RunWriter

pytestmark = pytest.mark.anyio


class UnsureLeases:
    """Leases that cannot be given back while the database fails."""

    def __init__(self):
        self.fails = True

    async def give_back(self):
        if self.fails:
            raise StoreError("the database is locked")


async def test_an_outage_is_warned_of_once_and_the_next_one_again(caplog):
    leases, nothing = UnsureLeases(), cast("Any", None)
    budgets = Budgets(nothing, nothing, cast("Any", leases))
    warned = []
    for leases.fails in (True, True, True, False, True, False, False, True, True):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "batuta.store.budgets"):
            await budgets.give_back_leases()
        warned.append(bool(caplog.records))
    assert warned == [True, False, False, False, True, False, False, True, False]


async def test_what_is_doubtful_at_the_end_is_given_back(tmp_path):
    """A run that an outage kept from settling holds nothing once its server has ended."""
    url = parse_url(tmp_path / "runs.db")
    await anyio.to_thread.run_sync(upgrade_database, url)
    database = open_database(url)
    leases = Leases(database, seconds=LEASE_SECONDS)
    budgets = Budgets(database, RunWriter(database, leases), leases)
    bucket = Bucket("key:k", "2026-11-27", 1000)
    held = await budgets.reserve(RunId("run_1"), 400, (bucket,))
    assert [one.reserved for one in await budgets.budget_status((bucket,))] == [400]
    assert isinstance(held, Reservation)
    leases.doubt((held.id,))
    await budgets.give_back_leases()
    assert [one.reserved for one in await budgets.budget_status((bucket,))] == [0]
    await database.close()


async def test_a_database_that_fails_is_a_store_error_whatever_it_was_asked(tmp_path):
    """Whoever looks after budgets goes on after a StoreError, and would end with any other."""
    bucket, now = Bucket("key:k", "2026-11-27", 1000), 1e9
    async with Store(tmp_path / "runs.db") as store:
        budgets = store.budgets
        held = await budgets.reserve(RunId("run_1"), 400, (bucket,), for_job=True)
        assert isinstance(held, Reservation)
        for table in ("reservations", "spending"):
            rename = f"ALTER TABLE {table} RENAME TO away_{table}"
            await store.database.run_write(lambda one, text=rename: one.exec_driver_sql(text))
        for ask in (
            partial(budgets.reserve, RunId("run_2"), 1, (bucket,)),
            partial(budgets.grow, held, 1, 1),
            partial(budgets.find_job_reservation, RunId("run_1"), {}),
            budgets.job_reservations,
            partial(budgets.renew_job_reservations, ["a"], now),
            partial(budgets.end_job_reservations, ["a"]),
            partial(budgets.release, held),
            partial(budgets.budget_status, [bucket]),
            partial(budgets.renew, now),
            partial(budgets.reap, now),
        ):
            with pytest.raises(DatabaseFailedError, match="no such table") as caught:
                await ask()
            assert isinstance(caught.value.__cause__, SQLAlchemyError)


class BrokenDatabase:
    """A database that fails before, or after, what it is told to write."""

    def __init__(self, database, *, is_done):
        self.database, self.is_done, self.fails = database, is_done, False

    def __getattr__(self, name):
        return getattr(self.database, name)

    async def run_write(self, work):
        if self.is_done or not self.fails:
            result = await self.database.run_write(work)
        if self.fails:
            raise DatabaseFailedError("the connection was lost")
        return result


@pytest.mark.parametrize("is_done", [False, True])
async def test_what_could_not_be_released_is_released_after_the_outage(tmp_path, is_done):
    """The process lives, so no other one ends the reservation, and nothing else would."""
    url = parse_url(tmp_path / "runs.db")
    await anyio.to_thread.run_sync(upgrade_database, url)
    database: Any = BrokenDatabase(open_database(url), is_done=is_done)
    leases = Leases(database, seconds=LEASE_SECONDS)
    budgets = Budgets(database, RunWriter(database, leases), leases)
    bucket = Bucket("key:k", "2026-11-27", 1000)
    held = [await budgets.reserve(RunId(f"run_{n}"), 400, (bucket,), for_job=True) for n in (1, 2)]
    database.fails = True
    for one, counted in zip(held, (0, 300), strict=True):
        assert isinstance(one, Reservation)
        with pytest.raises(StoreError):
            await budgets.release(one, counted)
    with pytest.raises(StoreError):
        await leases.tidy(lambda _: False)
    database.fails = False
    await leases.tidy(lambda _: False)
    [found] = await budgets.budget_status((bucket,))
    assert (found.spent, found.reserved) == (300, 0)
    await database.close()
