"""The same question twice is answered once: an answer that may be repeated is found by a digest.

Off unless the settings ask for it. The index has digests and ids of runs; the answer is in the
stored run, so whatever forgets the run forgets the answer, and what is not stored is not repeated.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from batuta.store import Store
from batuta.usage import ZERO_COST, ZERO_USAGE

CACHE_HEADER = "x-batuta-cache"
"""The header that says `hit`, `similar` or `miss` where an answer may be repeated."""
_LOG = logging.getLogger(__name__)
_PIECE = 400
"""Characters of a fragment in which a stream tells an answer again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCacheOptions:
    """Which answers are repeated, and for how long."""

    seconds: float = 3600.0
    """Since the run that gave it."""
    sampled: bool = False
    """Whether also those that were not meant to be repeatable: of another temperature than 0 and
    without a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatableCall:
    """A call with all that its answer depends on."""

    tenant: str
    model: str
    question: Question
    pool: Pool
    """The workers that may hear it: a key that may not ask a worker is not told its answer."""
    limits: Limits
    conductor: str
    """The conductor, or the workflow itself where it came with the request."""
    guardrails: tuple[str, ...] = ()

    def digest(self, asked: Question | None = None) -> bytes:
        """Return a whole SHA-256, equal for calls that have the same answer.

        Args:
            asked: what stands for the question; None: itself.
        """
        question = replace(asked or self.question, cache=None)
        seen = (self.tenant, self.model, question, self.pool.workers, self.limits)
        text = repr((*seen, self.conductor, self.guardrails))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """The earlier answer to a call."""

    run: Run | None
    kind: str
    """`hit`, `similar` for the same question in other words, or `miss`."""


class AnswerIndex(Protocol):
    """Finds the run that answered a call before.

    Laws: what was kept for one tenant is found for no other; after its time nothing is found.
    """

    async def find(self, tenant: str, digest: bytes) -> str | None:
        """Return the run's id; None: there is none, or the index cannot be asked now."""
        ...

    async def put(self, tenant: str, digest: bytes, run_id: str, seconds: float) -> None:
        """Note the run for so many seconds; or do nothing, if it cannot."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


@final
class StoreAnswerIndex:
    """The index in the database of the runs."""

    def __init__(self, store: Store) -> None:
        self._table = store.answers

    async def find(self, tenant: str, digest: bytes) -> str | None:
        """Return the run's id; None: there is none, or the database fails."""
        try:
            return await self._table.find(tenant, digest)
        except StoreError as error:
            _LOG.warning("earlier answers cannot be looked up: %s", error)
            return None

    async def put(self, tenant: str, digest: bytes, run_id: str, seconds: float) -> None:
        """Note the run, unless the database fails."""
        try:
            await self._table.put(tenant, digest, run_id, seconds=seconds)
        except StoreError as error:
            _LOG.warning("an answer cannot be noted: %s", error)

    async def close(self) -> None:
        """Close nothing: nothing is open."""


@final
class RedisAnswerIndex:
    """The index in Redis, of all replicas; while it is away every question is a new one."""

    def __init__(self, redis: RedisConnections) -> None:
        self._redis = redis

    async def find(self, tenant: str, digest: bytes) -> str | None:
        """Return the run's id; None: there is none, or Redis does not answer."""
        found: Any = await self._redis.ask(lambda redis: redis.get(_redis_key(tenant, digest)))
        return found.decode("ascii", "replace") if isinstance(found, bytes) else None

    async def put(self, tenant: str, digest: bytes, run_id: str, seconds: float) -> None:
        """Note the run, unless Redis does not answer."""
        key, milliseconds = _redis_key(tenant, digest), max(1, int(seconds * 1000))
        await self._redis.ask(lambda redis: redis.set(key, run_id, px=milliseconds))

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.close()


def _redis_key(tenant: str, digest: bytes) -> str:
    """Return the key in Redis; the tenant is hashed, which keeps its name out of it."""
    return f"batuta:answer:{hashlib.sha256(tenant.encode()).hexdigest()}:{digest.hex()}"


@final
class RepeatedAnswers:
    """Finds and notes the answers of one server."""

    def __init__(
        self,
        store: Store,
        index: AnswerIndex,
        options: AnswerCacheOptions | None = None,
        similar: SimilarQuestions | None = None,
    ) -> None:
        """Take where answers are found.

        Args:
            store: where the runs are.
            index: finds them by their calls.
            options: which are repeated.
            similar: also finds the same question in other words; None: none is.
        """
        self._store = store
        self._index = index
        self._similar = similar
        self.options = options or AnswerCacheOptions()
        self.hits = 0
        """Answers that were given again."""
        self.misses = 0
        """Questions that might have had one, and had none."""

    def may_repeat(self, sampling: Sampling) -> bool:
        """Return True if an answer that is sampled so may be given again."""
        fixed = sampling.temperature == 0 or sampling.seed is not None
        return fixed or self.options.sampled

    async def find(self, call: RepeatableCall) -> EarlierAnswer:
        """Return the run that answered that call, if it is still kept."""
        found = EarlierAnswer(await self._read(call, call.digest()), "hit")
        if found.run is None:
            found = EarlierAnswer(await self._find_similar(call), "similar")
        if found.run is None:
            self.misses += 1
            return EarlierAnswer(None, "miss")
        self.hits += 1
        return found

    async def keep(self, call: RepeatableCall, run: Run) -> None:
        """Note the run for the next such call, if it can be given again."""
        if is_repeatable(run):
            seconds = self.options.seconds
            await self._index.put(call.tenant, call.digest(), run.id, seconds)
            if (asked := self._comparable(call)) is not None:
                await self._index.put(call.tenant, call.digest(asked[0]), run.id, seconds)

    async def _read(self, call: RepeatableCall, digest: bytes) -> Run | None:
        """Return the run with that digest, if its answer can be given again."""
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
        """Return the run that answered the same question in other words."""
        asked = self._comparable(call)
        if self._similar is None or asked is None:
            return None
        run = await self._read(call, call.digest(asked[0]))
        before = comparable_question(run.header.question) if run is not None else None
        if before is None or not await self._similar.are_similar(asked[1], before[1]):
            return None
        return run

    def _comparable(self, call: RepeatableCall) -> tuple[Question, str] | None:
        """Return what stands for the call's question, and its words.

        None if other words would not do.

        A guardrail may see words that the other question has not; a temperature asks for variety.
        """
        if self._similar is None or call.guardrails or call.question.sampling.temperature:
            return None
        return comparable_question(call.question)

    async def close(self) -> None:
        """Close the connections."""
        await self._index.close()


def is_repeatable(run: Run) -> bool:
    """Return True if the run has a whole answer that is text alone.

    Calls of tools carry ids of their own run, and what was cut short may be longer next time.
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
    """Return a run that gives an earlier one's answer again and costs nothing."""
    reply = earlier.reply
    assert reply is not None  # noqa: S101 - it can be repeated
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
    """Yield the reply as a stream tells it."""
    for thought in reply.thoughts:
        yield _answer_delta(Delta(reasoning=thought.text))
        yield _answer_delta(Delta(thought=thought))
    if reply.reasoning and not reply.thoughts:
        yield _answer_delta(Delta(reasoning=reply.reasoning))
    for start in range(0, len(reply.text), _PIECE):
        yield _answer_delta(Delta(text=reply.text[start : start + _PIECE]))


def _answer_delta(delta: Delta) -> StepDelta:
    """Return a fragment of an answer; nobody was called for it."""
    return StepDelta(round=0, index=0, worker=WorkerId(""), delta=delta, is_answer=True)
