"""The tables of jobs are made once, however many replicas start together."""

import anyio
import pytest
from anyio import to_thread

from batuta.jobs import open_jobs
from store.conftest import postgres, tell

__all__ = ["postgres"]
pytestmark = pytest.mark.anyio


async def test_replicas_that_start_together_make_the_tables_once(postgres):
    async def start():
        async with open_jobs(postgres) as jobs:
            assert await jobs.status("none", "ada") is None

    empty = ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    for _ in range(5):
        await to_thread.run_sync(tell, postgres, *empty)
        async with anyio.create_task_group() as replicas:
            for _ in range(8):
                replicas.start_soon(start)
