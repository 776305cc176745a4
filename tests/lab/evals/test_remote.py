"""Wherever trials are run their results are the same, question by question."""

import json
import os
import shutil
import signal
from contextlib import AsyncExitStack
from dataclasses import replace

import anyio
import pytest
from test_paid import QUESTIONS, SYSTEMS, asked, said_by, started, written

from batuta.lab.evals import EvalOptions, EvalPart, ResultLog, evaluate_parts, open_tasks
from batuta.lab.evals.setup import RemoteTrials, SubjectSetup
from fakes.executors import Pickling
from fakes.openai import FakeOpenAI
from store.conftest import postgres  # noqa: F401 - a fixture

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


def plain(results):
    """All but the seconds, which differ from one time to the next."""
    return {name: [replace(r, seconds=None) for r in rs] for name, rs in results.items()}


@pytest.mark.parametrize(
    ("systems", "least"),
    [
        pytest.param(("all", "cascade@0.01"), 26, marks=pytest.mark.long, id="every"),
        pytest.param(("best-single", "vote", "knn", "ultra", "cascade@0.01"), 4, id="some"),
    ],
)
async def test_systems_give_the_same_results_elsewhere(systems, least, tmp_path, stack):
    setup = SubjectSetup(pool="rehearsal")
    subject = await setup.open_subject(stack)
    tasks = open_tasks("rehearsal", 3, 16)
    found = []
    for folder, trial_runner in (
        ("here", None),
        ("there", RemoteTrials(Pickling(), setup, tasks.grade)),
    ):
        with ResultLog(tmp_path / folder) as ledger:
            terms = EvalOptions(
                seeds=(0, 1), concurrency=16, sub_pool=None, pool_seed=0, trial_runner=trial_runner
            )
            parts = (EvalPart(subject=subject, tasks=tasks, seeds=(0, 1)),)
            found.append(await evaluate_parts(parts, systems, terms, ledger))
    here, there = (plain(one.results) for one in found)
    assert len(here) >= least
    assert here == there
    assert found[0].strengths == found[1].strengths


@pytest.fixture
async def stack():
    async with AsyncExitStack() as opened:
        yield opened


async def finished(folder, *args):
    process = await started(
        folder, "--tasks", "own.jsonl", "--limit", "12", "--systems", SYSTEMS, *args
    )
    assert await process.wait() == 0


def rows(folder):
    lines = (folder / "results.jsonl").read_text().splitlines()
    return {row["key"]: {**row, "seconds": None} for row in map(json.loads, lines)}


@pytest.mark.long
async def test_a_killed_driver_on_ray_pays_no_finished_call_again(tmp_path, postgres):  # noqa: F811
    """Two processes of Ray and a journal on PostgreSQL: killed, gone on with, equal to local."""
    pytest.importorskip("ray")
    there = (
        "--executor",
        "ray:local",
        "--workers",
        "2",
        "--journal",
        postgres,
        "--concurrency",
        "4",
    )
    async with FakeOpenAI(said_by, latency=0.05, strict_openai=False) as server:
        written(tmp_path, server.url)
        victim = await started(
            tmp_path, "--tasks", "own.jsonl", "--limit", "12", "--systems", SYSTEMS, *there
        )
        while len(server.requests) < QUESTIONS + 8:
            assert victim.returncode is None
            await anyio.sleep(0.01)
        os.kill(victim.pid, signal.SIGKILL)
        await victim.wait()
        await until_quiet(server)
        await finished(tmp_path, *there)
        remote = asked(server)
        assert max(remote.values()) <= 2
        assert sum(n - 1 for n in remote.values()) <= 4 * 3, "only those that were in flight"
        found = rows(tmp_path / "out")
        shutil.rmtree(tmp_path / "out")
        await finished(tmp_path)
        assert rows(tmp_path / "out") == found
        assert set(asked(server)) == set(remote)


async def until_quiet(server):
    """The orphaned actors notice that their driver is gone."""
    count = -1
    while count != len(server.requests):
        count = len(server.requests)
        await anyio.sleep(1)
