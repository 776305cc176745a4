"""What jobs promise beyond the process that runs them."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from batuta.clients import ScriptedClient
from batuta.core import Reply, Request, WorkerId, user_message
from batuta.errors import ProviderOverloadedError, StoreError
from batuta.jobs import Job, JobEnding, JobState, open_jobs

from .conftest import working


async def told(jobs, job_id):
    with anyio.fail_after(60):
        return [event async for event in jobs.events(job_id, "ada")]


async def test_a_stopped_process_leaves_its_jobs_to_the_next(tmp_path):
    begun = anyio.Event()

    async def half(job, checkpoint):
        await checkpoint.add_event({"said": 0})
        begun.set()
        await anyio.sleep_forever()

    async def whole(job, checkpoint):
        await checkpoint.add_event({"said": 0})
        await checkpoint.add_event({"said": 1})
        return JobEnding(JobState.COMPLETED, {"text": "done"})

    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, half):
        await jobs.submit(Job("job-1", "ada"))
        with anyio.fail_after(60):
            await begun.wait()
    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, whole):
        assert [(e.number, e.body["said"]) for e in await told(jobs, "job-1")] == [(0, 0), (1, 1)]
        assert (await jobs.status("job-1", "ada")).state is JobState.COMPLETED
        assert await jobs.result("job-1", "ada") == {"text": "done"}


async def test_what_is_stored_is_json_in_a_write_ahead_log(tmp_path):
    async def echo(job, checkpoint):
        return JobEnding(JobState.INCOMPLETE, {"echo": job.body})

    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, echo):
        await jobs.submit(Job("job-1", "ada", {"question": "why?"}))
        await told(jobs, "job-1")
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            row = db.execute("SELECT tenant, owner, state, body, result FROM jobs").fetchone()
    assert row[:3] == ("ada", '["ada", null]', "incomplete")
    assert '"why?"' in row[3] and '"why?"' in row[4]


async def test_ended_jobs_are_forgotten_after_their_time(tmp_path):
    async def echo(job, checkpoint):
        await checkpoint.add_event({"said": 0})
        return JobEnding(JobState.COMPLETED, {})

    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, echo):
        await jobs.submit(Job("job-1", "ada"))
        await told(jobs, "job-1")
    async with open_jobs(tmp_path / "jobs.db", kept_days=30) as jobs, working(jobs, echo):
        assert await jobs.status("job-1", "ada") is not None
    async with open_jobs(tmp_path / "jobs.db", kept_days=-1) as jobs, working(jobs, echo):
        with anyio.fail_after(60):
            while await jobs.status("job-1", "ada") is not None:
                await anyio.sleep(0.05)
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        assert db.execute("SELECT count(*) FROM job_events").fetchone() == (0,)


async def test_equal_calls_of_one_place_keep_their_own_replies_and_failures_are_not_kept(tmp_path):
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
    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, thrice):
        await jobs.submit(Job("job-1", "ada"))
        with anyio.fail_after(60):
            await begun.wait()
    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, thrice):
        await told(jobs, "job-1")
        assert await jobs.result("job-1", "ada") == {"texts": ["first", "second"]}
    assert len(asked) == 3


async def test_a_place_that_is_none_is_told(tmp_path):
    with pytest.raises(StoreError, match="use sqlite or postgresql"):
        async with open_jobs("mysql://localhost/jobs"):
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be"):
        async with open_jobs(str(tmp_path / "file" / "jobs.db")):
            pass


async def test_a_job_that_waits_again_while_it_is_run_is_run_once(tmp_path):
    """As when its database was away for a while and its process was taken for dead."""
    begun, go_on, executed_jobs = anyio.Event(), anyio.Event(), []

    async def slow(job, checkpoint):
        executed_jobs.append(job.id)
        begun.set()
        await go_on.wait()
        return JobEnding(JobState.COMPLETED, {"text": "done"})

    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, slow):
        await jobs.submit(Job("job-1", "ada", {}))
        with anyio.fail_after(60):
            await begun.wait()
        with closing(sqlite3.connect(tmp_path / "jobs.db", timeout=30)) as db:
            db.execute("UPDATE jobs SET state = 'queued'")
            db.commit()
        await anyio.sleep(1)  # some looks at what waits
        assert executed_jobs == ["job-1"]
        go_on.set()
        await told(jobs, "job-1")
        assert (await jobs.status("job-1", "ada")).state is JobState.COMPLETED
        assert await jobs.result("job-1", "ada") == {"text": "done"}
        await jobs.submit(Job("job-2", "ada", {}))
        await told(jobs, "job-2")
        assert executed_jobs == ["job-1", "job-2"]


FIXTURE = Path(__file__).parents[1] / "store/fixtures/before_names_jobs.sql"


async def test_what_an_earlier_version_left_to_dbos_is_read_and_run(tmp_path):
    performed = []

    async def echo(job, checkpoint):
        performed.append(job)
        return JobEnding(JobState.COMPLETED, {"echo": job.body})

    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        db.executescript(FIXTURE.read_text("utf-8"))
        for number, state in enumerate(("ENQUEUED", "PENDING", "CANCELLED", "ERROR")):
            body = {"id": f"left-{number}", "tenant": "ada", "key": "k", "body": {"n": number}}
            db.execute(
                "INSERT INTO workflow_status (workflow_uuid, status, name, executor_id, created_at, "
                "completed_at) VALUES (?, ?, 'batuta.job', 'local', 1795459572000, 1795459573000)",
                (f"left-{number}", state),
            )
            inputs = json.dumps({"namedArgs": {}, "positionalArgs": [body]})
            db.execute("INSERT INTO workflow_input VALUES (?, ?, 0)", (f"left-{number}", inputs))
        error = json.dumps({"name": "JobFailed", "message": "the job failed: OSError"})
        db.execute("INSERT INTO workflow_output VALUES ('left-3', NULL, ?, 0)", (error,))
        db.commit()
    for _ in range(2):  # once is enough
        async with open_jobs(tmp_path / "jobs.db", kept_days=1e6) as jobs, working(jobs, echo):
            ended = await jobs.result("resp_478d7a1873327964911145b1", "acme")
            assert ended["output"][0]["content"][0]["text"].endswith("Answer: 196")
            await told(jobs, "left-0")
            await told(jobs, "left-1")
            found = [await jobs.status(f"left-{number}", "ada") for number in range(4)]
    assert sorted(job.body["n"] for job in performed) == [0, 1] and performed[0].key == "k"
    assert [status.state.value for status in found] == [
        *("completed", "completed", "cancelled", "failed"),
    ]
    assert found[3].error == "the job failed: OSError" and found[3].created == 1795459572
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        assert db.execute("SELECT count(*) FROM workflow_status").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM workflow_input").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM workflow_output").fetchone() == (0,)


def rename_table(path, old, new):
    with closing(sqlite3.connect(path, timeout=30)) as db:
        db.execute(f"ALTER TABLE {old} RENAME TO {new}")


async def test_an_outage_is_told_once_and_the_next_one_again(tmp_path, caplog):
    async def echo(job, checkpoint):
        return JobEnding(JobState.COMPLETED, {})

    path = tmp_path / "jobs.db"
    async with open_jobs(path) as jobs, working(jobs, echo):
        for number in (1, 2):
            await to_thread.run_sync(rename_table, path, "jobs", "away")
            await anyio.sleep(2.5)  # some looks
            await to_thread.run_sync(rename_table, path, "away", "jobs")
            await jobs.submit(Job(f"job-{number}", "ada"))
            await told(jobs, f"job-{number}")
            assert caplog.text.count("no waiting job can be started now") == number


async def test_a_call_waits_while_nobody_can_tell_what_is_kept_of_it(tmp_path, caplog):
    path = tmp_path / "jobs.db"

    async def ask(job, checkpoint):
        client = checkpoint.wrap_clients({WorkerId("w"): ScriptedClient(lambda _: Reply(text="Yes."))})[WorkerId("w")]  # fmt: skip
        await to_thread.run_sync(rename_table, path, "job_calls", "away")
        reply = await client.complete(Request(messages=(user_message("Q?"),)))
        return JobEnding(JobState.COMPLETED, {"text": reply.text})

    async with open_jobs(path) as jobs, working(jobs, ask):
        await jobs.submit(Job("job-1", "ada"))
        with anyio.fail_after(60):
            while "no such table: job_calls" not in caplog.text:
                await anyio.sleep(0.01)
        await to_thread.run_sync(rename_table, path, "away", "job_calls")
        await told(jobs, "job-1")
        assert await jobs.result("job-1", "ada") == {"text": "Yes."}
