"""A session's requests in their order, in each kind of database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.store.strategies import make_run

from batuta.store import Store
from batuta.store.rows import ActingNote
from batuta.store.session_course import read_requests, read_session

pytestmark = pytest.mark.anyio
REASON = "big takes over from small"


def request(number):
    run = make_run(number)
    return replace(run, header=replace(run.header, started=1_000.0 + number))


async def test_a_session_is_read_in_its_order_and_by_its_tenant_alone(target):
    async with Store(target) as store:
        for number in (3, 1, 2):
            acted = ActingNote(
                acting="big" if number > 1 else "small",
                took_over_from="small" if number == 2 else None,
                turn="t1",
                reason=REASON if number == 2 else "big goes on",
            )
            await store.append(request(number), "acme", session="ses_a", acted=acted)
        await store.append(request(4), "acme", session="ses_b")
        await store.append(request(5), "other", session="ses_a")
        await store.flush()
        found = await read_session(store.database, "ses_a", "acme")
        assert [
            (one.acted.acting, one.acted.took_over_from, one.acted.reason) for one in found
        ] == [
            ("small", None, None),
            ("big", "small", REASON),
            ("big", None, None),
        ]
        assert {one.cost for one in found} == {make_run().cost}
        assert {one.acted.turn for one in found} == {"t1"}
        assert len(await read_session(store.database, "ses_a")) == 4
        assert await read_session(store.database, "ses_none") == []
        rows = await read_requests(store.database, found[1:])
        assert [row.id for row in rows] == ["run_000002", "run_000003"]
        assert rows[0].acted.reason == REASON
        (bare,) = await read_session(store.database, "ses_b")
        assert bare.acted == ActingNote()


async def test_who_acted_is_kept_without_the_content_and_why_is_not(target):
    acted = ActingNote(acting="big", took_over_from="small", turn="t1", reason="Bash failed twice")
    async with Store(target) as store:
        await store.append(request(1), session="ses_a", acted=acted, content=False)
        await store.flush()
        row = await store.summary("run_000001")
        assert row.acted == ActingNote(acting="big", took_over_from="small")
