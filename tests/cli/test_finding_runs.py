"""`batuta runs list` with filters and an order, and `batuta open`."""

import json
import os
import time
from dataclasses import replace

import pytest
from rich.cells import cell_len
from tests.store.strategies import make_run

from batuta.core import Outcome
from batuta.store import Store
from batuta.store.rows import RequestLabels

pytestmark = pytest.mark.anyio
LONG = "Write a SQL query for the top ten customers by revenue of the last quarter"


@pytest.fixture
async def batuta(tmp_path, command_line):
    home = tmp_path / "home"
    async with Store(home / "runs.db") as store:
        for number in range(6):
            run = make_run(number, question=LONG)
            failed = number == 3
            header = replace(run.header, started=time.time() - 3600 * 30 * number)
            run = replace(run, header=header, seconds=float(number * 7 % 5))
            run = replace(run, outcome=Outcome.FAILED, error_code="timed_out") if failed else run
            await store.append(run, labels=RequestLabels(user=f"u{number % 2}", tags=("app=web",)))

    def call(*args, columns="100"):
        env = {**os.environ, "BATUTA_HOME": str(home), "COLUMNS": columns}
        return command_line.run(*args, cwd=tmp_path, env=env)

    return call


async def test_runs_are_filtered_and_ordered(batuta):
    def found(*args):
        done = batuta("runs", "list", "--json", *args)
        assert done.returncode == 0, done.stderr
        return [int(run["id"][-1]) for run in json.loads(done.stdout)]

    assert found() == [0, 1, 2, 3, 4, 5]
    assert found("--sort", "seconds", "--limit", "2") == [2, 4]
    assert found("--order", "asc", "--limit", "1") == [5]
    assert found("--since", "24h") == [0]
    assert found("--until", "5d", "--user", "u1") == [5]
    assert found("--outcome", "failed,refused") == found("--error", "timed_out") == [3]
    assert found("--tag", "app=web", "--tag", "app=x") == []
    assert found("--worker", "a", "--search", "sql QUERY", "--min-seconds", "3") == [2, 4]


@pytest.mark.parametrize(("columns", "room"), [("80", 20), ("100", 22)])
async def test_a_list_is_read_at_a_glance(batuta, columns, room):
    done = batuta("runs", "list", columns=columns)
    head, *lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert head.split()[-1] == "question" and ("tokens" in head) == (columns == "100")
    assert all(LONG[:room] in line and len(line) <= int(columns) for line in lines[:6])
    assert lines[6].startswith("6 runs · 1 without an answer · ") and "95th percentile" in lines[6]
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--since", "gestern"), "--since: it must be an age such as 30m"),
        (("--sort", "price"), "--sort: it must be one of created, cost"),
        (("--min-cost", "much"), "--min-cost: it must be a number of dollars"),
        (("--search", ""), "--search: it is empty"),
    ],
)
async def test_what_cannot_be_used_is_told_in_a_sentence(batuta, args, said):
    done = batuta("runs", "list", *args)
    assert done.returncode == 2 and done.stderr.startswith(f"batuta: {said}")
    assert done.stderr.count("\n") == 1
    assert "no runs match" in batuta("runs", "list", "--user", "nobody").stdout


async def test_open_tells_the_address_of_a_run(batuta):
    done = batuta("open", "run_000003", "--print")
    assert (done.returncode, done.stdout) == (0, "http://127.0.0.1:8765/ui/runs/run_000003\n")
    elsewhere = batuta("open", "000003", "--print", "--server", "https://batuta.example/")
    assert elsewhere.stdout == "https://batuta.example/ui/runs/run_000003\n"
    assert "matches several runs" in batuta("open", "run_", "--print").stderr
    assert "there is no run" in batuta("open", "run_9", "--print").stderr
    assert batuta("open", "run_000003", "--print", "--server", "x").returncode == 2


@pytest.mark.parametrize("columns", ["80", "100", "140"])
async def test_wide_letters_and_plans_fit_a_line(tmp_path, command_line, columns):
    """A letter may take two columns, and a plan that was not carried out has no steps to count."""
    home = tmp_path / "home"
    async with Store(home / "runs.db") as store:
        run = make_run(1, question="数据库在下午三点发生故障，" * 9)
        header = replace(run.header, model="openrouter/" + "a-very-long-name-" * 4)
        await store.append(replace(run, header=header, outcome=Outcome.PLANNED))
    env = {**os.environ, "BATUTA_HOME": str(home), "COLUMNS": columns}
    done = command_line.run("runs", "list", cwd=tmp_path, env=env)
    head, line, *_ = done.stdout.splitlines()
    assert cell_len(line) <= int(columns) and "数据库" in line
    if "steps" in head:
        assert " – " in line
