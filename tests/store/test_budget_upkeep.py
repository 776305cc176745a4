"""Background work on budgets: warned of once while the database fails, and finished at the end."""

import logging
from typing import Any, cast

import anyio
import pytest

from batuta.core import RunId
from batuta.errors import StoreError
from batuta.store.budgets import LEASE_SECONDS, Budgets
from batuta.store.database import open_database, parse_url
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
