"""The choice of the job that runs next: tenants take turns, and no key exceeds its limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import final
from uuid import uuid4

import anyio

from batuta.jobs.protocol import JobGate, JobOwner


@final
class Notifier:
    """One bell a job, there only while somebody listens."""

    def __init__(self) -> None:
        self._notifier: dict[str, anyio.Event] = {}

    async def notify(self, job_id: str) -> None:
        """Wake everyone who waits for the job."""
        bell = self._notifier.pop(job_id, None)
        if bell is not None:
            bell.set()

    async def wait(self, job_id: str, seconds: float) -> None:
        """Wait until the bell rings, or that long."""
        bell = self._notifier.setdefault(job_id, anyio.Event())
        with anyio.move_on_after(seconds):
            await bell.wait()


POLL_SECONDS = 0.2
"""Seconds between looks for jobs that came from elsewhere, or may be let in by now."""
IDLE_SECONDS = 1.0
"""The same while none waits: those that are submitted here are started at once all the same."""
RESERVED_SHARE = 4
"""One place in so many is kept for tenants of which no job runs."""


@final
class JobPlaces:
    """The places of one process, and who has them."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._reserved = total // RESERVED_SHARE
        self._owners: Counter[JobOwner] = Counter()
        self._tenants: Counter[str] = Counter()
        self._turn = 0
        self._last_turns: dict[JobOwner | str, int] = {}

    def choose(self, waiting: Collection[JobOwner]) -> JobOwner | None:
        """Return the owner whose next job takes a place; None if there is none for any of them.

        It is of the tenant with the fewest running jobs, and among equals of the one who had
        the last turn longest ago; between the keys of one tenant alike.
        """
        allowed = [owner for owner in waiting if self._has_place(owner)]
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
        """Forget the turns of those who have nothing waiting."""
        present = {name for owner in waiting for name in (owner, owner.tenant)}
        self._last_turns = {n: turn for n, turn in self._last_turns.items() if n in present}

    def _has_place(self, owner: JobOwner) -> bool:
        # Without keys there is one tenant, which nobody needs to be protected from.
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
    """Starts waiting jobs one by one, as places come free and keys are let in."""

    def __init__(
        self,
        places: JobPlaces,
        find_owners: Callable[[], Awaitable[Collection[JobOwner]]],
        start_next: Callable[[JobOwner], Awaitable[anyio.Event | None]],
    ) -> None:
        """Start nothing before `run`.

        Args:
            places: those of this process.
            find_owners: tells who has jobs that wait.
            start_next: starts the owner's oldest waiting job and returns the event of its end;
                None if another process has taken it.
        """
        self._places = places
        self._find_owners = find_owners
        self._start_next = start_next
        self._changed = anyio.Event()

    def look_again(self) -> None:
        """Look for jobs at once, because there is a new one."""
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
        """Start what may be started; tell whether any job waited."""
        if self._places.choose([_NEWCOMER]) is None:
            return True
        waiting = set(await self._find_owners())
        some_wait = bool(waiting)
        self._places.forget_absent(waiting)
        while (owner := self._places.choose(waiting)) is not None:
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
            self._places.take(owner)
            tasks.start_soon(self._hold_place, gate, owner, token, ended)
        return some_wait

    async def _hold_place(
        self, gate: JobGate, owner: JobOwner, token: str, ended: anyio.Event
    ) -> None:
        try:
            await ended.wait()
        finally:
            self._places.give_back(owner)
            self._changed.set()
            await _leave_gate(gate, owner, token)


_NEWCOMER = JobOwner(tenant="")
"""Somebody of whom no job runs."""


async def _leave_gate(gate: JobGate, owner: JobOwner, token: str) -> None:
    with anyio.CancelScope(shield=True):
        await gate.leave(owner, token)
