"""What durable jobs promise beyond the laws of all jobs."""

import asyncio
import sqlite3
import subprocess
import sys

import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Reply, Request, WorkerId, user_message
from batuta.errors import ProviderOverloadedError, StoreError
from batuta.jobs import Job, JobEnding, JobState, open_jobs
from batuta.jobs.dbos_runner import PROTOCOL
from batuta.jobs.factory import is_sqlite_too_old

from .conftest import working


async def told(jobs, job_id):
    with anyio.fail_after(15):
        return [event async for event in jobs.events(job_id, "ada")]


async def test_a_stopped_process_leaves_its_jobs_to_the_next(durable, tmp_path):
    begun = anyio.Event()

    async def half(job, checkpoint):
        await checkpoint.add_event({"said": 0})
        begun.set()
        await anyio.sleep_forever()

    async def whole(job, checkpoint):
        await checkpoint.add_event({"said": 0})
        await checkpoint.add_event({"said": 1})
        return JobEnding(JobState.COMPLETED, {"text": "done"})

    async with durable(tmp_path) as jobs, working(jobs, half):
        await jobs.submit(Job("job-1", "ada"))
        with anyio.fail_after(15):
            await begun.wait()
    async with durable(tmp_path) as jobs, working(jobs, whole):
        assert [(e.number, e.body["said"]) for e in await told(jobs, "job-1")] == [(0, 0), (1, 1)]
        assert (await jobs.status("job-1", "ada")).state is JobState.COMPLETED
        assert await jobs.result("job-1", "ada") == {"text": "done"}


async def test_what_is_stored_is_json_in_a_write_ahead_log_under_a_fixed_version(durable, tmp_path):
    async def echo(job, checkpoint):
        return JobEnding(JobState.INCOMPLETE, {"echo": job.body})

    async with durable(tmp_path) as jobs, working(jobs, echo):
        await jobs.submit(Job("job-1", "ada", {"question": "why?"}))
        await told(jobs, "job-1")
        with sqlite3.connect(tmp_path / "jobs.db") as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            row = db.execute("SELECT i.inputs, o.output, serialization, application_version, authenticated_user FROM workflow_status JOIN workflow_input i USING (workflow_uuid) JOIN workflow_output o USING (workflow_uuid)").fetchone()  # fmt: skip
    assert '"why?"' in row[0] and '"incomplete"' in row[1]
    assert row[2:] == ("portable_json", PROTOCOL, "ada")


async def test_ended_jobs_are_forgotten_after_their_time(durable, tmp_path):
    async def echo(job, checkpoint):
        await checkpoint.add_event({"said": 0})
        return JobEnding(JobState.COMPLETED, {})

    async with durable(tmp_path) as jobs, working(jobs, echo):
        await jobs.submit(Job("job-1", "ada"))
        await told(jobs, "job-1")
    async with durable(tmp_path, kept_days=30) as jobs, working(jobs, echo):
        assert await jobs.status("job-1", "ada") is not None
    async with durable(tmp_path, kept_days=-1) as jobs, working(jobs, echo):
        with anyio.fail_after(15):
            while await jobs.status("job-1", "ada") is not None:
                await anyio.sleep(0.05)
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        assert db.execute("SELECT count(*) FROM job_events").fetchone() == (0,)


async def test_equal_calls_of_one_place_keep_their_own_replies_and_failures_are_not_kept(
    durable, tmp_path
):
    said = iter([ProviderOverloadedError("busy"), Reply(text="first"), Reply(text="second")])
    asked = []

    def say(request):
        asked.append(request)
        return next(said)

    async def thrice(job, checkpoint):
        client = checkpoint.wrap_clients({WorkerId("w"): ScriptedClient(say)})[WorkerId("w")]
        texts = []
        while len(texts) < 2:
            try:
                texts.append((await client.complete(Request(messages=(user_message("Q?"),)))).text)
            except ProviderOverloadedError:
                continue
        if len(asked) == 3 and job.id not in seen:
            seen.add(job.id)
            begun.set()
            await anyio.sleep_forever()
        return JobEnding(JobState.COMPLETED, {"texts": texts})

    seen, begun = set(), anyio.Event()
    async with durable(tmp_path) as jobs, working(jobs, thrice):
        await jobs.submit(Job("job-1", "ada"))
        with anyio.fail_after(15):
            await begun.wait()
    async with durable(tmp_path) as jobs, working(jobs, thrice):
        await told(jobs, "job-1")
        assert await jobs.result("job-1", "ada") == {"texts": ["first", "second"]}
    assert len(asked) == 3


def test_without_the_extra_jobs_live_as_long_as_the_process(tmp_path):
    code = (
        "import sys, anyio\n"
        "sys.modules['dbos'] = None\n"
        "from batuta.jobs import open_jobs\n"
        "async def main():\n"
        "    async with open_jobs(sys.argv[1]) as jobs: print(type(jobs).__name__, jobs.durable)\n"
        "anyio.run(main)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "jobs.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["MemoryJobs", "False"]
    assert not list(tmp_path.iterdir())


async def test_a_place_that_is_none_is_told(tmp_path):
    with pytest.raises(StoreError, match="use sqlite or postgresql"):
        async with open_jobs("mysql://localhost/jobs"):
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be"):
        async with open_jobs(str(tmp_path / "file" / "jobs.db")):
            pass


def test_an_sqlite_that_is_too_old_for_a_newer_python_is_known():
    assert is_sqlite_too_old((3, 40, 1), (3, 12, 1, "final", 0))
    assert not is_sqlite_too_old((3, 42, 0), (3, 13, 0, "final", 0))
    assert not is_sqlite_too_old((3, 40, 1), (3, 11, 7, "final", 0))


async def test_a_job_that_is_taken_up_while_it_is_run_is_run_once(durable, tmp_path):
    """As when its database was away for a while and its process was taken for dead."""
    begun, go_on, executed_jobs = anyio.Event(), anyio.Event(), []

    async def slow(job, checkpoint):
        executed_jobs.append(job.id)
        begun.set()
        await go_on.wait()
        return JobEnding(JobState.COMPLETED, {"text": "done"})

    async with durable(tmp_path) as jobs, working(jobs, slow):
        await jobs.submit(Job("job-1", "ada", {}))
        with anyio.fail_after(15):
            await begun.wait()
        again = []

        async def take_up():
            loop = asyncio.get_running_loop()
            body = {"id": "job-1", "tenant": "ada", "body": {}}
            again.append(await anyio.to_thread.run_sync(jobs._queue.hand_over, loop, body))

        async with anyio.create_task_group() as group:
            group.start_soon(take_up)
            while jobs._running["job-1"].endings[1:] == []:
                await anyio.sleep(0.01)
            go_on.set()
        assert executed_jobs == ["job-1"]
        await told(jobs, "job-1")  # its end is written a moment later
        assert (await jobs.status("job-1", "ada")).state is JobState.COMPLETED
        assert again[0]["result"] == await jobs.result("job-1", "ada") == {"text": "done"}
        await jobs.submit(Job("job-2", "ada", {}))
        await told(jobs, "job-2")
        assert executed_jobs == ["job-1", "job-2"]
