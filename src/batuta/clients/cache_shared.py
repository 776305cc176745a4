"""A call journal on PostgreSQL, so that several machines do not pay for the same call twice.

Before a call is made, its process writes a claim with a lease, in one statement; other processes
wait for the reply. A lease is renewed while the call runs. It expires if its process was killed, or
could not reach PostgreSQL for `LEASE_S`; then another process makes the call. Only laboratory
commands use this journal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast, final
from uuid import UUID, uuid4

import anyio

from batuta.clients.cache import (
    CallCache,
    CallClaim,
    CallJournal,
    read_reply,
    stored_worker_name,
    write_reply,
)
from batuta.clients.replay import request_fingerprint
from batuta.core import Reply, Request
from batuta.distribution import install_hint
from batuta.errors import ConfigError, StoreError
from batuta.offload.tasks import open_background_tasks

LEASE_S = 15.0
"""Seconds for which a claim is valid unless renewed: how long a killed process blocks its calls."""
RENEWAL_S = 3.0
"""Seconds between two renewals."""
FIRST_POLL_S, LONGEST_POLL_S = 0.05, 1.0
"""First and longest pause in seconds between polls for the reply to a claimed call; each pause is
twice as long as the one before. In an outage, queries are repeated after the longest pause."""
OUTAGE_S = 60.0
"""Seconds for which queries are repeated while PostgreSQL is unavailable, as during a restart."""
CONNECTIONS = 4
"""Maximum number of connections per process."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS batuta_calls (
    scope text, worker text, request bytea,
    reply bytea,
    owner uuid,
    leased_until timestamptz,
    written timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, worker, request));
CREATE INDEX IF NOT EXISTS batuta_calls_owner ON batuta_calls (owner) WHERE reply IS NULL;
CREATE TABLE IF NOT EXISTS batuta_reached (
    scope text, worker text, identity text NOT NULL, PRIMARY KEY (scope, worker));
"""
_SCHEMA_LOCK = 0x62617475746A
_CLAIM = """
INSERT INTO batuta_calls AS known (scope, worker, request, owner, leased_until)
VALUES ($1, $2, $3, $4, clock_timestamp() + $5)
ON CONFLICT (scope, worker, request) DO UPDATE
    SET owner = excluded.owner, leased_until = excluded.leased_until
    WHERE known.reply IS NULL
      AND (known.leased_until < clock_timestamp() OR known.owner = excluded.owner)
RETURNING true
"""
_READ = "SELECT reply FROM batuta_calls WHERE scope = $1 AND worker = $2 AND request = $3"
_NAME = """
INSERT INTO batuta_reached AS known (scope, worker, identity) VALUES ($1, $2, $3)
ON CONFLICT (scope, worker) DO UPDATE SET identity = known.identity
RETURNING identity
"""
_KEEP = """
INSERT INTO batuta_calls AS known (scope, worker, request, reply) VALUES ($1, $2, $3, $4)
ON CONFLICT (scope, worker, request) DO UPDATE
    SET reply = coalesce(known.reply, excluded.reply), owner = NULL, leased_until = NULL
RETURNING reply
"""
_RELEASE = """
DELETE FROM batuta_calls
WHERE scope = $1 AND worker = $2 AND request = $3 AND owner = $4 AND reply IS NULL
"""
_RENEW = """
UPDATE batuta_calls SET leased_until = clock_timestamp() + $2
WHERE owner = ANY($1) AND reply IS NULL
"""
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Key:
    scope: str
    worker: str
    request: bytes

    def __iter__(self) -> Any:
        return iter((self.scope, self.worker, self.request))


def is_shared(journal: str) -> bool:
    """Return True if `journal` is a database that several machines can share."""
    return journal.startswith(("postgresql://", "postgres://", "postgresql+asyncpg://"))


@asynccontextmanager
async def open_call_journal(journal: str, scope: str) -> AsyncGenerator[CallJournal]:
    """Open the journal of finished calls in a file or database.

    Args:
        journal: a path, or postgresql://user@host/database.
        scope: calls in a database are shared within one scope; calls in a file by all its users.

    Raises:
        ConfigError: the extra for PostgreSQL is not installed.
        StoreError: the journal cannot be opened.
    """
    if is_shared(journal):
        async with open_shared_journal(journal, scope) as shared:
            yield shared
    else:
        with CallCache(Path(journal)) as opened:
            yield opened


@asynccontextmanager
async def open_shared_journal(url: str, scope: str) -> AsyncGenerator[SharedJournal]:
    """Open the journal in a database; its connections and lease renewals end with the block.

    Args:
        url: postgresql://user@host/database.
        scope: calls are shared within one scope, such as one evaluation or one training run.

    Raises:
        ConfigError: the extra is not installed.
        StoreError: the database cannot be used.
    """
    try:
        import asyncpg  # noqa: PLC0415 - an extra  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise ConfigError(
            f"a call journal on PostgreSQL needs an extra: {install_hint('postgres')}"
        ) from None
    driver = cast("Any", asyncpg)
    address = url.replace("postgresql+asyncpg://", "postgresql://", 1)
    pool: Any = None
    try:
        pool = await driver.create_pool(address, min_size=1, max_size=CONNECTIONS)
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
            await connection.execute(_SCHEMA)
    except (OSError, ValueError, driver.PostgresError, driver.InterfaceError) as error:
        if pool is not None:
            pool.terminate()
        raise StoreError(f"the call journal's database cannot be used: {error}") from None
    journal = SharedJournal(pool, driver, scope)
    try:
        async with open_background_tasks() as tasks:
            tasks.start_soon(journal.renew_leases)
            yield journal
    finally:
        with anyio.move_on_after(RENEWAL_S, shield=True):
            await pool.close()
        pool.terminate()


@final
class SharedJournal:
    """Finished and claimed calls in PostgreSQL; created by `open_shared_journal`."""

    def __init__(self, pool: Any, driver: Any, scope: str) -> None:
        """Create the journal over an open pool.

        Args:
            pool: the asyncpg pool.
            driver: the module asyncpg.
            scope: the scope within which calls are shared.
        """
        self.hits = 0
        self.misses = 0
        self._pool = pool
        self._scope = scope
        self._held: set[UUID] = set()
        """The owners of the claims that are renewed."""
        self._outages = (
            OSError,
            driver.PostgresConnectionError,
            driver.InterfaceError,
            driver.CannotConnectNowError,
            driver.AdminShutdownError,
            driver.CrashShutdownError,
            driver.TooManyConnectionsError,
        )
        self._errors = driver.PostgresError

    async def name_worker(self, worker: str, identity: str) -> str:
        """Return the name under which that worker's replies are stored; see `CallJournal`.

        Raises:
            StoreError: the database is unavailable for longer than a minute, or reports an error.
        """
        first = await self._ask(lambda pool: pool.fetchval(_NAME, self._scope, worker, identity))
        return stored_worker_name(worker, identity, first)

    @asynccontextmanager
    async def claim(self, worker: str, request: Request) -> AsyncGenerator[CallClaim]:
        """Claim the call among all processes of the scope; yield the claim.

        While another process or task has the claim, this waits. The claim is released if the block
        ends without a reply.

        Raises:
            StoreError: the database is unavailable for longer than a minute, or reports an error;
                or the stored reply cannot be read.
        """
        key, owner = _Key(self._scope, worker, request_fingerprint(request)), uuid4()

        async def keep(reply: Reply) -> Reply:
            text = write_reply(reply)
            kept = await self._ask(lambda pool: pool.fetchval(_KEEP, *key, text))
            self._held.discard(owner)
            return reply if kept == text else read_reply(kept)

        self._held.add(owner)
        try:
            yield CallClaim(await self._wait_for_claim(key, owner), keep)
        finally:
            if owner in self._held:
                self._held.discard(owner)
                await self._release(key, owner)

    async def _wait_for_claim(self, key: _Key, owner: UUID) -> Reply | None:
        """Return the stored reply, as soon as there is one; None once this owner has the claim."""
        lease, pause = timedelta(seconds=LEASE_S), FIRST_POLL_S
        while True:
            if await self._ask(lambda pool: pool.fetchval(_CLAIM, *key, owner, lease)):
                return None
            reply = await self._ask(lambda pool: pool.fetchval(_READ, *key))
            if reply is not None:
                self._held.discard(owner)
                return read_reply(reply)
            await anyio.sleep(pause)
            pause = min(LONGEST_POLL_S, 2 * pause)

    async def _release(self, key: _Key, owner: UUID) -> None:
        """Release the claim, so that another process can make the call; on failure it expires."""
        with anyio.move_on_after(RENEWAL_S, shield=True):
            try:
                await self._pool.execute(_RELEASE, *key, owner)
            except (*self._outages, self._errors) as error:
                _LOG.warning("a claimed call could not be released: %s", type(error).__name__)

    async def renew_leases(self) -> None:
        """Renew this process's claims periodically, until cancelled."""
        lease = timedelta(seconds=LEASE_S)
        while True:
            await anyio.sleep(RENEWAL_S)
            if held := list(self._held):
                try:
                    await self._pool.execute(_RENEW, held, lease)
                except (*self._outages, self._errors) as error:
                    _LOG.warning("claimed calls could not be renewed: %s", type(error).__name__)

    async def _ask(self, query: Callable[[Any], Awaitable[_T]]) -> _T:
        """Query the database, with retries while it is unavailable.

        Raises:
            StoreError: the database is unavailable for longer than a minute, or reports an error.
        """
        until = time.monotonic() + OUTAGE_S
        while True:
            try:
                return await query(self._pool)
            except self._outages as error:
                if time.monotonic() > until:
                    raise StoreError(
                        f"the call journal's database cannot be reached: {error}"
                    ) from None
                await anyio.sleep(LONGEST_POLL_S)
            except self._errors as error:
                raise StoreError(
                    f"the call journal's database reported an error: {error}"
                ) from None
