"""Processes that may hang or die, and nothing else does."""

import os
import signal
import threading
import time
from pathlib import Path

import anyio
import pytest

from batuta.offload import ProcessDiedError, ProcessPool, ProcessTimeoutError
from batuta.offload.child import HEADER_BYTES
from batuta.schemas.checker import find_text_fault_json
from schemas.hostile import nested

ASKED = ({"type": "string"}, '"a"', 0)
ENDLESS = (nested(10), '"x"', 0)
"""Ten thousand million checks that keep nothing; its size is bounded elsewhere."""


@pytest.fixture
def pool():
    pool = ProcessPool(2)
    yield pool
    pool.close()


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until_dead(process):
    with anyio.fail_after(60):
        while is_alive(process):
            await anyio.sleep(0.01)


async def test_it_starts_with_the_first_call_and_is_used_again(pool):
    assert not pool.process_ids
    assert await pool.call(find_text_fault_json, *ASKED) is None
    first = pool.process_ids
    assert len(first) == 1
    assert "string" in await pool.call(find_text_fault_json, {"type": "string"}, "1", 0)
    assert pool.process_ids == first


async def test_the_clock_and_the_kernel_end_a_call(pool):
    began = time.monotonic()
    with pytest.raises(ProcessTimeoutError):
        await pool.call(find_text_fault_json, *ENDLESS, wall_seconds=0.5, cpu_seconds=60)
    assert time.monotonic() - began < 2
    with pytest.raises(ProcessTimeoutError):
        await pool.call(find_text_fault_json, *ENDLESS, wall_seconds=60, cpu_seconds=0.1)
    assert not pool.process_ids
    assert await pool.call(find_text_fault_json, *ASKED) is None


async def test_a_cancelled_call_takes_its_process_with_it(pool):
    with anyio.move_on_after(1):
        await pool.call(find_text_fault_json, *ENDLESS, wall_seconds=60, cpu_seconds=60)
    with anyio.fail_after(60):
        while pool.process_ids:
            await anyio.sleep(0.01)
    assert await pool.call(find_text_fault_json, *ASKED) is None


async def test_a_process_that_was_killed_while_idle_is_replaced(pool):
    await pool.call(find_text_fault_json, *ASKED)
    (process,) = pool.process_ids
    os.kill(process, signal.SIGKILL)
    await until_dead(process)
    assert await pool.call(find_text_fault_json, *ASKED) is None
    assert process not in pool.process_ids


async def test_a_process_that_nobody_asks_ends_and_is_replaced():
    pool = ProcessPool(1, idle_seconds=0.2)
    try:
        assert await pool.call(find_text_fault_json, *ASKED) is None
        (process,) = pool.process_ids
        await until_dead(process)
        assert await pool.call(find_text_fault_json, *ASKED) is None
    finally:
        pool.close()


async def test_a_process_that_dies_at_work_is_told_and_replaced(pool):
    async def kill():
        with anyio.fail_after(60):
            while not pool.process_ids:
                await anyio.sleep(0.01)
        await anyio.sleep(0.5)
        for process in pool.process_ids:
            os.kill(process, signal.SIGKILL)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill)
        with pytest.raises(ProcessDiedError):
            await pool.call(find_text_fault_json, *ENDLESS, wall_seconds=60, cpu_seconds=60)
    assert await pool.call(find_text_fault_json, *ASKED) is None


def find_output(process):
    """Return a path to the pipe by which the process answers; its input is file 0."""
    for path in Path(f"/proc/{process}/fd").iterdir():
        if path.name not in {"0", "1", "2"} and str(path.readlink()).startswith("pipe:"):
            return path
    return None


@pytest.mark.parametrize("answer", [b"\xff", b"{", b"[" * 200_000, b"3", b"[]", b"{}"])
async def test_an_odd_answer_of_a_process_that_was_taken_over_is_a_failed_call(pool, answer):
    async def answer_for_it():
        with anyio.fail_after(60):
            while not pool.process_ids:
                await anyio.sleep(0.01)
            (process,) = pool.process_ids
            while (output := find_output(process)) is None:
                await anyio.sleep(0.01)
        whole = len(answer).to_bytes(HEADER_BYTES) + answer
        await anyio.to_thread.run_sync(output.write_bytes, whole)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer_for_it)
        with pytest.raises(ProcessDiedError, match="is not valid"):
            await pool.call(find_text_fault_json, *ENDLESS, wall_seconds=60, cpu_seconds=60)
    assert not pool.process_ids


async def test_what_it_raises_is_named_and_ends_no_process(pool):
    with pytest.raises(ProcessDiedError, match="TypeError"):
        await pool.call(find_text_fault_json, 1)
    first = pool.process_ids
    assert await pool.call(find_text_fault_json, *ASKED) is None
    assert pool.process_ids == first


async def test_many_calls_wait_their_turn(pool):
    found, processes = [], set()

    async def one():
        found.append(await pool.call(find_text_fault_json, *ASKED))
        processes.update(pool.process_ids)

    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(one)
    assert found == [None] * 40 and 1 <= len(processes) <= 2


async def test_only_this_package_is_called(pool):
    with pytest.raises(ProcessDiedError, match="ImportError"):
        await pool.call(os.getpid)


async def test_a_process_knows_no_secret(pool):
    os.environ["BATUTA_TEST_KEY"] = "secret"
    try:
        await pool.call(find_text_fault_json, *ASKED)
        (process,) = pool.process_ids
        assert b"secret" not in Path(f"/proc/{process}/environ").read_bytes()
    finally:
        del os.environ["BATUTA_TEST_KEY"]


def test_a_thread_may_wait_for_it(pool):
    assert pool.call_now(find_text_fault_json, *ASKED) is None


def test_closing_ends_the_calls_that_are_being_made(pool):
    raised = []

    def ask():
        try:
            pool.call_now(find_text_fault_json, *ENDLESS, wall_seconds=60, cpu_seconds=60)
        except ProcessDiedError as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not pool.process_ids:
        time.sleep(0.01)
    time.sleep(0.3)
    pool.close()
    thread.join(10)
    assert raised and not pool.process_ids
