"""Runs that wait for their callers' tools, so that the results find the workflow they belong to.

A run that is stored can be found after a restart and by another server. One that must not be
stored (`store: false`, as coding agents send) waits in memory alone, for a while.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import final

from batuta.core import Outcome, Pool, Question, ResumeState, Run, RunId
from batuta.engine import find_asking_run, find_resume_state, strip_prompts
from batuta.errors import StoreError
from batuta.gateway.http.middleware import log_exception
from batuta.store import Store

PENDING_SECONDS = 3600.0
"""Seconds that a run waits in memory."""
MAX_PENDING = 1000
"""Runs that wait in memory at most; the oldest goes first."""


@final
class PendingToolRuns:
    """The runs of one server that wait, each for its own tenant only."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        max_pending: int = MAX_PENDING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._max_pending = max_pending
        self._clock = clock
        self._runs: OrderedDict[tuple[str, RunId], tuple[float, Run]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run, tenant: str) -> None:
        """Keeps the run, if it waits."""
        if run.outcome is not Outcome.WAITING:
            return
        self._runs[tenant, run.id] = (self._clock(), strip_prompts(run))
        while len(self._runs) > self._max_pending:
            self._runs.popitem(last=False)

    def dismiss(self, tenant: str, run_ids: Collection[str] | None = None) -> None:
        """Sends those runs of the tenant away; None: all of them."""
        for key in [k for k in self._runs if k[0] == tenant]:
            if run_ids is None or key[1] in run_ids:
                del self._runs[key]

    async def find_resumed(self, question: Question, pool: Pool, tenant: str) -> ResumeState | None:
        """What a run for this conversation continues from; None if it begins anew."""
        run_id = find_asking_run(question)
        if run_id is None:
            return None
        run = self._from_memory(run_id, tenant) or await self._from_store(run_id, tenant)
        return None if run is None else find_resume_state(run, question, pool)

    def _from_memory(self, run_id: RunId, tenant: str) -> Run | None:
        self._drop_expired()
        found = self._runs.get((tenant, run_id))
        return found[1] if found else None

    async def _from_store(self, run_id: RunId, tenant: str) -> Run | None:
        if self._store is None:
            return None
        try:
            return await self._store.get(run_id, tenant)
        except StoreError as error:  # then the conversation itself is all that is known
            log_exception(error)
            return None

    def _drop_expired(self) -> None:
        """Sends away whoever has waited too long."""
        late = self._clock() - PENDING_SECONDS
        while self._runs:
            key, (since, _) = next(iter(self._runs.items()))
            if since > late:
                return
            del self._runs[key]
