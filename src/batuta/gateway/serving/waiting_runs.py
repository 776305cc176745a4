"""Runs that wait for their client's tools: in this process, and where other replicas find them.

A run that the store keeps is found there by any replica. Of one that says `store: false` nothing is
kept, so it is shared as long as it waits: encrypted, for an hour, in Redis or in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic, time
from typing import Protocol, final

from batuta.clients.redis_connections import RedisConnections
from batuta.core import Pool, Question, ResumeState, Run, RunId
from batuta.engine import find_asking_run, find_resume_state, strip_prompts
from batuta.errors import StoreError
from batuta.gateway.errors import log_exception
from batuta.gateway.serving.tenant_memory import Clock, TenantMemory
from batuta.store import Store
from batuta.store.sealing import RunSealer
from batuta.store.waiting_runs import MOST_WAITING, MOST_WAITING_BYTES, WAITING_SECONDS

MAX_PENDING = 1000
"""The most runs that wait in memory; the oldest of the tenant with the most goes first."""
_MOST_RUN_BYTES = 8 << 20
"""Bytes of a sealed run that is shared, at most; a larger one goes on at its own replica alone."""

# A tenant's runs: their order by time with the size of each, the sum of their sizes, and a key for
# each run, all in one slot of a cluster.
_PUT = """
local prefix, run, body, now = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local order, held = prefix .. ':order', prefix .. ':held'
local life, most, most_bytes = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local function drop(member)
  local name, size = string.match(member, '^(.*):(%d+)$')
  redis.call('DEL', prefix .. ':run:' .. name)
  redis.call('ZREM', order, member)
  redis.call('DECRBY', held, size)
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', order, '-inf', now - life)) do drop(member) end
if not redis.call('SET', prefix .. ':run:' .. run, body, 'EX', life, 'NX') then return 0 end
redis.call('ZADD', order, now, run .. ':' .. #body)
local bytes = redis.call('INCRBY', held, #body)
while redis.call('ZCARD', order) > most or bytes > most_bytes do
  local oldest = redis.call('ZRANGE', order, 0, 0)[1]
  if not oldest then break end
  drop(oldest)
  bytes = tonumber(redis.call('GET', held))
end
redis.call('EXPIRE', order, life)
redis.call('EXPIRE', held, life)
return 1
"""
_DISMISS = """
local prefix, order, held = KEYS[1], KEYS[1] .. ':order', KEYS[1] .. ':held'
local gone = {}
for _, run in ipairs(ARGV) do gone[run] = true end
for _, member in ipairs(redis.call('ZRANGE', order, 0, -1)) do
  local name, size = string.match(member, '^(.*):(%d+)$')
  if #ARGV == 0 or gone[name] then
    redis.call('DEL', prefix .. ':run:' .. name)
    redis.call('ZREM', order, member)
    redis.call('DECRBY', held, size)
  end
end
return 1
"""


class WaitingRunPlace(Protocol):
    """A place where replicas keep sealed runs for each other.

    Laws: what one replica puts the others get, until it is dismissed, an hour has passed, or the
    tenant has put more than it may keep, of which the oldest goes first; another tenant gets
    nothing of it and pushes nothing of it out.
    """

    async def put(self, tenant: str, run: Run, body: bytes) -> None:
        """Keep the sealed run."""
        ...

    async def get(self, tenant: str, run_id: RunId) -> bytes | None:
        """Return the tenant's sealed run of that id, if it is there."""
        ...

    async def dismiss(self, tenant: str, run_ids: Collection[str] | None = None) -> None:
        """Forget those runs of the tenant; None: all of them."""
        ...


@final
class RedisWaitingRuns:
    """The sealed runs of all replicas in Redis; none while Redis is away."""

    def __init__(
        self,
        redis: RedisConnections,
        name_tenant: Callable[[str], str],
        *,
        most: int = MOST_WAITING,
        most_bytes: int = MOST_WAITING_BYTES,
        clock: Clock = time,
    ) -> None:
        """Keep nothing yet.

        Args:
            redis: has the runs.
            name_tenant: makes a name of a tenant that tells nobody who it is.
            most: runs of a tenant at most.
            most_bytes: bytes of a tenant's runs at most.
            clock: tells the seconds since the epoch.
        """
        self._redis = redis
        self._name_tenant = name_tenant
        self._limits = (int(WAITING_SECONDS), most, most_bytes)
        self._clock = clock

    async def put(self, tenant: str, run: Run, body: bytes) -> None:
        """Keep the sealed run."""
        args = (run.id, body, self._clock(), *self._limits)
        await self._redis.ask(lambda redis: redis.eval(_PUT, 1, self._prefix(tenant), *args))

    async def get(self, tenant: str, run_id: RunId) -> bytes | None:
        """Return the tenant's sealed run of that id, if it is there."""
        name = f"{self._prefix(tenant)}:run:{run_id}"
        return await self._redis.ask(lambda redis: redis.get(name))

    async def dismiss(self, tenant: str, run_ids: Collection[str] | None = None) -> None:
        """Forget those runs of the tenant; None: all of them."""
        if run_ids is not None and not run_ids:
            return
        args, prefix = tuple(run_ids or ()), self._prefix(tenant)
        await self._redis.ask(lambda redis: redis.eval(_DISMISS, 1, prefix, *args))

    def _prefix(self, tenant: str) -> str:
        return f"batuta:waiting:{{{self._name_tenant(tenant)}}}"


@final
class SharedWaitingRuns:
    """Seals runs for the other replicas and opens theirs; a place that fails has none."""

    def __init__(self, place: WaitingRunPlace, sealer: RunSealer) -> None:
        """Keep runs in that place, sealed with the server's secret."""
        self._place = place
        self._sealer = sealer

    async def add(self, run: Run, tenant: str) -> None:
        """Keep the run, which waits."""
        try:
            body = self._sealer.seal(run, tenant)
            if len(body) <= _MOST_RUN_BYTES:
                await self._place.put(tenant, run, body)
        except StoreError as error:  # it goes on at this replica alone
            log_exception(error)

    async def find(self, run_id: RunId, tenant: str) -> Run | None:
        """Return the tenant's run of that id, if it waits and can be read."""
        try:
            body = await self._place.get(tenant, run_id)
            return None if body is None else await self._sealer.open(body, tenant, run_id)
        except StoreError as error:
            log_exception(error)
            return None

    async def dismiss(self, tenant: str, run_ids: Collection[str] | None = None) -> None:
        """Forget those runs of the tenant; None: all of them.

        Raises:
            StoreError: the place cannot be reached.
        """
        await self._place.dismiss(tenant, run_ids)


@final
class PendingToolRuns:
    """The runs that wait, each for its own tenant only."""

    def __init__(
        self,
        store: Store | None = None,
        shared: SharedWaitingRuns | None = None,
        *,
        max_pending: int = MAX_PENDING,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Keep nothing yet.

        Args:
            store: has the runs that are kept; None: none are.
            shared: has those of other replicas; None: there are none.
            max_pending: runs in memory at most.
            clock: tells the seconds.
        """
        self._store = store
        self._shared = shared
        self._runs = TenantMemory[RunId, Run](max_pending, WAITING_SECONDS, clock)

    def __len__(self) -> int:
        return len(self._runs)

    async def add(self, run: Run, tenant: str, *, is_kept: bool = False) -> None:
        """Keep the run, which waits.

        Args:
            run: the run.
            tenant: whose it is.
            is_kept: whether the store keeps it, where other replicas find it.
        """
        waiting = strip_prompts(run)
        self._runs.put(tenant, run.id, waiting)
        is_found = is_kept and self._store is not None and self._store.is_shared
        if self._shared is not None and not is_found:
            await self._shared.add(waiting, tenant)

    async def dismiss(self, tenant: str, run_ids: Collection[str] | None = None) -> None:
        """Send those runs of the tenant away; None: all of them.

        Raises:
            StoreError: what replicas share cannot be reached.
        """
        for run_id in self._runs.keys(tenant):
            if run_ids is None or run_id in run_ids:
                self._runs.pop(tenant, run_id)
        if self._shared is not None:
            await self._shared.dismiss(tenant, run_ids)

    async def find_resumed(self, question: Question, pool: Pool, tenant: str) -> ResumeState | None:
        """Return what a run for this conversation continues from; None if it begins anew."""
        run_id = find_asking_run(question)
        if run_id is None:
            return None
        run = self._runs.get(tenant, run_id) or await self._find_elsewhere(run_id, tenant)
        return None if run is None else find_resume_state(run, question, pool)

    async def _find_elsewhere(self, run_id: RunId, tenant: str) -> Run | None:
        if self._shared is not None:
            found = await self._shared.find(run_id, tenant)
            if found is not None:
                return found
        if self._store is None:
            return None
        try:
            return await self._store.get(run_id, tenant)
        except StoreError as error:  # then the conversation itself is all that is known
            log_exception(error)
            return None
