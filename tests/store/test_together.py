"""Batches: nobody waits for more than the one under way, and nothing is done for nobody."""

import threading

import anyio
import pytest
from sqlalchemy import text

from batuta.errors import StoreError
from batuta.store.budgets import Batcher
from batuta.store.database import open_database, parse_url


class Slow:
    """Doubles numbers, when it is let."""

    def __init__(self):
        self.batches = []
        self.undone = []
        self.go = anyio.Event()

    async def work(self, items):
        self.batches.append(list(items))
        await self.go.wait()
        return [2 * item for item in items]

    async def undo(self, result):
        self.undone.append(result)


async def test_whoever_comes_while_a_batch_is_under_way_shares_the_next():
    slow, results = Slow(), {}
    together = Batcher(slow.work)

    async def ask(number):
        results[number] = await together.submit(number)

    async with anyio.create_task_group() as tasks:
        for number in (0, 1):
            tasks.start_soon(ask, number)
        await anyio.wait_all_tasks_blocked()
        for number in (2, 3, 4):
            tasks.start_soon(ask, number)
        await anyio.wait_all_tasks_blocked()
        slow.go.set()
    assert slow.batches == [[0, 1], [2, 3, 4]]
    assert results == {number: 2 * number for number in range(5)}


async def test_who_goes_before_his_batch_begins_is_left_out():
    slow = Slow()
    together = Batcher(slow.work, slow.undo)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(together.submit, 1)
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.01):
            await together.submit(2)
        tasks.start_soon(together.submit, 3)
        await anyio.wait_all_tasks_blocked()
        slow.go.set()
    assert slow.batches == [[1], [3]]
    assert slow.undone == []


async def test_another_does_the_batch_of_who_was_to_do_it_and_goes():
    slow, results, gone = Slow(), {}, anyio.CancelScope()
    together = Batcher(slow.work, slow.undo)

    async def ask(number):
        results[number] = await together.submit(number)

    async def leave():
        with gone:
            await together.submit(2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, 1)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(leave)  # the first of its batch: it waits for the turn
        tasks.start_soon(ask, 3)
        tasks.start_soon(ask, 4)
        await anyio.wait_all_tasks_blocked()
        gone.cancel()
        await anyio.wait_all_tasks_blocked()
        slow.go.set()
    assert slow.batches == [[1], [3, 4]]
    assert results == {1: 2, 3: 6, 4: 8}
    assert slow.undone == []


def writer_threads():
    return {thread for thread in threading.enumerate() if thread.name == "batuta store"}


async def test_who_is_cancelled_while_a_file_is_written_leaves_when_it_is(tmp_path):
    others, wrote = writer_threads(), []
    database = open_database(parse_url(tmp_path / "runs.db"))
    go = threading.Event()

    def write(connection):
        connection.exec_driver_sql("CREATE TABLE one (number INTEGER)")
        wrote.append(go.wait(60))

    def fail(connection):
        connection.exec_driver_sql("INSERT INTO two VALUES (1)")

    try:
        with pytest.raises(StoreError, match="two"):
            await database.run_write(fail)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(database.run_write, write)
            await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
            go.set()
        assert wrote == [True]
        assert await database.fetch_rows(text("SELECT * FROM one")) == []
    finally:
        await database.close()
    assert writer_threads() <= others


async def test_what_was_done_for_who_has_gone_is_undone():
    slow, gone = Slow(), anyio.CancelScope()
    together = Batcher(slow.work, slow.undo)

    async def leave():
        with gone:
            await together.submit(3)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(together.submit, 1)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(together.submit, 2)
        tasks.start_soon(leave)
        await anyio.wait_all_tasks_blocked()
        first, slow.go = slow.go, anyio.Event()
        first.set()
        await anyio.wait_all_tasks_blocked()
        gone.cancel()
        await anyio.wait_all_tasks_blocked()
        assert slow.undone == []
        slow.go.set()
    assert slow.batches == [[1], [2, 3]]
    assert slow.undone == [6]
