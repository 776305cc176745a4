"""Processes that may hang or die, and nothing else does."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from batuta.offload import ProcessDiedError, ProcessPool, ProcessTimeoutError
from batuta.offload.child import _answer_call
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


async def test_it_starts_with_the_first_call_and_is_used_again(pool):
    assert not pool._idle
    assert await pool.call(find_text_fault_json, *ASKED) is None
    first = pool._idle[0]
    assert "string" in await pool.call(find_text_fault_json, {"type": "string"}, "1", 0)
    assert pool._idle == [first] and first.calls == 2


async def test_the_clock_and_the_kernel_end_a_call(pool):
    with pytest.raises(ProcessTimeoutError):
        await pool.call(find_text_fault_json, *ENDLESS, wall_seconds=0.5, cpu_seconds=60)
    with pytest.raises(ProcessTimeoutError):
        await pool.call(find_text_fault_json, *ENDLESS, wall_seconds=60, cpu_seconds=0.1)
    assert not pool._idle
    assert await pool.call(find_text_fault_json, *ASKED) is None


async def test_a_cancelled_call_takes_its_process_with_it(pool):
    with anyio.move_on_after(1):
        await pool.call(find_text_fault_json, *ENDLESS, wall_seconds=60, cpu_seconds=60)
    with anyio.fail_after(10):
        while pool._limiter_here().borrowed_tokens:
            await anyio.sleep(0.01)
    assert not pool._idle
    assert await pool.call(find_text_fault_json, *ASKED) is None


async def test_a_process_that_was_killed_while_idle_is_replaced(pool):
    await pool.call(find_text_fault_json, *ASKED)
    await pool.call(find_text_fault_json, *ASKED)
    os.kill(pool._idle[0]._process.pid, signal.SIGKILL)
    pool._idle[0]._process.wait()
    assert await pool.call(find_text_fault_json, *ASKED) is None


async def test_what_it_raises_is_named_and_ends_no_process(pool):
    with pytest.raises(ProcessDiedError, match="TypeError"):
        await pool.call(find_text_fault_json, 1)
    assert len(pool._idle) == 1


async def test_many_calls_wait_their_turn(pool):
    found = []

    async def one():
        found.append(await pool.call(find_text_fault_json, *ASKED))

    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(one)
    assert found == [None] * 40 and len(pool._idle) <= 2


def test_only_this_package_is_called():
    asked = {"module": "os", "function": "getpid", "arguments": [], "cpu_seconds": 1}
    assert _answer_call(asked) == {"error": "ImportError"}


async def test_a_process_knows_no_secret(pool):
    os.environ["BATUTA_TEST_KEY"] = "secret"
    try:
        await pool.call(find_text_fault_json, *ASKED)
        environment = Path(f"/proc/{pool._idle[0]._process.pid}/environ")
        assert b"secret" not in environment.read_bytes()
    finally:
        del os.environ["BATUTA_TEST_KEY"]


def test_a_thread_may_wait_for_it(pool):
    assert pool.call_now(find_text_fault_json, *ASKED) is None
