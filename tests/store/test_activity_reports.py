"""What the usage screen reads, on both databases: spending by hour and session, runs, refusals."""

import anyio
import pytest

from batuta.core import Outcome
from batuta.store import Store
from batuta.store.activity import report_activity
from batuta.store.hours import day_start, utc_hour
from batuta.store.ledger import RunCharge
from batuta.store.spend_report import report_spending
from store.strategies import make_run

NOON = day_start("2026-11-21") + 12 * 3600.0


async def fill(store):
    """Three runs at noon and one at one o'clock, of two tenants and two sessions."""
    rows = [
        (1, 0.0, "acme", "ses_a", Outcome.ANSWERED),
        (2, 60.0, "acme", "ses_a", Outcome.FAILED),
        (3, 120.0, "other", "ses_b", Outcome.ANSWERED),
        (4, 3600.0, "acme", None, Outcome.ANSWERED),
    ]
    for number, later, tenant, session, outcome in rows:
        run = make_run(number, outcome=outcome, started=NOON + later)
        charge = RunCharge(tenant=tenant, at=NOON + later)
        await store.append(run, tenant, session=session, charge=charge)
    await store.flush()


async def test_spending_is_told_by_hour_and_session(target):
    async with Store(target) as store:
        await fill(store)
        by_hour = await report_spending(store.database, ("hour",), tenant="acme")
        assert [(each.group[0], each.runs) for each in by_hour] == [
            ("2026-11-21T12", 2),
            ("2026-11-21T13", 1),
        ]
        by_session = await report_spending(store.database, ("session", "tenant"))
        assert {each.group: each.runs for each in by_session} == {
            (None, "acme"): 1,
            ("ses_a", "acme"): 2,
            ("ses_b", "other"): 1,
        }
        whole = await report_spending(store.database, ())
        assert sum(each.cost.usd for each in by_session) == whole[0].cost.usd
        chosen = await report_spending(store.database, ("day",), only={"session": ["ses_b"]})
        assert [each.runs for each in chosen] == [1]


async def test_runs_are_told_by_hour_and_system(target):
    async with Store(target) as store:
        assert (await report_activity(store.database, ()))[0].runs == 0
        await fill(store)
        found = await report_activity(store.database, ("hour",), tenant="acme")
        assert [(a.group, a.runs, a.unanswered) for a in found] == [
            (("2026-11-21T12",), 2, 1),
            (("2026-11-21T13",), 1, 0),
        ]
        assert found[0].median_seconds == found[0].p95_seconds is not None
        assert found[0].cached_share == pytest.approx(1 / 6)
        later = await report_activity(store.database, ("day", "model"), since=NOON + 3600.0)
        assert [(a.group, a.runs) for a in later] == [(("2026-11-21", "batuta"), 1)]
        assert await report_activity(store.database, ("session",), models=["nobody"]) == []
        with pytest.raises(ValueError, match="grouped by colour"):
            await report_activity(store.database, ("colour",))


async def test_refusals_are_counted_by_hour_and_survive_the_process(target):
    async with Store(target) as store:
        for _ in range(3):
            store.refusals.note("acme", "key_1", "rate_limit_exceeded", NOON)
        store.refusals.note("other", "key_2", "budget_exceeded", NOON + 3600.0)
        assert [each.requests for each in await store.refusals.report(tenant="acme")] == [3]
        store.refusals.note("acme", "key_1", "rate_limit_exceeded", NOON)
    async with Store(target) as store:
        found = await store.refusals.report(("hour", "key", "code"))
        assert [(each.group, each.requests) for each in found] == [
            (("2026-11-21T12", "key_1", "rate_limit_exceeded"), 4),
            (("2026-11-21T13", "key_2", "budget_exceeded"), 1),
        ]
        late = await store.refusals.report(("tenant",), since=NOON + 3600.0)
        assert [each.group for each in late] == [("other",)]
        await store.forgetting.forget_tenant("acme")
        assert [each.group for each in await store.refusals.report(("tenant",))] == [("other",)]
        with pytest.raises(ValueError, match="grouped by colour"):
            await store.refusals.report(("colour",))


async def test_refusals_of_a_cancelled_server_are_written(target):
    with anyio.CancelScope() as scope:
        async with Store(target) as store:
            store.refusals.note("acme", "key_1", "rate_limit_exceeded", NOON)
            await anyio.sleep(0.01)
            scope.cancel()
    async with Store(target) as store:
        assert [each.requests for each in await store.refusals.report()] == [1]


def test_hours_are_those_of_utc():
    assert utc_hour(NOON) == "2026-11-21T12"
    with pytest.raises(ValueError, match="does not match"):
        day_start("21.11.2026")
