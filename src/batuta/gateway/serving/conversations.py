"""What a server remembers of conversations: who answered last, and the runs that wait for tools.

The worker that answered reads the prompt from its provider's cache, under a key of its tenant. A
run that is stored can be found after a restart and by another server. One that must not be stored
(`store: false`, as coding agents send) waits in memory alone, for a while.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import replace
from time import monotonic
from typing import final

from batuta.core import Outcome, Pool, Question, ResumeState, Role, Run, RunId, WorkerId
from batuta.engine import find_asking_run, find_resume_state, strip_prompts
from batuta.errors import StoreError
from batuta.gateway.errors import log_exception
from batuta.store import Store

PENDING_SECONDS = 3600.0
"""Seconds that a run waits in memory."""
MAX_PENDING = 1000
"""Runs that wait in memory at most; the oldest goes first."""
CACHE_SECONDS = 300.0
"""Seconds after an answer for which providers keep a prompt at least."""
MAX_CONVERSATIONS = 10_000
"""Conversations that are remembered."""


def tenant_key(question: Question, tenant: str) -> Question:
    """The question with a cache key that no other tenant has; providers see no name."""
    cache = question.cache
    if cache is None or cache.key is None:
        return question
    digest = hashlib.sha256(f"{tenant}\0{cache.key}".encode()).hexdigest()[:32]
    return replace(question, cache=replace(cache, key=digest))


@final
class ConversationWorkers:
    """The worker that answered a conversation in another's place, while its cache is warm.

    Asked again, it reads most of the prompt from its provider's cache, and the one that failed
    would read it all anew.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._workers: OrderedDict[int, tuple[WorkerId, float]] = OrderedDict()

    def find_worker(self, question: Question, model: str, tenant: str) -> WorkerId | None:
        """Who answered this conversation last, if it was not the one that is planned."""
        if not self._workers or len(question.messages) < 2:  # noqa: PLR2004 - it has a past
            return None
        found = self._workers.get(_conversation_beginning(question, model, tenant))
        return found[0] if found is not None and found[1] > self._clock() else None

    def note_worker(self, run: Run, tenant: str, planned: WorkerId | None) -> None:
        """Remembers who answered; where it was the one who would be asked anyway, nobody."""
        if run.outcome not in {Outcome.ANSWERED, Outcome.DEGRADED, Outcome.WAITING}:
            return
        key = _conversation_beginning(run.header.question, run.header.model, tenant)
        worker = run.steps[-1].worker if run.steps else None
        if worker is None or worker == planned:
            self._workers.pop(key, None)
            return
        self._workers[key] = (worker, self._clock() + CACHE_SECONDS)
        self._workers.move_to_end(key)
        while len(self._workers) > MAX_CONVERSATIONS:
            self._workers.popitem(last=False)


def _conversation_beginning(question: Question, model: str, tenant: str) -> int:
    """What stays the same while a conversation goes on: all up to the user's first words."""
    said: list[str] = []
    for message in question.messages:
        said.append(message.text)
        if message.role is Role.USER:
            break
    key = question.cache.key if question.cache else None
    return hash((tenant, model, key, *said))


@final
class PendingToolRuns:
    """The runs of one server that wait, each for its own tenant only."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        max_pending: int = MAX_PENDING,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._max_pending = max_pending
        self._clock = clock
        self._runs: OrderedDict[tuple[str, RunId], tuple[float, Run]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run, tenant: str) -> None:
        """Keeps the run, which waits."""
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
