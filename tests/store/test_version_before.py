"""What the version before the names changed has written, in SQLite and PostgreSQL: migrated, read and served."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from batuta.core import Outcome
from batuta.store import Store
from batuta.store.key_permissions import permissions_json
from batuta.store.schema import HEAD_REVISION, REVISIONS
from batuta.store.spend_report import report_spending
from fakes.serving import Server
from store.conftest import tell

pytestmark = pytest.mark.anyio
FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = json.loads((FIXTURES / "before_names.json").read_text(encoding="utf-8"))
ACME = {"Authorization": f"Bearer {EXPECTED['key']}"}


@pytest.fixture
def home(tmp_path):
    """The home as it was left."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("runs", "jobs"):
        with closing(sqlite3.connect(folder / f"{name}.db")) as database:
            database.executescript((FIXTURES / f"before_names_{name}.sql").read_text("utf-8"))
            database.commit()
    return folder


def revision(home):
    with closing(sqlite3.connect(home / "runs.db")) as database:
        return database.execute("SELECT version_num FROM alembic_version").fetchone()[0]


async def check_store(store, expected):
    """Runs, keys and money are what the version before said of them."""
    listed = await store.list()
    assert [run.id for run in listed] == [run["id"] for run in expected["runs"]]
    for known, summary in zip(expected["runs"], listed, strict=True):
        run = await store.get(summary.id)
        assert run.outcome is Outcome(known["outcome"]) and run.header.question.text
        assert run.answer.startswith(known["answer"][:20]) and len(run.steps) == known["steps"]
        assert run.usage.total == known["tokens"] and summary.score == known["score"]
        assert float(run.cost.usd) == pytest.approx(known["cost"]["usd"])
        assert all(step.request.messages for step in run.steps)
    keys = {key.id: key for key in await store.keys.list()}
    for known in expected["keys"]:
        key = keys[known["id"]]
        found = (key.tenant.name, key.name, key.state(0))
        assert found == (known["tenant"], known["name"], known["state"])
        assert permissions_json(key.permissions) == known["limits"]
    for known in expected["spend"]:
        (group,) = await report_spending(store.database, ["day", "tenant"], tenant=known["tenant"])
        assert (group.runs, group.calls) == (known["runs"], known["calls"])
        assert str(group.cost.usd) == known["usd"]


async def test_runs_keys_and_money_are_read_as_they_were(home):
    assert revision(home) in REVISIONS[:-1]
    async with Store.open(home / "runs.db") as store:
        await check_store(store, EXPECTED)
    assert revision(home) == HEAD_REVISION


async def test_on_postgresql_nothing_is_lost_and_callers_go_on(tmp_path, postgres):
    script = (FIXTURES / "before_names_postgresql.sql").read_text("utf-8")
    expected = json.loads((FIXTURES / "before_names_postgresql.json").read_text("utf-8"))
    await asyncio.to_thread(
        tell, postgres, "DROP SCHEMA IF EXISTS dbos, public CASCADE", "CREATE SCHEMA public", script
    )
    async with Store.open(postgres) as store:
        await check_store(store, expected)
    environment = {"BATUTA_SECRET": expected["secret"], "BATUTA_STORE": postgres}
    async with Server(tmp_path, "--pool", "rehearsal", **environment) as server:
        key = {"Authorization": f"Bearer {expected['key']}"}
        for name, text in expected["responses"].items():
            async with server.http.get(f"/v1/responses/{name}", headers=key) as reply:
                found = await reply.json()
            assert found["status"] == "completed", found
            assert found["output"][0]["content"][0]["text"] == text
        body = {"model": "batuta-mini", "input": "Compute the result: begin at 3; double it."}
        async with server.http.post("/v1/responses", json=body, headers=key) as reply:
            assert reply.status == 200, await reply.text()
        async with server.http.get("/v1/runs", headers=key) as reply:
            assert len((await reply.json())["data"]) == 5  # its tenant's four, and that one


async def test_its_callers_go_on_where_they_were(home):
    async with Server(
        home.parent, "--pool", "rehearsal", BATUTA_SECRET=EXPECTED["secret"]
    ) as server:
        async with server.http.get("/v1/runs") as refused:
            assert refused.status == 401
        for name, text in EXPECTED["responses"].items():
            async with server.http.get(f"/v1/responses/{name}", headers=ACME) as reply:
                found = await reply.json()
            assert found["status"] == "completed", found
            assert found["output"][0]["content"][0]["text"] == text
        last = list(EXPECTED["responses"])[1]
        body = {"model": "batuta-mini", "input": "Compute the result: begin at 3; double it.",
                "previous_response_id": last}  # fmt: skip
        async with server.http.post("/v1/responses", json=body, headers=ACME) as reply:
            going_on = await reply.json()
        assert reply.status == 200 and going_on["previous_response_id"] == last
        async with server.http.get("/v1/runs", headers=ACME) as reply:
            assert len((await reply.json())["data"]) == 5


@pytest.mark.slow
def test_its_runs_are_shown_and_replayed(home):
    environ = {**os.environ, "BATUTA_HOME": str(home), "COLUMNS": "120"}

    def batuta(*words):
        done = subprocess.run([sys.executable, "-m", "batuta", *words], env=environ, capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    known = EXPECTED["runs"][-1]
    assert known["question"] in batuta("runs", "show", known["id"])
    replayed = json.loads(batuta("runs", "replay", known["id"], "--recorded", "--json"))
    assert replayed["answer"].startswith(known["answer"][:20])
    spent = json.loads(batuta("keys", "spend", "--json"))
    assert {row["tenant"] for row in spent} == {"acme", "local"}
