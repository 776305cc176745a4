"""Runs that wait for their callers' tools, so that the results find the workflow they belong to.

A run that is stored can be found after a restart and by another server. One that must not be
stored (`store: false`, as coding agents send) waits in memory alone, for a while.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import final

from batuta.core import Outcome, Pool, Question, Resumed, Run, RunId
from batuta.engine import asking_run, going_on, lightened
from batuta.errors import StoreError
from batuta.gateway.middleware import log_fault
from batuta.store import Store

PATIENCE = 3600.0
"""Seconds that a run waits in memory."""
SEATS = 1000
"""Runs that wait in memory at most; the oldest goes first."""


@final
class WaitingRoom:
    """The runs of one server that wait, each for its own tenant only."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        seats: int = SEATS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._seats = seats
        self._clock = clock
        self._runs: OrderedDict[tuple[str, RunId], tuple[float, Run]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def admit(self, run: Run, tenant: str) -> None:
        """Keeps the run, if it waits."""
        if run.outcome is not Outcome.WAITING:
            return
        self._runs[tenant, run.id] = (self._clock(), lightened(run))
        while len(self._runs) > self._seats:
            self._runs.popitem(last=False)

    async def continued(self, question: Question, pool: Pool, tenant: str) -> Resumed | None:
        """What a run for this conversation goes on from; None if it begins anew."""
        run_id = asking_run(question)
        if run_id is None:
            return None
        run = self._seated(run_id, tenant) or await self._stored(run_id, tenant)
        return None if run is None else going_on(run, question, pool)

    def _seated(self, run_id: RunId, tenant: str) -> Run | None:
        self._clear()
        found = self._runs.get((tenant, run_id))
        return found[1] if found else None

    async def _stored(self, run_id: RunId, tenant: str) -> Run | None:
        if self._store is None:
            return None
        try:
            return await self._store.get(run_id, tenant)
        except StoreError as error:  # then the conversation itself is all that is known
            log_fault(error)
            return None

    def _clear(self) -> None:
        """Sends away whoever has waited too long."""
        late = self._clock() - PATIENCE
        while self._runs:
            key, (since, _) = next(iter(self._runs.items()))
            if since > late:
                return
            del self._runs[key]
