"""Runs paused on their client's tools: in this process, and shared with other replicas.

A stored run is found in the database by every replica that uses it. Any other paused run, such as
one with `store: false`, is shared while it is paused: encrypted, for at most an hour, in Redis or
in PostgreSQL.
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
"""Maximum number of paused runs in memory; the oldest of the largest tenant is evicted first."""
_MOST_RUN_BYTES = 8 << 20
"""Maximum number of bytes of a shared encrypted run; a larger one is not shared."""

# A tenant's keys, all in one slot of a cluster: its runs by time with their sizes, the sum of the
# sizes, and one key per run.
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


class WaitingRunTable(Protocol):
    """Encrypted paused runs, shared by replicas.

    Laws, while the table can be reached: every replica gets a run until the run is dismissed, an
    hour has passed, or the tenant exceeds its quota, which evicts the tenant's oldest runs first. A
    tenant neither gets nor evicts the runs of another tenant.
    """

    async def put(self, tenant: str, run: Run, body: bytes) -> None:
        """Add the encrypted run."""
        ...

    async def get(self, tenant: str, run_id: RunId) -> bytes | None:
        """Return the tenant's encrypted run of this id, if it exists."""
        ...

    async def dismiss(self, tenant: str, run_ids: Collection[str] | None = None) -> None:
        """Delete these runs of the tenant; None: all of them."""
        ...


@final
class RedisWaitingRuns:
    """The encrypted paused runs of all replicas in Redis.

    While Redis is down, nothing is added, found or deleted. An undeleted run expires in an hour.
    """

    def __init__(
        self,
        redis: RedisConnections,
        name_tenant: Callable[[str], str],
        *,
        most: int = MOST_WAITING,
        most_bytes: int = MOST_WAITING_BYTES,
        clock: Clock = time,
    ) -> None:
        """Connect Redis.

        Args:
            redis: the connections.
            name_tenant: returns a pseudonym of a tenant.
            most: maximum number of runs of a tenant.
            most_bytes: maximum number of bytes of a tenant's runs.
            clock: returns the seconds since the epoch.
        """
        self._redis = redis
        self._name_tenant = name_tenant
        self._limits = (int(WAITING_SECONDS), most, most_bytes)
        self._clock = clock

    async def put(self, tenant: str, run: Run, body: bytes) -> None:
        """Add the encrypted run."""
        args = (run.id, body, self._clock(), *self._limits)
        await self._redis.ask(lambda redis: redis.eval(_PUT, 1, self._prefix(tenant), *args))

    async def get(self, tenant: str, run_id: RunId) -> bytes | None:
        """Return the tenant's encrypted run of this id, if it exists."""
        name = f"{self._prefix(tenant)}:run:{run_id}"
        return await self._redis.ask(lambda redis: redis.get(name))

    async def dismiss(self, tenant: str, run_ids: Collection[str] | None = None) -> None:
        """Delete these runs of the tenant; None: all of them."""
        if run_ids is not None and not run_ids:
            return
        args, prefix = tuple(run_ids or ()), self._prefix(tenant)
        await self._redis.ask(lambda redis: redis.eval(_DISMISS, 1, prefix, *args))

    def _prefix(self, tenant: str) -> str:
        return f"batuta:waiting:{{{self._name_tenant(tenant)}}}"


@final
class SharedWaitingRuns:
    """Encrypts paused runs for other replicas, and decrypts those of other replicas.

    `add` and `find` log the error of a table that fails, and do not raise it.
    """

    def __init__(self, table: WaitingRunTable, sealer: RunSealer) -> None:
        """Share runs in `table`, encrypted with the server's secret."""
        self._table = table
        self._sealer = sealer

    async def add(self, run: Run, tenant: str) -> None:
        """Share the paused run, unless it is too large or the table fails."""
        try:
            body = self._sealer.seal(run, tenant)
            if len(body) <= _MOST_RUN_BYTES:
                await self._table.put(tenant, run, body)
        except StoreError as error:  # the run can only continue on this replica
            log_exception(error)

    async def find(self, run_id: RunId, tenant: str) -> Run | None:
        """Return the tenant's paused run of this id; None unless it exists and can be decrypted."""
        try:
            body = await self._table.get(tenant, run_id)
            return None if body is None else await self._sealer.open(body, tenant, run_id)
        except StoreError as error:
            log_exception(error)
            return None

    async def dismiss(self, tenant: str, run_ids: Collection[str] | None = None) -> None:
        """Delete these runs of the tenant; None: all of them.

        Raises:
            StoreError: the table is in a database that fails. A Redis that is down is skipped.
        """
        await self._table.dismiss(tenant, run_ids)


@final
class PendingToolRuns:
    """The paused runs, each visible only to its tenant."""

    def __init__(
        self,
        store: Store | None = None,
        shared: SharedWaitingRuns | None = None,
        *,
        max_pending: int = MAX_PENDING,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Start without runs in memory.

        Args:
            store: stores runs; None: runs are not stored.
            shared: shares runs with other replicas; None: runs in memory are not shared.
            max_pending: maximum number of runs in memory.
            clock: returns the time in seconds.
        """
        self._store = store
        self._shared = shared
        self._runs = TenantMemory[RunId, Run](max_pending, WAITING_SECONDS, clock)

    def __len__(self) -> int:
        return len(self._runs)

    async def add(self, run: Run, tenant: str, *, is_kept: bool = False) -> None:
        """Add a paused run, without the prompts of its steps.

        Args:
            run: the run.
            tenant: its tenant.
            is_kept: whether the run is stored, so that other replicas find it in the store.
        """
        waiting = strip_prompts(run)
        self._runs.put(tenant, run.id, waiting)
        is_found = is_kept and self._store is not None and self._store.is_shared
        if self._shared is not None and not is_found:
            await self._shared.add(waiting, tenant)

    async def dismiss(self, tenant: str, run_ids: Collection[str] | None = None) -> None:
        """Delete these runs of the tenant in memory and in the shared table; None: all of them.

        Raises:
            StoreError: the shared table is in a database that fails.
        """
        for run_id in self._runs.keys(tenant):
            if run_ids is None or run_id in run_ids:
                self._runs.pop(tenant, run_id)
        if self._shared is not None:
            await self._shared.dismiss(tenant, run_ids)

    async def find_resumed(self, question: Question, pool: Pool, tenant: str) -> ResumeState | None:
        """Return the state that this conversation's next run resumes; None if it starts anew.

        If the store or the shared table fails, the run starts anew.
        """
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
        except StoreError as error:  # the run starts anew from the conversation
            log_exception(error)
            return None
