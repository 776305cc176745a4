"""Conversations and the caches of prompts at providers: who answered last, and under which key."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import final

from batuta.core import Outcome, Question, Role, Run, WorkerId

KEPT = 300.0
"""Seconds after an answer for which providers keep a prompt at least."""
MOST = 10_000
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
        self._workers[key] = (worker, self._clock() + KEPT)
        self._workers.move_to_end(key)
        while len(self._workers) > MOST:
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
