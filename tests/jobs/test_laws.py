"""What jobs promise whoever asks for them."""

import anyio
import pytest

from batuta.jobs import Job, JobEnding, JobState, open_jobs

from .conftest import working

ADA, BOB = "ada", "bob"


async def echo(job, checkpoint):
    for number in range(3):
        await checkpoint.add_event({"said": number})
    return JobEnding(JobState.COMPLETED, {"echo": job.body})


class Hanging:
    """Tells once, then waits for ever; knows whether it was stopped."""

    def __init__(self):
        self.started, self.stopped = anyio.Event(), anyio.Event()

    async def __call__(self, job, checkpoint):
        try:
            await checkpoint.add_event({"said": "begun"})
            self.started.set()
            await anyio.sleep_forever()
        finally:
            self.stopped.set()


async def told(jobs, job_id, after=-1):
    with anyio.fail_after(60):
        return [event async for event in jobs.events(job_id, ADA, after)]


async def test_a_job_ends_with_its_events_and_its_result(tmp_path):
    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, echo):
        await jobs.submit(Job("job-1", ADA, {"question": "é"}))
        events = await told(jobs, "job-1")
        assert [(event.number, event.body) for event in events] == [
            (n, {"said": n}) for n in range(3)
        ]
        status = await jobs.status("job-1", ADA)
        assert status.state is JobState.COMPLETED and status.ended >= status.created > 1e9
        assert await jobs.result("job-1", ADA) == {"echo": {"question": "é"}}


async def test_events_are_resumed_after_a_number(tmp_path):
    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, echo):
        await jobs.submit(Job("job-1", ADA))
        assert [event.number for event in await told(jobs, "job-1", after=1)] == [2]
        assert await told(jobs, "job-1", after=2) == []


async def test_a_job_of_another_tenant_does_not_exist(tmp_path):
    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, echo):
        await jobs.submit(Job("job-1", ADA))
        await told(jobs, "job-1")
        assert await jobs.status("job-1", BOB) is None
        assert await jobs.result("job-1", BOB) is None
        assert await jobs.cancel("job-1", BOB) is None
        assert not await jobs.forget("job-1", BOB)
        assert [event async for event in jobs.events("job-1", BOB)] == []
        assert await jobs.status("job-1", ADA) is not None


async def test_cancel_stops_the_work_and_can_be_said_twice(tmp_path):
    hanging = Hanging()
    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, hanging):
        await jobs.submit(Job("job-1", ADA))
        with anyio.fail_after(60):
            await hanging.started.wait()
        assert (await jobs.status("job-1", ADA)).state is JobState.IN_PROGRESS
        with anyio.fail_after(60):
            assert (await jobs.cancel("job-1", ADA)).state is JobState.CANCELLED
            await hanging.stopped.wait()
        assert (await jobs.cancel("job-1", ADA)).state is JobState.CANCELLED
        assert await jobs.result("job-1", ADA) is None
        assert [event.body for event in await told(jobs, "job-1")] == [{"said": "begun"}]


async def test_an_ended_job_cannot_be_cancelled(tmp_path):
    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, echo):
        await jobs.submit(Job("job-1", ADA))
        await told(jobs, "job-1")
        assert (await jobs.cancel("job-1", ADA)).state is JobState.COMPLETED


async def test_a_fault_fails_the_job_and_tells_no_content(tmp_path, caplog):
    async def broken(job, checkpoint):
        raise RuntimeError("the secret question")

    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, broken):
        await jobs.submit(Job("job-1", ADA))
        await told(jobs, "job-1")
        status = await jobs.status("job-1", ADA)
        assert status.state is JobState.FAILED and status.error == "the job failed: RuntimeError"
        await jobs.submit(Job("job-2", ADA))
        await told(jobs, "job-2")
    assert "secret question" not in caplog.text


async def test_the_same_job_is_taken_in_once(tmp_path):
    executed_jobs = []

    async def count(job, checkpoint):
        executed_jobs.append(job.id)
        return JobEnding(JobState.COMPLETED, {})

    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, count):
        for _ in range(3):
            await jobs.submit(Job("job-1", ADA))
        await told(jobs, "job-1")
        await jobs.submit(Job("job-2", ADA))
        await told(jobs, "job-2")
    assert executed_jobs == ["job-1", "job-2"]


async def test_forget_erases_a_running_job(tmp_path):
    hanging = Hanging()
    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, hanging):
        await jobs.submit(Job("job-1", ADA))
        with anyio.fail_after(60):
            await hanging.started.wait()
            assert await jobs.forget("job-1", ADA)
        assert await jobs.status("job-1", ADA) is None
        assert await told(jobs, "job-1") == []
        assert not await jobs.forget("job-1", ADA)


async def test_no_more_jobs_are_run_at_once_than_allowed(tmp_path):
    now, most, all_in = 0, 0, anyio.Event()

    async def crowd(job, checkpoint):
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 2:
            all_in.set()
        with anyio.fail_after(60):
            await all_in.wait()
        now -= 1
        return JobEnding(JobState.COMPLETED, {})

    async with open_jobs(tmp_path / "jobs.db", concurrency=2) as jobs, working(jobs, crowd):
        for number in range(5):
            await jobs.submit(Job(f"job-{number}", ADA))
        for number in range(5):
            await told(jobs, f"job-{number}")
    assert most == 2


def test_a_job_does_not_end_queued():
    with pytest.raises(ValueError, match="is not a final state"):
        JobEnding(JobState.QUEUED, {})


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"in": value}
    return value


@pytest.mark.parametrize("body", [{"half": "\ud800"}, nested(300)], ids=["surrogate", "deep"])
async def test_what_is_rarely_json_is_kept_and_returned(tmp_path, body):
    async def echo_event(job, checkpoint):
        await checkpoint.add_event(job.body)
        return JobEnding(JobState.COMPLETED, job.body)

    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, echo_event):
        await jobs.submit(Job("job-1", ADA, body))
        assert [event.body for event in await told(jobs, "job-1")] == [body]
        assert await jobs.result("job-1", ADA) == body


async def test_a_result_that_cannot_be_stored_fails_its_job_alone(tmp_path):
    async def perform(job, checkpoint):
        return JobEnding(JobState.COMPLETED, {"not": object()} if job.id == "job-1" else {})

    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, perform):
        for name, state in (("job-1", JobState.FAILED), ("job-2", JobState.COMPLETED)):
            await jobs.submit(Job(name, ADA))
            await told(jobs, name)
            assert (await jobs.status(name, ADA)).state is state
