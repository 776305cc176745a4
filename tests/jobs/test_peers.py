"""Several processes on one PostgreSQL: what one leaves behind another takes over."""

from contextlib import contextmanager
from uuid import uuid4

import anyio
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from batuta.jobs import Job, JobEnding, JobState, open_jobs
from store.conftest import SERVER

from .conftest import working
from .test_crash import Gated, Process, never

_URL = make_url(SERVER).set(drivername="postgresql+psycopg")


@contextmanager
def database():
    """The address of a database of this test's own."""
    engine = create_engine(_URL, isolation_level="AUTOCOMMIT")
    name = f"batuta_jobs_{uuid4().hex[:12]}"
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
    except OperationalError as error:
        engine.dispose()
        pytest.skip(
            f"no PostgreSQL at {_URL} (BATUTA_TEST_POSTGRES names another): {type(error.orig).__name__}"
        )
    try:
        yield _URL.set(database=name)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        engine.dispose()


def target_of(url):
    """What the store and the jobs are told of it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


async def test_what_a_killed_process_leaves_a_living_one_takes_over(tmp_path):
    with database() as url:
        target = target_of(url)
        async with Gated() as provider:
            for model in ("m-ada", "m-bob", "m-cyd"):
                provider.gates[model].set()
            async with Process(target, provider, "job-1") as first:
                with anyio.fail_after(60):
                    await provider.arrived["m-dan"].wait()
                async with Process(target, provider) as second:
                    await first.kill()
                    provider.gates["m-dan"].set()
                    with anyio.fail_after(60):
                        while provider.calls["m-dan"] < 2:
                            await anyio.sleep(0.05)
                    async with open_jobs(target) as jobs, working(jobs, never):
                        with anyio.fail_after(60):
                            while not (await jobs.status("job-1", "ada")).state.is_final:
                                await anyio.sleep(0.05)
                        assert (await jobs.status("job-1", "ada")).state is JobState.COMPLETED
                        assert (await jobs.result("job-1", "ada"))["calls"] == 4
                    await second.kill()
        assert provider.calls == {"m-ada": 1, "m-bob": 1, "m-cyd": 1, "m-dan": 2}


async def test_a_job_is_cancelled_from_another_process(tmp_path):
    with database() as url:
        async with Gated() as provider:
            target = target_of(url)
            async with Process(target, provider, "job-1") as worker:
                with anyio.fail_after(60):
                    await provider.arrived["m-ada"].wait()
                async with open_jobs(target) as jobs:
                    with anyio.fail_after(60):
                        assert (await jobs.cancel("job-1", "ada")).state is JobState.CANCELLED
                    with anyio.fail_after(60):
                        await provider.dropped.wait()
                await worker.kill()


DBOS = """
CREATE SCHEMA dbos;
CREATE TABLE dbos.workflow_status (workflow_uuid text PRIMARY KEY, name text, status text,
    executor_id text, created_at bigint, completed_at bigint, inputs text, output text, error text);
CREATE TABLE dbos.workflow_input (workflow_uuid text PRIMARY KEY, inputs text);
CREATE TABLE dbos.workflow_output (workflow_uuid text PRIMARY KEY, output text, error text);
CREATE TABLE job_peers (id text PRIMARY KEY, seen timestamptz NOT NULL);
INSERT INTO job_peers VALUES ('alive', clock_timestamp() + interval '1 hour');
INSERT INTO dbos.workflow_status (workflow_uuid, name, status, executor_id, created_at) VALUES
    ('waits', 'batuta.job', 'ENQUEUED', NULL, 1795459572000),
    ('runs', 'batuta.job', 'PENDING', 'alive', 1795459572001),
    ('ran', 'batuta.job', 'PENDING', 'dead', 1795459572002);
INSERT INTO dbos.workflow_input SELECT workflow_uuid, '{"positionalArgs": [{"id": "' ||
    workflow_uuid || '", "tenant": "ada", "key": null, "body": {}}]}' FROM dbos.workflow_status;
"""


async def test_a_server_of_an_earlier_version_ends_what_it_runs_and_leaves_the_rest():
    performed = []

    async def perform(job, checkpoint):
        performed.append(job.id)
        return JobEnding(JobState.COMPLETED, {})

    with database() as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(DBOS)
        async with open_jobs(target_of(url)) as jobs, working(jobs, perform):
            with anyio.fail_after(60):
                while len(performed) < 2:
                    await anyio.sleep(0.05)
            await anyio.sleep(1)
            assert sorted(performed) == ["ran", "waits"]
            with engine.begin() as connection:
                connection.exec_driver_sql("UPDATE job_peers SET seen = clock_timestamp() - interval '1 minute'")  # fmt: skip
            with anyio.fail_after(60):
                while not (status := await jobs.status("runs", "ada")) or not status.state.is_final:
                    await anyio.sleep(0.05)
            assert performed[2:] == ["runs"]
        engine.dispose()


async def test_a_process_that_was_silent_stops_what_another_has_taken_over(tmp_path):
    begun, ended = anyio.Event(), anyio.Event()

    async def hang(job, checkpoint):
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            assert checkpoint.will_resume
            ended.set()

    with database() as url:
        engine = create_engine(url)
        async with open_jobs(target_of(url)) as jobs, working(jobs, hang):
            await jobs.submit(Job("job-1", "ada", {}))
            with anyio.fail_after(60):
                await begun.wait()
            await anyio.sleep(1)
            assert not ended.is_set()
            with engine.begin() as connection:
                connection.exec_driver_sql("UPDATE jobs SET runner = 'another', leased_until = leased_until + 3600")  # fmt: skip
            with anyio.fail_after(60):
                await ended.wait()
            assert (await jobs.status("job-1", "ada")).state is JobState.IN_PROGRESS
        engine.dispose()
