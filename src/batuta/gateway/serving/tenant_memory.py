"""Bounded memories between requests: of sessions, of what preceded tool calls, and of workers."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from heapq import heapify, heappop, heappush
from itertools import count
from time import monotonic
from typing import Generic, Protocol, TypeVar, final

import orjson

from batuta.conductors.sessions.state import NEW_SESSION, SessionEntry, SessionState
from batuta.core import (
    Message,
    Outcome,
    Pool,
    Question,
    Reply,
    Role,
    Run,
    RunId,
    ServerCall,
    Text,
    Thought,
    ToolCall,
    WorkerId,
)
from batuta.gateway.serving.parsed_call import first_texts
from batuta.language.material import wrap_fetched

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Clock = Callable[[], float]
"""Returns the time in seconds."""


@dataclass(frozen=True, slots=True)
class _Kept(Generic[V]):
    value: V
    until: float
    size: int


_MIN_COMPACTED = 64
"""The size below which the heap is never compacted."""


@final
class TenantMemory(Generic[K, V]):
    """Values by tenant and key, with a total size and a lifetime.

    When the memory is full, the oldest value of the largest tenant is evicted. So a tenant that
    fills the memory evicts its own values, and each of n tenants can hold an n-th of it.
    """

    def __init__(self, most: int, seconds: float, clock: Clock) -> None:
        """Start empty.

        Args:
            most: maximum size of all values together, in the unit of `put`'s `size`.
            seconds: how long a value is kept.
            clock: returns the time in seconds.
        """
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._kept: OrderedDict[tuple[str, K], _Kept[V]] = OrderedDict()
        self._keys: dict[str, OrderedDict[K, None]] = {}
        self._sizes: Counter[str] = Counter()
        self._total = 0
        self._largest: list[tuple[int, str]] = []
        """A max-heap of tenants by size. The size of an entry may be outdated because its tenant
        has shrunk, never because it has grown: each growth adds an entry."""

    def __len__(self) -> int:
        self._drop_expired()
        return len(self._kept)

    def get(self, tenant: str, key: K) -> V | None:
        """Return the tenant's value; None if there is none, or it has expired."""
        kept = self._kept.get((tenant, key))
        return kept.value if kept is not None and kept.until > self._clock() else None

    def put(self, tenant: str, key: K, value: V, size: int = 1) -> None:
        """Add the value as the tenant's newest, and evict others if the memory is full.

        A value that is larger than the whole memory is evicted too.
        """
        self.pop(tenant, key)
        self._drop_expired()
        self._kept[tenant, key] = _Kept(value, self._clock() + self._seconds, size)
        self._keys.setdefault(tenant, OrderedDict())[key] = None
        self._sizes[tenant] += size
        self._total += size
        self._note_growth(tenant)
        while self._total > self._most:
            largest = self._find_largest()
            self.pop(largest, next(iter(self._keys[largest])))

    def pop(self, tenant: str, key: K) -> None:
        """Remove the value, if it exists."""
        kept = self._kept.pop((tenant, key), None)
        if kept is None:
            return
        self._total -= kept.size
        self._sizes[tenant] -= kept.size
        del self._keys[tenant][key]
        if not self._keys[tenant]:
            del self._keys[tenant], self._sizes[tenant]

    def keys(self, tenant: str) -> list[K]:
        """Return the keys of the tenant's values, oldest first, including expired ones."""
        return list(self._keys.get(tenant, ()))

    def values(self) -> Iterator[V]:
        """Iterate over all values, oldest first, including expired ones."""
        return (kept.value for kept in self._kept.values())

    def _note_growth(self, tenant: str) -> None:
        if len(self._largest) > 2 * len(self._sizes) + _MIN_COMPACTED:
            self._largest = [(-size, name) for name, size in self._sizes.items()]
            heapify(self._largest)
        else:
            heappush(self._largest, (-self._sizes[tenant], tenant))

    def _find_largest(self) -> str:
        """Return the largest tenant, correcting outdated entries on the way."""
        while True:
            size, tenant = self._largest[0]
            now = self._sizes.get(tenant, 0)
            if now == -size:
                return tenant
            heappop(self._largest)
            if now:
                heappush(self._largest, (-now, tenant))

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._kept:
            (tenant, key), kept = next(iter(self._kept.items()))
            if kept.until > now:
                return
            self.pop(tenant, key)


MAX_SESSIONS = 10_000
"""Maximum number of sessions in memory; the oldest one of the largest tenant is evicted first."""
KEPT_SECONDS = 24 * 3600.0
"""Seconds after its last request for which a session is kept."""


class SessionMemory(Protocol):
    """The states of sessions.

    Laws: `hold` grants no more than the limit minus the session's costs and its other reservations.
    An unknown session is new. The costs and counts of concurrent updates are all added. The most
    recently used `MOST_THREADS` threads are kept.
    """

    async def load(self, tenant: str, session: str) -> SessionState:
        """Return the session's state."""
        ...

    async def note(self, tenant: str, session: str, entry: SessionEntry) -> SessionState:
        """Add a finished request, release its run's reservation, and return the new state."""
        ...

    async def hold(
        self, tenant: str, session: str, run: str, *, usd: Decimal, least: Decimal, most: Decimal
    ) -> Decimal | None:
        """Set the run's reservation to `usd`, or to the session's remaining dollars if fewer.

        Return the new reservation; None, without a change, if it would be less than `least`.

        Args:
            tenant: the session's tenant.
            session: the session's id.
            run: the run's id; `note` releases its reservation.
            usd: the requested reservation in dollars, including what the run already holds.
            least: the minimum useful reservation in dollars, including what the run already holds.
            most: the session's limit in dollars.
        """
        ...


@final
class LocalSessions:
    """The sessions of this process."""

    def __init__(self, *, most: int = MAX_SESSIONS, clock: Clock = monotonic) -> None:
        """Start empty.

        Args:
            most: maximum number of sessions.
            clock: returns the time in seconds.
        """
        self._states = TenantMemory[str, SessionState](most, KEPT_SECONDS, clock)

    def __len__(self) -> int:
        return len(self._states)

    async def load(self, tenant: str, session: str) -> SessionState:
        """Return the session's state; a new one if it is unknown."""
        return self._states.get(tenant, session) or NEW_SESSION

    async def note(self, tenant: str, session: str, entry: SessionEntry) -> SessionState:
        """Add a finished request, and return the new state."""
        state = (self._states.get(tenant, session) or NEW_SESSION).with_entry(entry)
        self._states.put(tenant, session, state)
        return state

    async def hold(
        self, tenant: str, session: str, run: str, *, usd: Decimal, least: Decimal, most: Decimal
    ) -> Decimal | None:
        """Set the run's reservation; see `SessionMemory.hold`."""
        state = self._states.get(tenant, session) or NEW_SESSION
        room = state.left_usd(most, run) or Decimal(0)
        if room < least:
            return None
        held = min(usd, room)
        self._states.put(tenant, session, state.with_hold(run, held))
        return held


REASONING_SIGNATURE = "batuta-reasoning"
"""The signature of plain reasoning that this server sent; a thought's signature begins with it.

Thoughts with other signatures are not sent back to a worker."""
MAX_REMEMBERED_BYTES = 32 << 20
"""Approximate maximum number of bytes that are remembered of calls.

The oldest entry of the largest tenant is evicted first. A character counts as a byte."""
REMEMBERED_SECONDS = 3600.0
"""Seconds for which reasoning and tools' results before a call are remembered."""
_ENTRY_BYTES = 500
"""Approximate number of bytes of an entry besides its text."""


def thought_signature(thought: Thought) -> str:
    """Return the signature that clients get: the model, and the provider's signature.

    For a redacted thought this is its content instead of the provider's signature.
    """
    return f"{REASONING_SIGNATURE}:{thought.model}:{thought.signature or thought.redacted}"


def split_signature(signature: str) -> tuple[str, bool, str]:
    """Return the model, whether the signature is one of ours, and the provider's signature.

    The two texts are empty if the signature does not contain them.
    """
    if signature == REASONING_SIGNATURE:
        return "", True, ""
    if not signature.startswith(f"{REASONING_SIGNATURE}:"):
        return "", False, ""
    model, _, own = signature.removeprefix(f"{REASONING_SIGNATURE}:").rpartition(":")
    return model, True, own


@dataclass(frozen=True, slots=True)
class _BeforeCall:
    """The thoughts of a model and the results that it had, when it called a client's tool."""

    run: RunId
    thoughts: tuple[Thought, ...]
    results: str
    """The results of the tools that the server ran, as text; empty if it ran none."""

    @property
    def size(self) -> int:
        thought = sum(len(t.text) + len(t.signature) + len(t.redacted) for t in self.thoughts)
        return _ENTRY_BYTES + thought + len(self.results)


@final
class CallMemory:
    """The reasoning and the server's tool results before clients' tool calls, by tenant and call.

    Most clients send neither back with the result of their tool. Both are kept in this process's
    memory.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._kept = TenantMemory[bytes, _BeforeCall](
            MAX_REMEMBERED_BYTES, REMEMBERED_SECONDS, clock
        )

    def note_run(self, run: Run, tenant: str, pool: Pool) -> None:
        """Remember what came before each tool call of the run."""
        for step in run.steps:
            reply = step.result
            if not isinstance(reply, Reply) or not reply.tool_calls or step.worker not in pool:
                continue
            before = _BeforeCall(
                run=run.id,
                thoughts=_thoughts_of(reply, pool[step.worker].model),
                results=_results_text(reply.server_calls),
            )
            if not before.thoughts and not before.results:
                continue
            begun = _digest_beginning(run.header.question)
            for call in reply.tool_calls:
                self._kept.put(tenant, _key_of(call, begun), before, before.size)

    def forget(self, tenant: str, runs: Container[str] | None = None) -> None:
        """Forget what came before the calls of these runs of the tenant; None for all its runs."""
        for key in self._kept.keys(tenant):
            before = self._kept.get(tenant, key)
            if runs is None or before is None or before.run in runs:
                self._kept.pop(tenant, key)

    def fill_in(self, question: Question, tenant: str) -> Question:
        """Return the question with what is remembered of the calls in its assistant messages.

        Thoughts are added only to messages without any.
        """
        if not self._kept or not question.has_tool_results:
            return question
        begun = _digest_beginning(question)
        messages = tuple(self._filled(message, tenant, begun) for message in question.messages)
        same = all(a is b for a, b in zip(messages, question.messages, strict=True))
        return question if same else replace(question, messages=messages)

    def _filled(self, message: Message, tenant: str, begun: bytes) -> Message:
        if message.role is not Role.ASSISTANT:
            return message
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        found = (self._kept.get(tenant, _key_of(call, begun)) for call in calls)
        known = [before for before in found if before is not None]
        if results := "\n\n".join(dict.fromkeys(one.results for one in known if one.results)):
            at = message.parts.index(calls[0])
            parts = (*message.parts[:at], Text(results), *message.parts[at:])
            message = replace(message, parts=parts)
        thoughts = dict.fromkeys(
            thought
            for before in known
            for thought in before.thoughts
            # Plain reasoning that the client itself sends back is not repeated.
            if not message.reasoning or thought.signature or thought.redacted
        )
        if message.thoughts or not thoughts:
            return message
        return replace(message, thoughts=tuple(thoughts))


def _results_text(calls: Sequence[ServerCall]) -> str:
    numbers = count(1)
    return "\n\n".join(_result_text(call, numbers) for call in calls)


def _result_text(call: ServerCall, numbers: Iterator[int]) -> str:
    """Return one call and its result; `numbers` gives the numbers of the pages to cite."""
    pages = [
        f"[{number}] {page.url or page.title} {page.place or page.date}".rstrip()
        + f"\n{wrap_fetched(page.excerpt or page.title)}"
        for number, page in zip(numbers, call.citations, strict=False)
    ]
    # The output of a program, or the text of a page, which has its number and tags already.
    own = "\n".join(filter(None, (call.output.rstrip(), call.failure)))
    result = own or "\n\n".join(pages) or call.error or "nothing"
    return f"Called {call.name} with:\n{call.query}\nIt returned:\n{result}"


def _thoughts_of(reply: Reply, model: str) -> tuple[Thought, ...]:
    """Return the thoughts of a reply; plain reasoning counts as one without a signature."""
    if not reply.reasoning or any(thought.text for thought in reply.thoughts):
        return reply.thoughts
    return (Thought(model=model, text=reply.reasoning), *reply.thoughts)


def _digest_beginning(question: Question) -> bytes:
    """Return the digest of the conversation's first user message, which may be long."""
    first = next((m.text for m in question.messages if m.role is Role.USER), "")
    return _digest_words(first)


def _key_of(call: ToolCall, begun: bytes) -> bytes:
    """Return a digest of the call and the conversation's beginning: a provider may reuse ids."""
    try:
        arguments = orjson.dumps(orjson.loads(call.arguments or "{}"), option=orjson.OPT_SORT_KEYS)
    except (ValueError, TypeError):  # not JSON, or nested more deeply than orjson writes
        arguments = call.arguments.encode("utf-8", "surrogatepass")
    return hashlib.sha256(begun + _digest_words(call.id, call.name) + arguments).digest()


def _digest_words(*words: str) -> bytes:
    return hashlib.sha256(
        b"\0".join(word.encode("utf-8", "surrogatepass") for word in words)
    ).digest()


CACHE_SECONDS = 300.0
"""Minimum number of seconds for which providers cache a prompt after they have answered."""
MAX_CONVERSATIONS = 10_000
"""Maximum number of remembered conversations."""


def tenant_key(question: Question, tenant: str) -> Question:
    """Return the question with its prompt-cache key, if any, hashed together with the tenant."""
    cache = question.cache
    if cache is None or cache.key is None:
        return question
    digest = hashlib.sha256(f"{tenant}\0{cache.key}".encode()).hexdigest()[:32]
    return replace(question, cache=replace(cache, key=digest))


@final
class ConversationWorkers:
    """The worker that answered a conversation as a substitute, while its prompt cache is warm.

    That worker's provider has most of the prompt cached; the planned worker's provider has not.
    """

    def __init__(self) -> None:
        self._workers = TenantMemory[int, WorkerId](MAX_CONVERSATIONS, CACHE_SECONDS, monotonic)

    def find_worker(self, question: Question, model: str, tenant: str) -> WorkerId | None:
        """Return the substitute that answered this conversation last, if its cache is warm.

        `model` is the name of the served model.
        """
        if not self._workers or len(question.messages) < 2:  # noqa: PLR2004 - no earlier turn
            return None
        return self._workers.get(tenant, _conversation_beginning(question, model))

    def note_worker(self, run: Run, tenant: str, planned: WorkerId | None) -> None:
        """Remember the worker that answered as a substitute; forget it once the planned one did."""
        if run.outcome not in {Outcome.ANSWERED, Outcome.DEGRADED, Outcome.WAITING}:
            return
        key = _conversation_beginning(run.header.question, run.header.model)
        steps = [step for round_ in run.rounds if not round_.is_aside for step in round_.steps]
        worker = steps[-1].worker if steps else None
        if worker is None or worker == planned:
            self._workers.pop(tenant, key)
        else:
            self._workers.put(tenant, key, worker)


def _conversation_beginning(question: Question, model: str) -> int:
    """Return a hash of the model, the prompt-cache key and the conversation's beginning."""
    key = question.cache.key if question.cache else None
    return hash((model, key, *first_texts(question)))
