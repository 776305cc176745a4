"""One protocol, two executors, the same laws."""

import os
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from batuta.errors import ConfigError, ExecutorError, StoreError
from batuta.executor import open_executor
from batuta.executor.ray_worker import portable_error


def traced_job(folder, act):
    """A job that leaves traces in a folder; `act(item)` says what playing does. It travels by value."""

    class Traced:
        @asynccontextmanager
        async def open(self):
            mark = folder / f"open-{os.getpid()}-{time.monotonic_ns()}"
            mark.touch()

            async def play(item):
                (folder / f"began-{item}-{time.monotonic_ns()}").touch()
                found = await act(item)
                (folder / f"played-{item}-{time.monotonic_ns()}").touch()
                return found

            try:
                yield play
            finally:
                mark.unlink(missing_ok=True)

    return Traced()


async def square(item):
    await anyio.sleep(0.001 * (item % 3))
    return item * item


def names(folder, kind):
    return [path.name for path in folder.iterdir() if path.name.startswith(kind)]


_RAY_STARTS = 3


@pytest.fixture(scope="module")
def ray_cluster():
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors have no tests
    for _ in range(
        _RAY_STARTS
    ):  # Ray itself gives its node 30 s, which a busy machine may not have
        try:
            ray.init(
                address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
                configure_logging=False, _node_ip_address="127.0.0.1", object_store_memory=80 * 2**20,
            )  # fmt: skip
            break
        except Exception as error:  # Ray raises no other class
            if "timed out during startup" not in str(error):
                raise
            ray.shutdown()
    else:
        pytest.skip(f"Ray's node did not start in {_RAY_STARTS} x 30 s: the machine is too busy")
    yield ray
    ray.shutdown()


@pytest.fixture(params=["local", "ray"])
async def executor(request):
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    workers = 2 if request.param == "ray" else None
    async with open_executor(request.param, workers) as found:
        yield found


async def test_each_result_comes_once_and_is_the_jobs(executor, tmp_path):
    found = []
    await executor.run_all(
        traced_job(tmp_path, square), range(200), lambda *pair: found.append(pair), concurrency=16
    )
    assert sorted(found) == [(n, n * n) for n in range(200)]
    assert len(names(tmp_path, "played-")) == 200
    assert not names(tmp_path, "open-"), "what was opened is closed"


async def test_nothing_to_play_opens_nothing_for_long(executor, tmp_path):
    await executor.run_all(traced_job(tmp_path, square), (), lambda *_: None, concurrency=4)
    assert not names(tmp_path, "open-")


@pytest.mark.parametrize("concurrency", [1, 3, 8])
async def test_no_more_than_so_many_at_the_same_time(executor, tmp_path, concurrency):
    async def linger(item):
        (tmp_path / f"now-{item}").touch()
        await anyio.sleep(0.02)
        running = len(names(tmp_path, "now-"))
        (tmp_path / f"now-{item}").unlink()
        return running

    found = []
    await executor.run_all(
        traced_job(tmp_path, linger), range(30), lambda _, r: found.append(r),
        concurrency=concurrency,
    )  # fmt: skip
    assert len(found) == 30
    assert max(found) <= concurrency
    assert max(found) > 1 or concurrency == 1, "they do run at the same time"


async def test_the_first_error_ends_everything(executor, tmp_path):
    async def fail_late(item):
        if item == 5:
            raise StoreError("the disk is full")
        await anyio.sleep(30 if item > 5 else 0)
        return item

    found = []
    began = time.monotonic()
    with pytest.raises(ExceptionGroup) as raised:
        await executor.run_all(
            traced_job(tmp_path, fail_late), range(100), lambda p, _: found.append(p),
            concurrency=8,
        )  # fmt: skip
    assert raised.group_contains(StoreError, match="the disk is full")
    assert time.monotonic() - began < 15
    assert not names(tmp_path, "open-")
    assert len(names(tmp_path, "began-")) < 30


async def test_an_error_of_the_one_who_gets_results_ends_everything(executor, tmp_path):
    def refuse(place, result):
        raise StoreError("cannot be written")

    with pytest.raises(ExceptionGroup) as raised:
        await executor.run_all(traced_job(tmp_path, square), range(50), refuse, concurrency=4)
    assert raised.group_contains(StoreError, match="cannot be written")
    assert not names(tmp_path, "open-")


async def test_a_job_that_cannot_be_opened_says_why(executor):
    def broken():
        class Broken:
            @asynccontextmanager
            async def open(self):
                raise ConfigError("there is no such pool")
                yield

        return Broken()

    with pytest.raises((ExceptionGroup, ConfigError)) as raised:
        await executor.run_all(broken(), range(3), lambda *_: None, concurrency=2)
    error = raised.value
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert str(error) == "there is no such pool"


async def test_cancelling_ends_the_work_everywhere(executor, tmp_path):
    async def sleep_long(item):
        await anyio.sleep(60)

    with anyio.move_on_after(2) as scope:
        await executor.run_all(
            traced_job(tmp_path, sleep_long), range(20), lambda *_: None, concurrency=4
        )
    assert scope.cancelled_caught
    assert not names(tmp_path, "open-")
    assert len(names(tmp_path, "began-")) == 4
    assert not names(tmp_path, "played-")


async def test_an_actor_that_is_killed_loses_nothing(ray_cluster, tmp_path):
    async def kill_once(item):
        await anyio.sleep(0.01)
        fuse = tmp_path / "killed"
        if item == 40 and not fuse.exists():
            fuse.touch()
            os.kill(os.getpid(), 9)
        return item + 1

    found = []
    async with open_executor("ray", 2) as executor:
        await executor.run_all(
            traced_job(tmp_path, kill_once), range(120), lambda *pair: found.append(pair),
            concurrency=8,
        )  # fmt: skip
    assert sorted(found) == [(n, n + 1) for n in range(120)]
    again = len(names(tmp_path, "began-")) - 120
    assert 1 <= again <= 4 + 1, "only what the dead actor was playing is played again"


async def test_an_item_that_always_kills_its_actor_ends_the_work(ray_cluster, tmp_path):
    async def kill_always(item):
        os.kill(os.getpid(), 9)

    async with open_executor("ray", 2) as executor:
        with pytest.raises(ExceptionGroup) as raised:
            await executor.run_all(
                traced_job(tmp_path, kill_always), range(1), lambda *_: None, concurrency=2
            )
    assert raised.group_contains(ExecutorError)


async def test_actors_end_with_their_executor(ray_cluster, tmp_path):
    found = []
    async with open_executor("ray", 2) as executor:
        await executor.run_all(
            traced_job(tmp_path, pid_of), range(40), lambda _, pid: found.append(pid), concurrency=4
        )
    assert len(set(found)) == 2
    for _ in range(100):
        if not any(alive(pid) for pid in set(found)):
            return
        await anyio.sleep(0.1)
    raise AssertionError("an actor outlived its executor")


async def pid_of(item):
    await anyio.sleep(0.01)
    return os.getpid()


def alive(pid):
    try:
        with Path(f"/proc/{pid}/stat").open() as file:
            return file.read().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("name", ["spark", "local:2", ""])
async def test_an_unknown_executor_is_refused(name):
    with pytest.raises(ConfigError, match="no executor"):
        async with open_executor(name):
            pass


async def test_workers_are_for_ray():
    with pytest.raises(ConfigError, match="workers"):
        async with open_executor("local", 2):
            pass


def test_an_error_that_cannot_travel_travels_as_words():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    found = portable_error(Odd(1, 2))
    assert isinstance(found, ExecutorError)
    assert "1 and 2" in str(found)
    same = StoreError("x")
    assert portable_error(same) is same


async def test_a_job_that_no_actor_can_read_says_so(ray_cluster):
    class Unreadable:
        def __reduce__(self):
            return int, ("not a number",)

    async with open_executor("ray", 1) as executor:
        with pytest.raises(ExceptionGroup) as raised:
            await executor.run_all(Unreadable(), range(2), lambda *_: None, concurrency=1)  # pyright: ignore[reportArgumentType]
    assert raised.group_contains(ExecutorError, match="cannot read the job")
