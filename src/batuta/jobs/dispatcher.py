"""Choice of the job that runs next: round robin over tenants, within each key's limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import final
from uuid import uuid4

import anyio

from batuta.jobs.protocol import JobGate, JobOwner


@final
class Notifier:
    """One wake-up event per job, which exists only while a task waits for it."""

    def __init__(self) -> None:
        self._wakeups: dict[str, anyio.Event] = {}

    async def notify(self, job_id: str) -> None:
        """Wake every task that waits for the job."""
        wakeup = self._wakeups.pop(job_id, None)
        if wakeup is not None:
            wakeup.set()

    async def wait(self, job_id: str, seconds: float) -> None:
        """Wait until `notify` is called for the job, at most that long."""
        wakeup = self._wakeups.setdefault(job_id, anyio.Event())
        with anyio.move_on_after(seconds):
            await wakeup.wait()


POLL_SECONDS = 0.2
"""Seconds between checks while jobs wait, for new jobs and for owners below their limit again."""
IDLE_SECONDS = 1.0
"""Seconds between checks while no job waits; a job submitted to this process starts immediately."""
RESERVED_SHARE = 4
"""One in this many slots is reserved for tenants without a running job in this process."""


@final
class JobSlots:
    """The concurrency slots of one process, and the owners that occupy them."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._reserved = total // RESERVED_SHARE
        self._owners: Counter[JobOwner] = Counter()
        self._tenants: Counter[str] = Counter()
        self._turn = 0
        self._last_turns: dict[JobOwner | str, int] = {}

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
        self._turn += 1
        self._last_turns[owner] = self._last_turns[owner.tenant] = self._turn

    def give_back(self, owner: JobOwner) -> None:
        """Count a job of the owner as ended."""
        self._free += 1
        self._owners -= Counter([owner])
        self._tenants -= Counter([owner.tenant])

    def forget_absent(self, waiting: Collection[JobOwner]) -> None:
        """Forget the last turns of owners that have no waiting job."""
        present = {name for owner in waiting for name in (owner, owner.tenant)}
        self._last_turns = {n: turn for n, turn in self._last_turns.items() if n in present}

    def _has_slot(self, owner: JobOwner) -> bool:
        # Without keys there is only one tenant, so no slot needs to be reserved for another.
        newcomer = owner.key is None or not self._tenants[owner.tenant]
        return self._free > (0 if newcomer else self._reserved)

    def _rank(self, owner: JobOwner) -> tuple[int, int, int, int]:
        tenant, turns = owner.tenant, self._last_turns
        return (
            self._tenants[tenant],
            turns.get(tenant, 0),
            self._owners[owner],
            turns.get(owner, 0),
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
"""An owner without a running job, who may take any free slot."""


async def _leave_gate(gate: JobGate, owner: JobOwner, token: str) -> None:
    with anyio.CancelScope(shield=True):
        await gate.leave(owner, token)
