"""Several processes on one PostgreSQL: what one leaves behind another takes over."""

import os
from contextlib import contextmanager
from uuid import uuid4

import anyio
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from batuta.jobs import JobState
from batuta.jobs.durable import DurableJobs

from .conftest import working
from .test_crash import Gated, Process, never

SERVER = os.environ.get("BATUTA_TEST_POSTGRES", "postgresql+psycopg://127.0.0.1/postgres")


@contextmanager
def database():
    """A database of this test's own."""
    engine = create_engine(SERVER, isolation_level="AUTOCOMMIT")
    name = f"batuta_jobs_{uuid4().hex[:12]}"
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
    except OperationalError as error:
        engine.dispose()
        pytest.skip(
            f"no PostgreSQL at {SERVER} (BATUTA_TEST_POSTGRES names another): {type(error.orig).__name__}"
        )
    try:
        yield make_url(SERVER).set(database=name)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        engine.dispose()


async def test_what_a_killed_process_leaves_a_living_one_takes_over(tmp_path):
    with database() as url:
        target = url.render_as_string(hide_password=False)
        async with Gated() as provider:
            for model in ("m-ada", "m-bob", "m-cyd"):
                provider.gates[model].set()
            async with Process(target, provider, "job-1") as first:
                with anyio.fail_after(40):
                    await provider.arrived["m-dan"].wait()
                async with Process(target, provider) as second:
                    await first.kill()
                    provider.gates["m-dan"].set()
                    with anyio.fail_after(40):
                        while provider.calls["m-dan"] < 2:
                            await anyio.sleep(0.05)
                    async with DurableJobs(url) as jobs, working(jobs, never):
                        with anyio.fail_after(20):
                            while not (await jobs.status("job-1", "ada")).state.is_final:
                                await anyio.sleep(0.05)
                        assert (await jobs.status("job-1", "ada")).state is JobState.COMPLETED
                        assert (await jobs.result("job-1", "ada"))["calls"] == 4
                    await second.kill()
        assert provider.calls == {"m-ada": 1, "m-bob": 1, "m-cyd": 1, "m-dan": 2}


async def test_a_job_is_cancelled_from_another_process(tmp_path):
    with database() as url:
        async with Gated() as provider:
            target = url.render_as_string(hide_password=False)
            async with Process(target, provider, "job-1") as worker:
                with anyio.fail_after(40):
                    await provider.arrived["m-ada"].wait()
                async with DurableJobs(url) as jobs:
                    with anyio.fail_after(20):
                        assert (await jobs.cancel("job-1", "ada")).state is JobState.CANCELLED
                    with anyio.fail_after(30):
                        await provider.dropped.wait()
                await worker.kill()
