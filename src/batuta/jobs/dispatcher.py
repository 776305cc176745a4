"""Chooses and starts the next job: the tenant with the fewest running jobs comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import final
from uuid import uuid4

import anyio

from batuta.jobs.protocol import JobGate, JobOwner


@final
class Notifier:
    """Wakes the tasks that wait for a job; keeps nothing of a job that no task waits for."""

    def __init__(self) -> None:
        self._wakeups: dict[str, set[anyio.Event]] = {}

    async def notify(self, job_id: str) -> None:
        """Wake every task that waits for the job."""
        for wakeup in self._wakeups.pop(job_id, ()):
            wakeup.set()

    async def wait(self, job_id: str, seconds: float) -> None:
        """Wait until `notify` is called for the job, at most that long."""
        wakeup = anyio.Event()
        waiting = self._wakeups.setdefault(job_id, set())
        waiting.add(wakeup)
        try:
            with anyio.move_on_after(seconds):
                await wakeup.wait()
        finally:
            waiting.discard(wakeup)
            if not waiting and self._wakeups.get(job_id) is waiting:
                del self._wakeups[job_id]


POLL_SECONDS = 0.2
"""Seconds between checks while jobs wait or every slot is taken. A job may become ready to start at
any time: another process may submit it, or its key may drop below its limit."""
IDLE_SECONDS = 1.0
"""Seconds between checks while no job waits; a job submitted to this process starts immediately."""
SLOTS_PER_RESERVED = 4
"""One in this many slots is reserved for tenants without a running job in this process. A job
without a key may take any slot."""


@final
class JobSlots:
    """The concurrency slots of one process, and the owners that occupy them."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._reserved = total // SLOTS_PER_RESERVED
        self._owners: Counter[JobOwner] = Counter()
        self._tenants: Counter[str] = Counter()
        self._starts = 0
        self._last_starts: dict[JobOwner | str, int] = {}

    def choose(self, waiting: Collection[JobOwner]) -> JobOwner | None:
        """Return the owner that gets the next slot; None if no waiting owner may get a slot.

        The tenant with the lowest number of running jobs comes first; of equal tenants, the one
        for which this process started a job the longest ago. Keys of a tenant are ordered alike.
        """
        allowed = [owner for owner in waiting if self._has_slot(owner)]
        return min(allowed, key=self._rank, default=None)

    def take(self, owner: JobOwner) -> None:
        """Count a job of the owner as running."""
        self._free -= 1
        self._owners[owner] += 1
        self._tenants[owner.tenant] += 1
        self._starts += 1
        self._last_starts[owner] = self._last_starts[owner.tenant] = self._starts

    def give_back(self, owner: JobOwner) -> None:
        """Count a job of the owner as ended."""
        self._free += 1
        self._owners -= Counter([owner])
        self._tenants -= Counter([owner.tenant])

    def forget_absent(self, waiting: Collection[JobOwner]) -> None:
        """Forget the latest starts of the owners and tenants that have no waiting job."""
        present = {name for owner in waiting for name in (owner, owner.tenant)}
        self._last_starts = {n: start for n, start in self._last_starts.items() if n in present}

    def _has_slot(self, owner: JobOwner) -> bool:
        # Without keys there is only one tenant, so no slot needs to be reserved for another.
        newcomer = owner.key is None or not self._tenants[owner.tenant]
        return self._free > (0 if newcomer else self._reserved)

    def _rank(self, owner: JobOwner) -> tuple[int, int, int, int]:
        tenant, starts = owner.tenant, self._last_starts
        return (
            self._tenants[tenant],
            starts.get(tenant, 0),
            self._owners[owner],
            starts.get(owner, 0),
        )


@final
class JobDispatcher:
    """Starts waiting jobs one by one, as slots become free and the gate admits their keys."""

    def __init__(
        self,
        slots: JobSlots,
        find_owners: Callable[[], Awaitable[Collection[JobOwner]]],
        start_next: Callable[[JobOwner], Awaitable[anyio.Event | None]],
    ) -> None:
        """Set up the dispatcher; `run` starts jobs.

        Args:
            slots: the slots of this process.
            find_owners: returns the owners of waiting jobs.
            start_next: starts the owner's oldest waiting job and returns an event that is set
                when the job ends; None if no job of the owner could be claimed.
        """
        self._slots = slots
        self._find_owners = find_owners
        self._start_next = start_next
        self._changed = anyio.Event()

    def look_again(self) -> None:
        """Look for waiting jobs now instead of at the next poll."""
        self._changed.set()

    async def run(self, gate: JobGate) -> None:
        """Start jobs until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._changed = anyio.Event()
                some_wait = await self._start_jobs(gate, tasks)
                with anyio.move_on_after(POLL_SECONDS if some_wait else IDLE_SECONDS):
                    await self._changed.wait()

    async def _start_jobs(self, gate: JobGate, tasks: anyio.abc.TaskGroup) -> bool:
        """Start the jobs that may start; return True if jobs waited or every slot is taken."""
        if self._slots.choose([_NEWCOMER]) is None:
            return True
        waiting = set(await self._find_owners())
        some_wait = bool(waiting)
        self._slots.forget_absent(waiting)
        while (owner := self._slots.choose(waiting)) is not None:
            token = f"job-{uuid4().hex}"
            if not await gate.enter(owner, token):
                waiting.discard(owner)
                continue
            try:
                ended = await self._start_next(owner)
            except BaseException:
                await _leave_gate(gate, owner, token)
                raise
            if ended is None:
                waiting.discard(owner)
                await _leave_gate(gate, owner, token)
                continue
            self._slots.take(owner)
            tasks.start_soon(self._hold_slot, gate, owner, token, ended)
        return some_wait

    async def _hold_slot(
        self, gate: JobGate, owner: JobOwner, token: str, ended: anyio.Event
    ) -> None:
        try:
            await ended.wait()
        finally:
            self._slots.give_back(owner)
            self._changed.set()
            await _leave_gate(gate, owner, token)


_NEWCOMER = JobOwner(tenant="")
"""An owner who may take any free slot."""


async def _leave_gate(gate: JobGate, owner: JobOwner, token: str) -> None:
    with anyio.CancelScope(shield=True):
        await gate.leave(owner, token)
