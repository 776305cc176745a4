"""`batuta runs list --session` and `runs show`."""

from __future__ import annotations

import json
import os

import pytest

from batuta.store import Store
from store.strategies import make_run

pytestmark = pytest.mark.anyio
SESSION = "ses_" + "a" * 32


async def test_runs_of_a_session_are_listed_and_a_run_says_its_own(tmp_path, command_line):
    async with Store(tmp_path / "runs.db") as store:
        await store.append(make_run(1), session=SESSION)
        await store.append(make_run(2))
    env = {**os.environ, "BATUTA_HOME": str(tmp_path / "home"), "COLUMNS": "160"}

    def run(*args):
        at = ("--store", str(tmp_path / "runs.db"))
        done = command_line.run("runs", *args, *at, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = json.loads(run("list", "--session", SESSION, "--json"))
    assert [(each["id"], each["session"]) for each in listed] == [("run_000001", SESSION)]
    assert f"session {SESSION}" in run("show", "run_000001")
    assert "session" not in run("show", "run_000002")
    assert "no runs match" in run("list", "--session", "ses_none")
