"""What is old is forgotten when its time has come; the money stays in the books."""

import time
from dataclasses import replace

import pytest
from tests.store.strategies import make_run

from batuta.core import RunId
from batuta.store import Store
from batuta.store.models import CONTENTS
from batuta.store.responses import StoredResponse
from batuta.store.retention import RetentionSweeper
from batuta.store.spend_report import report_spending
from fakes.serving import Server

pytestmark = pytest.mark.anyio
DAY = 86_400.0
NOW = 1_800_000_000.0


def run_of(name, days):
    run = make_run()
    return replace(run, header=replace(run.header, id=RunId(name), started=NOW - days * DAY))


def response_of(name, days, status="completed"):
    return StoredResponse(
        id=name,
        tenant="local",
        created=NOW - days * DAY,
        status=status,
        previous=None,
        body=b"{}",
        input=b"[]",
    )


async def test_only_what_is_too_old_goes(target):
    async with Store(target) as store:
        for days in (0, 6.9, 7.1, 40):
            await store.append(run_of(f"run_{days}", days))
            await store.responses.put(response_of(f"resp_{days}", days))
        await store.responses.put(response_of("resp_running", 9, "in_progress"))
        await store.flush()
        before = await report_spending(store.database, ("tenant",))
        clock = [NOW]
        retention = RetentionSweeper(store.database, 7, clock=lambda: clock[0], batch=1)
        by_day = "postgresql" in store.url.drivername  # that of 7.1 days ago is not over
        assert await retention.sweep() == (1 if by_day else 2, 2)
        assert await retention.sweep() == (0, 0)
        kept = {"run_0", "run_6.9", "run_7.1"} if by_day else {"run_0", "run_6.9"}
        assert {row.id for row in await store.list()} == kept
        assert await store.get("run_40") is None and await store.get("run_0") is not None
        names = ("resp_0", "resp_6.9", "resp_7.1", "resp_40", "resp_running")
        left = await store.responses.get_many(names, "local")
        assert {one.id for one in left} == {"resp_0", "resp_6.9", "resp_running"}
        assert await report_spending(store.database, ("tenant",)) == before
        clock[0] += 1 * DAY
        assert await retention.sweep() == (len(kept) - 1, 1)
        rows = await store.database.fetch_rows(CONTENTS.select())
        assert [row["run_id"] for row in rows] == ["run_0"]


async def test_a_server_forgets_as_its_settings_say(tmp_path):
    async with Store(tmp_path / "home" / "runs.db") as store:
        for name, days in (("run_old", 3), ("run_new", 1)):
            run = make_run()
            header = replace(run.header, id=RunId(name), started=time.time() - days * DAY)
            await store.append(replace(run, header=header))
    (tmp_path / "batuta.toml").write_text(
        "[[workers]]\nid = 'a'\nmodel = 'm'\nbase_url = 'http://127.0.0.1:9'\n"
        "[server]\nkeep_days = 2\n"
    )
    async with Server(tmp_path, "--pool", str(tmp_path / "batuta.toml")) as server:
        listed = ["run_new", "run_old"]
        deadline = time.monotonic() + 20
        while len(listed) > 1 and time.monotonic() < deadline:
            async with server.http.get("/v1/runs") as response:
                listed = [run["id"] for run in (await response.json())["data"]]
    assert listed == ["run_new"]
