"""Which job runs next: tenants take turns, and a key at its limit holds up nobody else."""

from collections import Counter
from itertools import pairwise

import anyio
import pytest

from batuta.jobs import Job, JobEnding, JobOwner, JobState, open_jobs
from batuta.jobs.dispatcher import JobDispatcher, JobSlots, Notifier

from .conftest import working

ADA, BOB = JobOwner("ada", "key-a"), JobOwner("bob", "key-b")


class Counting:
    """Runs jobs that wait until they are released; knows the order in which they began."""

    def __init__(self):
        self.begun, self.running, self.most = [], Counter(), Counter()
        self.released = anyio.Event()

    async def __call__(self, job, checkpoint):
        self.begun.append(job.id)
        self.running[job.key] += 1
        self.most[job.key] = max(self.most[job.key], self.running[job.key])
        await self.released.wait()
        self.running[job.key] -= 1
        return JobEnding(JobState.COMPLETED, {})

    async def until(self, count):
        with anyio.fail_after(60):
            while len(self.begun) < count:
                await anyio.sleep(0.02)


class Caps:
    """A gate with a cap for each key, which may change."""

    def __init__(self, **caps):
        self.caps, self.inside = caps, {}

    async def enter(self, owner, token):
        inside = self.inside.setdefault(owner.key, set())
        if len(inside) >= self.caps.get(owner.key, 100):
            return False
        inside.add(token)
        return True

    async def leave(self, owner, token):
        self.inside[owner.key].remove(token)


async def submit(jobs, owner, *names):
    for name in names:
        await jobs.submit(Job(name, owner.tenant, {}, key=owner.key))


def names(letter, count):
    return [f"{letter}{number:02}" for number in range(count)]


async def test_one_tenants_jobs_leave_places_for_another(tmp_path):
    perform = Counting()
    async with open_jobs(tmp_path / "jobs.db", concurrency=8) as jobs, working(jobs, perform):
        await submit(jobs, ADA, *names("a", 12))
        await perform.until(6)
        await anyio.sleep(0.5)
        assert sorted(perform.begun) == names("a", 6)  # a quarter is kept for others
        await submit(jobs, BOB, "b")
        await perform.until(7)
        assert perform.begun[-1] == "b"
        perform.released.set()
        await perform.until(13)


async def test_without_keys_all_places_are_used(tmp_path):
    perform = Counting()
    async with open_jobs(tmp_path / "jobs.db", concurrency=4) as jobs, working(jobs, perform):
        await submit(jobs, JobOwner("local"), *names("a", 5))
        await perform.until(4)
        perform.released.set()
        await perform.until(5)


async def test_tenants_take_turns(tmp_path):
    perform = Counting()
    perform.released.set()
    async with open_jobs(tmp_path / "jobs.db", concurrency=1) as jobs:
        await submit(jobs, ADA, *names("a", 4))
        await submit(jobs, BOB, *names("b", 2))
        await submit(jobs, JobOwner("bob", "key-c"), *names("c", 2))
        async with working(jobs, perform):
            await perform.until(8)
    tenants = ["ada" if name[0] == "a" else "bob" for name in perform.begun]
    assert all(one != other for one, other in pairwise(tenants)), perform.begun
    of_bob = [name[0] for name in perform.begun if name[0] != "a"]
    assert of_bob in (["b", "c", "b", "c"], ["c", "b", "c", "b"])
    assert [name for name in perform.begun if name[0] == "a"] == names("a", 4)


async def test_a_key_at_its_limit_waits_and_holds_up_nobody(tmp_path):
    perform, caps = Counting(), Caps(**{"key-a": 1})
    async with open_jobs(tmp_path / "jobs.db", concurrency=8) as jobs, working(jobs, perform, caps):
        await submit(jobs, ADA, *names("a", 4))
        await submit(jobs, BOB, *names("b", 3))
        await perform.until(4)
        await anyio.sleep(0.5)
        assert perform.running == {"key-a": 1, "key-b": 3}
        for name in names("a", 4)[1:]:
            assert (await jobs.status(name, "ada")).state is JobState.QUEUED
        perform.released.set()
        await perform.until(7)
        with anyio.fail_after(60):
            while (await jobs.status("a03", "ada")).state is not JobState.COMPLETED:
                await anyio.sleep(0.02)
            while any(caps.inside.values()):
                await anyio.sleep(0.02)
    assert perform.most["key-a"] == 1


async def test_a_limit_that_changes_holds_for_jobs_that_wait(tmp_path):
    perform, caps = Counting(), Caps(**{"key-a": 1})
    async with open_jobs(tmp_path / "jobs.db", concurrency=8) as jobs, working(jobs, perform, caps):
        await submit(jobs, ADA, *names("a", 5))
        await perform.until(1)
        caps.caps["key-a"] = 3
        await perform.until(3)
        await anyio.sleep(0.5)
        assert perform.running["key-a"] == 3
        caps.caps["key-a"] = 0
        perform.released.set()
        await anyio.sleep(0.7)
        assert len(perform.begun) == 3
        caps.caps["key-a"] = 1
        await perform.until(5)


async def test_a_waiting_job_that_is_cancelled_is_never_run(tmp_path):
    perform, caps = Counting(), Caps(**{"key-a": 1})
    async with open_jobs(tmp_path / "jobs.db") as jobs, working(jobs, perform, caps):
        await submit(jobs, ADA, "a", "b", "c")
        await perform.until(1)
        assert (await jobs.cancel("b", "ada")).state is JobState.CANCELLED
        assert await jobs.forget("b", "ada")
        perform.released.set()
        await perform.until(2)
        assert perform.begun == ["a", "c"]


@pytest.mark.parametrize("total", [1, 3, 4, 16])
def test_places_are_never_more_than_there_are(total):
    places, waiting = JobSlots(total), [ADA, BOB, JobOwner("cyd")]
    taken = []
    while (owner := places.choose(waiting)) is not None:
        places.take(owner)
        taken.append(owner)
    assert len(taken) == total
    for owner in taken:
        places.give_back(owner)
    assert places.choose([ADA]) == ADA


@pytest.mark.parametrize(("waiting", "least", "most"), [((), 1, 3), ((ADA,), 4, 20)])
async def test_the_table_is_looked_at_seldom_while_no_job_waits(waiting, least, most):
    """A server that nobody asks lets its machine sleep; a new job wakes it."""
    looks = []

    class ClosedGate:
        async def enter(self, owner, token):
            return False

        async def leave(self, owner, token):
            pass

    async def find_owners():
        looks.append(anyio.current_time())
        return waiting

    async def start_next(_):
        raise AssertionError("nothing is let in")

    dispatcher = JobDispatcher(JobSlots(4), find_owners, start_next)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dispatcher.run, ClosedGate())
        await anyio.sleep(1.9)
        assert least <= len(looks) <= most
        seen = len(looks)
        dispatcher.look_again()
        with anyio.fail_after(5):
            while len(looks) == seen:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


async def test_a_job_that_nobody_waits_for_any_more_leaves_no_event():
    notifier = Notifier()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notifier.wait, "longer", 30)
        await notifier.wait("elsewhere", 0.01)
        assert set(notifier._wakeups) == {"longer"}
        await notifier.notify("longer")
    assert not notifier._wakeups
