"""The answer cache: the answer to an equal or similar call is found by a digest, and sent again.

Off unless enabled in the settings. The index maps digests to ids of runs; the answer itself is in
the stored run. Deleting a run therefore deletes its cached answer, and only stored runs are cached.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import time
from typing import Any, Protocol, final

from batuta.clients.redis_connections import RedisConnections
from batuta.core import (
    Delta,
    Finish,
    Limits,
    Outcome,
    Pool,
    Question,
    Reply,
    Run,
    RunHeader,
    RunId,
    Sampling,
    StepDelta,
    WorkerId,
)
from batuta.errors import StoreError
from batuta.gateway.serving.similar_questions import SimilarQuestions, comparable_question
from batuta.offload.threads import read_off_loop
from batuta.store import Store
from batuta.usage import ZERO_COST, ZERO_USAGE

CACHE_HEADER = "x-batuta-cache"
"""The response header with `hit`, `similar` or `miss`, if the call may be cached."""
_LOG = logging.getLogger(__name__)
_PIECE = 400
"""Characters per fragment when a cached answer is streamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCacheOptions:
    """Which answers are cached, and for how long."""

    seconds: float = 3600.0
    """Seconds for which an answer is cached, from the end of its run."""
    sampled: bool = False
    """Whether answers sampled with neither a temperature of 0 nor a seed are cached too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatableCall:
    """The cache key of a call: everything that its answer depends on."""

    tenant: str
    model: str
    question: Question
    pool: Pool
    """The allowed workers: a key must not receive the answer of a worker that it may not use."""
    limits: Limits
    conductor: str
    """The conductor's name, or the workflow if the request contains one."""
    guardrails: tuple[str, ...] = ()
    """The names of the guardrails, and the plan rules."""

    def digest(self, core: Question | None = None) -> bytes:
        """Return a SHA-256 digest, equal for calls that may share an answer.

        Args:
            core: replaces the question, to find similar questions; None: the call's question.
        """
        question = replace(core or self.question, cache=None)
        parts = (self.tenant, self.model, question, self.pool.workers, self.limits)
        text = repr((*parts, self.conductor, self.guardrails))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """The result of a cache lookup."""

    run: Run | None
    """The run with the answer; None if there is none."""
    kind: str
    """`hit`, `similar` (the same question in other words) or `miss`."""


class AnswerIndex(Protocol):
    """Maps digests of calls to ids of runs.

    Laws: an entry is found only for its tenant, and not after its lifetime.
    """

    async def find(self, tenant: str, digest: bytes) -> str | None:
        """Return the run's id; None if no run is found, or the index is unavailable."""
        ...

    async def put(self, tenant: str, digest: bytes, run_id: str, seconds: float) -> None:
        """Add the run for `seconds`; do nothing if the index is unavailable."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


@final
class StoreAnswerIndex:
    """The index in the store's database."""

    def __init__(self, store: Store) -> None:
        self._table = store.answers

    async def find(self, tenant: str, digest: bytes) -> str | None:
        """Return the run's id; None if no run is found, or the database fails."""
        try:
            return await self._table.find(tenant, digest)
        except StoreError as error:
            _LOG.warning("earlier answers cannot be looked up: %s", error)
            return None

    async def put(self, tenant: str, digest: bytes, run_id: str, seconds: float) -> None:
        """Add the run, unless the database fails."""
        try:
            await self._table.put(tenant, digest, run_id, seconds=seconds)
        except StoreError as error:
            _LOG.warning("an answer cannot be added to the cache: %s", error)

    async def close(self) -> None:
        """Do nothing: the store is closed elsewhere."""


@final
class RedisAnswerIndex:
    """The index of all replicas in Redis; while Redis is down, every lookup misses."""

    def __init__(self, redis: RedisConnections) -> None:
        self._redis = redis

    async def find(self, tenant: str, digest: bytes) -> str | None:
        """Return the run's id; None if no run is found, or Redis does not answer."""
        found: Any = await self._redis.ask(lambda redis: redis.get(_redis_key(tenant, digest)))
        return found.decode("ascii", "replace") if isinstance(found, bytes) else None

    async def put(self, tenant: str, digest: bytes, run_id: str, seconds: float) -> None:
        """Add the run, unless Redis does not answer."""
        key, milliseconds = _redis_key(tenant, digest), max(1, int(seconds * 1000))
        await self._redis.ask(lambda redis: redis.set(key, run_id, px=milliseconds))

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.close()


def _redis_key(tenant: str, digest: bytes) -> str:
    """Return the key in Redis; the tenant is hashed, so that its name is not stored there."""
    return f"batuta:answer:{hashlib.sha256(tenant.encode()).hexdigest()}:{digest.hex()}"


@final
class RepeatedAnswers:
    """The answer cache of one server."""

    def __init__(
        self,
        store: Store,
        index: AnswerIndex,
        options: AnswerCacheOptions | None = None,
        similar: SimilarQuestions | None = None,
    ) -> None:
        """Connect the index and the store.

        Args:
            store: stores the runs.
            index: finds runs by the digest of their call.
            options: which answers are cached, and for how long.
            similar: compares similar questions; None: only equal calls are found.
        """
        self._store = store
        self._index = index
        self._similar = similar
        self.options = options or AnswerCacheOptions()
        self.hits = 0
        """Number of lookups that found an answer."""
        self.misses = 0
        """Number of lookups that found no answer."""

    def may_repeat(self, sampling: Sampling) -> bool:
        """Return True if answers sampled with these options may be cached."""
        fixed = sampling.temperature == 0 or sampling.seed is not None
        return fixed or self.options.sampled

    async def find(self, call: RepeatableCall) -> EarlierAnswer:
        """Look up a stored run that answered an equal or similar call."""
        found = EarlierAnswer(await self._read(call, await _compute_digest(call)), "hit")
        if found.run is None:
            found = EarlierAnswer(await self._find_similar(call), "similar")
        if found.run is None:
            self.misses += 1
            return EarlierAnswer(None, "miss")
        self.hits += 1
        return found

    async def keep(self, call: RepeatableCall, run: Run) -> None:
        """Add the run to the cache, if its answer can be returned again; see `is_repeatable`."""
        if is_repeatable(run):
            seconds = self.options.seconds
            await self._index.put(call.tenant, await _compute_digest(call), run.id, seconds)
            if (comparable := self._comparable(call)) is not None:
                digest = await _compute_digest(call, comparable[0])
                await self._index.put(call.tenant, digest, run.id, seconds)

    async def _read(self, call: RepeatableCall, digest: bytes) -> Run | None:
        """Return the run with this digest, if its answer can be returned again."""
        run_id = await self._index.find(call.tenant, digest)
        if run_id is None:
            return None
        try:
            run = await self._store.get(run_id, call.tenant)
        except StoreError as error:
            _LOG.warning("an earlier answer cannot be read: %s", error)
            return None
        return run if run is not None and is_repeatable(run) else None

    async def _find_similar(self, call: RepeatableCall) -> Run | None:
        """Return a run that answered the same question in other words."""
        comparable = self._comparable(call)
        if self._similar is None or comparable is None:
            return None
        run = await self._read(call, await _compute_digest(call, comparable[0]))
        earlier = comparable_question(run.header.question) if run is not None else None
        if earlier is None or not await self._similar.are_similar(comparable[1], earlier[1]):
            return None
        return run

    def _comparable(self, call: RepeatableCall) -> tuple[Question, str] | None:
        """Return `comparable_question` of the call; None if only an equal question matches.

        Similar questions never match with guardrails, which may react to single words, or with a
        temperature above 0, by which the caller requests variety.
        """
        if self._similar is None or call.guardrails or call.question.sampling.temperature:
            return None
        return comparable_question(call.question)

    async def close(self) -> None:
        """Close the connections."""
        await self._index.close()


async def _compute_digest(call: RepeatableCall, core: Question | None = None) -> bytes:
    """Return the call's digest, computed in a thread if the conversation is large."""
    return await read_off_loop(call.question.messages, partial(call.digest, core))


def is_repeatable(run: Run) -> bool:
    """Return True if the run has one complete text that is no refusal and not from the cache.

    Tool calls contain ids of their run, and a truncated answer may be longer next time.
    """
    reply = run.reply
    return (
        run.outcome is Outcome.ANSWERED
        and reply is not None
        and reply.finish is Finish.STOP
        and not reply.tool_calls
        and not reply.is_refusal
        and not reply.vectors
        and len(reply.choices) == 1
        and run.header.parent is None
    )


def repeated_run(earlier: Run, run_id: RunId, question: Question) -> Run:
    """Return a new run with an earlier run's answer and no cost."""
    reply = earlier.reply
    assert reply is not None  # noqa: S101 - `is_repeatable` has checked it
    header: RunHeader = replace(
        earlier.header,
        id=run_id,
        question=question,
        parent=earlier.id,
        started=time(),
        resumed=None,
        exploration=None,
    )
    free: Reply = replace(reply, usage=ZERO_USAGE, cost=ZERO_COST)
    return Run(
        header=header,
        rounds=(),
        outcome=earlier.outcome,
        answer=earlier.answer,
        reply=free,
        confidence=earlier.confidence,
    )


def reply_deltas(reply: Reply) -> Iterator[StepDelta]:
    """Yield the reasoning and the text of a reply as the fragments of a stream."""
    for thought in reply.thoughts:
        yield _answer_delta(Delta(reasoning=thought.text))
        yield _answer_delta(Delta(thought=thought))
    if reply.reasoning and not reply.thoughts:
        yield _answer_delta(Delta(reasoning=reply.reasoning))
    for start in range(0, len(reply.text), _PIECE):
        yield _answer_delta(Delta(text=reply.text[start : start + _PIECE]))


def _answer_delta(delta: Delta) -> StepDelta:
    """Return a fragment of a cached answer, which has no worker."""
    return StepDelta(round=0, index=0, worker=WorkerId(""), delta=delta, is_answer=True)
