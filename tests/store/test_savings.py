"""Savings by session and over all, exactly, in each kind of database."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from tests.store.strategies import make_run

from batuta.store import Store
from batuta.store.savings import list_savings, sum_savings

pytestmark = pytest.mark.anyio


async def test_sums_are_exact_and_runs_without_an_estimate_are_in_neither(target):
    async with Store(target) as store:
        usd = make_run().cost.usd
        for number in range(7):
            run = make_run(number)
            run = replace(run, header=replace(run.header, started=1_000.0 + number))
            known = None if number == 6 else Decimal("0.1")
            session = f"ses_{number % 2}" if number < 5 else None
            tenant = "other" if number == 5 else "acme"
            await store.append(run, tenant, session=session, alone_usd=known)
        await store.flush()
        newest, older = await list_savings(store.database, 5)
        assert (newest.session, newest.runs, newest.alone_usd) == ("ses_0", 3, Decimal("0.3"))
        assert (older.session, older.runs, older.usd) == ("ses_1", 2, 2 * usd)
        assert newest.saved_usd == Decimal("0.3") - 3 * usd and newest.latest == 1_004.0
        assert [one.session for one in await list_savings(store.database, 1)] == ["ses_0"]
        total = await sum_savings(store.database)
        assert (total.runs, total.alone_usd, total.usd) == (6, Decimal("0.6"), 6 * usd)
        assert (await sum_savings(store.database, tenant="other")).runs == 1
        assert (await sum_savings(store.database, since=1_004.0)).runs == 2
        assert await list_savings(store.database, 5, tenant="other") == []
        assert (await list_savings(store.database, 5, session="ses_1"))[0].runs == 2
