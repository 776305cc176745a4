"""The background work on budgets says once that the database fails, and again when it fails anew."""

import logging

import pytest

from batuta.errors import StoreError
from batuta.store.budgets import Budgets

pytestmark = pytest.mark.anyio


class UnsureLeases:
    """Leases that cannot be given back while the database fails."""

    def __init__(self):
        self.fails = True

    async def give_back(self):
        if self.fails:
            raise StoreError("the database is locked")


async def test_an_outage_is_warned_of_once_and_the_next_one_again(caplog):
    leases = UnsureLeases()
    budgets = Budgets(None, None, leases)
    warned = []
    for leases.fails in (True, True, True, False, True, False, False, True, True):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "batuta.store.budgets"):
            await budgets.give_back_leases()
        warned.append(bool(caplog.records))
    assert warned == [True, False, False, False, True, False, False, True, False]
