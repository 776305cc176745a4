"""A process that runs jobs is killed; the next one pays for no finished call again."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import anyio
import pytest

from batuta.errors import StoreError
from batuta.jobs import JobState, open_jobs
from fakes.command_line import loaded_program
from fakes.openai import FakeOpenAI
from fakes.server import KEY

from .conftest import working

PROCESS = Path(__file__).with_name("process.py")


class Gated(FakeOpenAI):
    """Answers each call differently; a model's calls wait until its gate is opened."""

    def __init__(self):
        super().__init__(self._say, strict_openai=False)
        self.calls = Counter()
        self.gates = {f"m-{name}": asyncio.Event() for name in ("ada", "bob", "cyd", "dan")}
        self.arrived = {model: asyncio.Event() for model in self.gates}
        self.dropped = asyncio.Event()

    def _say(self, body):
        return f"{body['model']} said it, call {self.calls[body['model']]}"

    async def handle(self, request):
        model = (await request.json())["model"]
        self.calls[model] += 1
        self.arrived[model].set()
        try:
            await self.gates[model].wait()
        except asyncio.CancelledError:
            self.dropped.set()
            raise
        return await super().handle(request)


class Process:
    """The process that runs jobs, for the length of a block."""

    def __init__(self, folder, provider, *jobs):
        self.words = (PROCESS, str(folder), provider.url, *jobs)

    async def __aenter__(self):
        environ = {**os.environ, "PROVIDER_KEY": KEY}
        self.inner = loaded_program().start_file(*self.words, env=environ)
        with anyio.fail_after(60):
            assert await self.inner.stderr.receive() == b"ready\n"
        return self

    async def __aexit__(self, *_):
        if self.inner.returncode is None:
            await self.kill()
        await self.inner.aclose()

    async def kill(self):
        self.inner.send_signal(signal.SIGKILL)
        await self.inner.wait()


async def kept_calls(folder, count):
    """Waits until that many replies are on disk."""
    import sqlite3

    with anyio.fail_after(60):
        while True:
            try:
                with sqlite3.connect(folder / "jobs.db") as db:
                    if (
                        db.execute(
                            "SELECT count(*) FROM job_calls WHERE place LIKE 'call:%'"
                        ).fetchone()[0]
                        >= count
                    ):
                        return
            except sqlite3.OperationalError:
                pass
            await anyio.sleep(0.02)


async def never(job, checkpoint):
    raise AssertionError("nothing is left to be run")


async def ended(folder, job_id):
    """Status and result, read by another process than the one that ran it."""
    async with open_jobs(folder / "jobs.db") as jobs, working(jobs, never):
        return await jobs.status(job_id, "ada"), await jobs.result(job_id, "ada"), [e async for e in jobs.events(job_id, "ada")]  # fmt: skip


async def finish(folder, provider, *job_ids):
    """Another process runs until every job's ending is kept: killed earlier, it pays twice."""
    import sqlite3

    async with Process(folder, provider) as process:
        with anyio.fail_after(60):
            while True:
                with sqlite3.connect(folder / "jobs.db") as db:
                    found = dict(db.execute("SELECT id, state FROM jobs"))
                if all(found.get(job_id) == "completed" for job_id in job_ids):
                    break
                await anyio.sleep(0.05)
        await process.kill()


@pytest.mark.parametrize("first", ["m-ada", "m-bob", "m-cyd"])
async def test_killed_in_the_middle_of_parallel_steps(tmp_path, first):
    async with Gated() as provider:
        async with Process(tmp_path, provider, "job-1") as process:
            with anyio.fail_after(60):
                for model in ("m-ada", "m-bob", "m-cyd"):
                    await provider.arrived[model].wait()
            provider.gates[first].set()
            await kept_calls(tmp_path, 1)
            await process.kill()
        assert provider.calls == {"m-ada": 1, "m-bob": 1, "m-cyd": 1}
        for gate in provider.gates.values():
            gate.set()
        await finish(tmp_path, provider, "job-1")
        status, result, events = await ended(tmp_path, "job-1")
    again = {model: 1 if model in {first, "m-dan"} else 2 for model in provider.gates}
    assert provider.calls == again, "the finished step was paid once, those in flight twice"
    assert status.state is JobState.COMPLETED
    assert result["steps"] == [f"{model} said it, call {times}" for model, times in again.items()]
    assert result["answer"] == "m-dan said it, call 1" and result["calls"] == 4
    assert [event.number for event in events] == list(range(len(events)))
    assert [event.body["event"] for event in events].count("RunHeader") == 1


async def test_killed_before_the_last_step_only_that_is_paid_again(tmp_path):
    async with Gated() as provider:
        for model in ("m-ada", "m-bob", "m-cyd"):
            provider.gates[model].set()
        async with Process(tmp_path, provider, "job-1", "job-2") as process:
            with anyio.fail_after(60):
                while provider.calls["m-dan"] < 2:
                    await anyio.sleep(0.01)
            await process.kill()
        provider.gates["m-dan"].set()
        await finish(tmp_path, provider, "job-1", "job-2")
    assert provider.calls == {"m-ada": 2, "m-bob": 2, "m-cyd": 2, "m-dan": 4}


async def test_cancel_stops_the_paid_calls(tmp_path):
    from batuta.clients import HttpTransport, Secret, WorkerSpec, open_clients
    from batuta.jobs import Job

    from .process import POOL, perform_over

    async with Gated() as provider, HttpTransport() as http:
        specs = [
            WorkerSpec(worker=w, provider="compatible", base_url=provider.url, key=Secret(KEY))
            for w in POOL
        ]
        path, perform = tmp_path / "jobs.db", perform_over(open_clients(specs, http))
        async with open_jobs(path) as jobs, working(jobs, perform):
            await jobs.submit(Job("job-1", "ada", {"question": "Q?"}))
            with anyio.fail_after(60):
                await provider.arrived["m-cyd"].wait()
            with anyio.fail_after(60):
                assert (await jobs.cancel("job-1", "ada")).state is JobState.CANCELLED
                await provider.dropped.wait()
        assert provider.calls["m-dan"] == 0
        # Nor does the job come back when the process does.
        async with open_jobs(path) as jobs, working(jobs, never):
            assert (await jobs.status("job-1", "ada")).state is JobState.CANCELLED


async def test_two_processes_on_one_folder_are_refused(tmp_path):
    async with Gated() as provider, Process(tmp_path, provider) as process:
        with pytest.raises(StoreError, match=r"another server uses .*BATUTA_HOME"):
            await open_jobs(tmp_path / "jobs.db").__aenter__()
        await process.kill()
        async with open_jobs(tmp_path / "jobs.db"):  # a dead process holds nothing
            pass
