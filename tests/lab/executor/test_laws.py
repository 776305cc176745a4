"""One protocol, two executors, the same laws."""

import os
import pickle
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from batuta import errors
from batuta.errors import ConfigError, ExecutorError, LimitReachedError, StoreError
from batuta.lab.executor import ask_driver, open_executor
from batuta.lab.executor.ray import STARTS, _connect_cluster
from batuta.lab.executor.ray_worker import portable_error
from batuta.usage import Usage
from fakes.ray_cluster import open_ray_cluster

pytestmark = pytest.mark.timeout(600)  # Ray's start takes minutes where others compute


def traced_job(folder, act):
    """A job that leaves traces in a folder; `act(item)` is the work. It travels by value."""

    class Traced:
        @asynccontextmanager
        async def open(self):
            mark = folder / f"open-{os.getpid()}-{time.monotonic_ns()}"
            mark.touch()

            async def execute(item):
                (folder / f"began-{item}-{time.monotonic_ns()}").touch()
                found = await act(item)
                (folder / f"executed-{item}-{time.monotonic_ns()}").touch()
                return found

            try:
                yield execute
            finally:
                mark.unlink(missing_ok=True)

    return Traced()


async def square(item):
    await anyio.sleep(0.001 * (item % 3))
    return item * item


def names(folder, kind):
    return [path.name for path in folder.iterdir() if path.name.startswith(kind)]


@pytest.fixture(scope="module")
def ray_cluster():
    with open_ray_cluster(sys.modules[__name__]) as ray:
        yield ray


@pytest.fixture(scope="module")
def ray_executor(ray_cluster):
    """One pair of actors for all laws: what ended one piece of work must not disturb the next."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_executor("ray", 2)) as found,
    ):
        yield found


@pytest.fixture(params=["local", "ray"])
async def executor(request):
    if request.param == "ray":
        yield request.getfixturevalue("ray_executor")
        return
    async with open_executor("local") as found:
        yield found


async def test_each_result_comes_once_and_is_the_jobs(executor, tmp_path):
    found = []
    await executor.run_all(
        traced_job(tmp_path, square), range(200), lambda *pair: found.append(pair), concurrency=16
    )
    assert sorted(found) == [(n, n * n) for n in range(200)]
    assert len(names(tmp_path, "executed-")) == 200
    assert not names(tmp_path, "open-"), "what was opened is closed"


async def test_nothing_to_run_opens_nothing_for_long(executor, tmp_path):
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


async def test_as_many_as_are_allowed_run_at_the_same_time(executor, tmp_path):
    """Each waits for all the others: with fewer nobody would end."""
    together = 300

    async def wait_for_all(item):
        (tmp_path / f"now-{item}").touch()
        with anyio.fail_after(60):
            while len(names(tmp_path, "now-")) < together:
                await anyio.sleep(0.5)
        return item

    found = []
    await executor.run_all(
        traced_job(tmp_path, wait_for_all), range(together), lambda _, one: found.append(one),
        concurrency=together,
    )  # fmt: skip
    assert sorted(found) == list(range(together))


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
    assert not names(tmp_path, "executed-")


async def test_what_items_ask_is_answered_in_the_drivers_process(executor, tmp_path):
    async def ask(item):
        return await ask_driver(item)

    async def answer(question):
        await anyio.sleep(0.001 * (question % 3))
        return question * 10, os.getpid()

    found = []
    await executor.run_all(
        traced_job(tmp_path, ask), range(60), lambda *pair: found.append(pair),
        concurrency=12, answer=answer,
    )  # fmt: skip
    assert sorted(found) == [(n, (n * 10, os.getpid())) for n in range(60)]


async def test_the_error_of_an_answer_is_raised_where_it_was_asked(executor, tmp_path):
    async def ask(item):
        try:
            return await ask_driver(item)
        except LimitReachedError as error:
            return f"{error.limit}: {error}"

    async def answer(question):
        raise LimitReachedError("calls", "7", "7")

    found = []
    await executor.run_all(
        traced_job(tmp_path, ask), range(3), lambda _, said: found.append(said),
        concurrency=2, answer=answer,
    )  # fmt: skip
    assert found == ["calls: the limit on calls was reached: 7 of 7"] * 3


async def test_where_nobody_answers_asking_is_an_error(executor, tmp_path):
    async def ask(item):
        return await ask_driver(item)

    with pytest.raises(ExceptionGroup) as raised:
        await executor.run_all(traced_job(tmp_path, ask), range(2), lambda *_: None, concurrency=1)
    assert raised.group_contains(ExecutorError, match="run_all has no answer")


async def test_cancelling_ends_the_answers_too(executor, tmp_path):
    async def ask(item):
        return await ask_driver(item)

    ended = []

    async def answer(question):
        try:
            await anyio.sleep(60)
        finally:
            ended.append(question)

    with anyio.move_on_after(2) as scope:
        await executor.run_all(
            traced_job(tmp_path, ask), range(9), lambda *_: None, concurrency=3, answer=answer
        )
    assert scope.cancelled_caught
    assert sorted(ended) == [0, 1, 2]


async def test_an_answer_is_finished_though_the_actor_that_asked_has_died(ray_cluster, tmp_path):
    async def ask(item):
        return os.getpid(), await ask_driver((item, os.getpid()))

    asked, finished = [], []

    async def answer(question):
        asked.append(question)
        item, pid = question
        if item == 5 and len([one for one, _ in asked if one == 5]) == 1:
            os.kill(pid, 9)
        await anyio.sleep(0.3)
        finished.append(question)
        return item

    found = {}
    async with open_executor("ray", 2) as executor:
        await executor.run_all(
            traced_job(tmp_path, ask), range(12), found.__setitem__, concurrency=4, answer=answer
        )
    assert {item: said for item, (_, said) in found.items()} == {n: n for n in range(12)}
    again = [item for item, _ in asked]
    assert again.count(5) == 2 and len(asked) <= 12 + 2, "the dead actor's two items asked again"
    assert sorted(finished) == sorted(asked)


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
    assert 1 <= again <= 4 + 1, "only what the dead actor was running is run again"


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


class SlowRay:
    """Ray, whose node takes longer than Ray waits for it, so many times."""

    def __init__(self, slow, words="The current node timed out during startup. This could happen"):
        self.slow, self.words = slow, words
        self.started = self.ended = 0

    def init(self, **_):
        self.started += 1
        if self.started <= self.slow:
            raise Exception(self.words)

    def shutdown(self):
        self.ended += 1


def test_a_node_that_starts_too_slowly_is_started_again():
    ray = SlowRay(STARTS - 1)
    _connect_cluster(ray, "local")
    assert (ray.started, ray.ended) == (STARTS, STARTS - 1)


@pytest.mark.parametrize(("slow", "started"), [(SlowRay(STARTS), STARTS), (SlowRay(1, "no"), 1)])
def test_a_cluster_that_cannot_be_used_says_why(slow, started):
    with pytest.raises(
        ConfigError, match=rf"no usable Ray cluster \(address=10.0.0.9:1\): {slow.words}"
    ):
        _connect_cluster(slow, "10.0.0.9:1")
    assert slow.started == started


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


KINDS = [one for one in vars(errors).values()
         if isinstance(one, type) and issubclass(one, errors.BatutaError)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_of_ours_travels_with_what_it_knows(kind):
    three = issubclass(kind, LimitReachedError)
    error = kind("usd", "3", "4") if three else kind("what happened")
    if isinstance(error, errors.ClientError):
        error.status, error.retry_after, error.usage = 503, 2.5, Usage(calls=1, input=7)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert portable_error(error) is error
    assert type(copy) is kind and str(copy) == str(error) and vars(copy) == vars(error)
