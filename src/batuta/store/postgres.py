"""Options and timeouts of PostgreSQL's driver, asyncpg.

A server that hangs keeps its connections open, so only timeouts detect it. Statements that are
instant on a healthy server (BEGIN, ROLLBACK) have shorter ones.
"""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import Any

from sqlalchemy import URL

from batuta.errors import StoreError

CONNECT_SECONDS = 4.0
"""Timeout of a connection attempt."""

BEGIN_SECONDS = 3.0
"""Timeout of BEGIN and ROLLBACK."""

STATEMENT_SECONDS = 8.0
"""Timeout of every other statement."""

SILENT_SECONDS = 1.0
"""Seconds after a timed-out connection, BEGIN or ROLLBACK in which further calls fail immediately,
so that queued calls do not each wait for the timeout."""

_INSTANT = ("BEGIN", "ROLLBACK")


class SilentServerError(TimeoutError):
    """The server did not begin or roll back a transaction in time, or was silent just before."""


@cache
def _asyncpg_class() -> Any:
    driver = _load_asyncpg()

    class Connection(driver.Connection):
        """A connection with timeouts for BEGIN and ROLLBACK, which SQLAlchemy runs by `execute`."""

        async def execute(self, query: str, *args: Any, **options: Any) -> str:
            if not query.startswith(_INSTANT):
                return await self._execute(query, *args, **options)
            try:
                return await self._execute(query, timeout=BEGIN_SECONDS)
            except TimeoutError:
                self.terminate()  # close() would wait for the server
                raise SilentServerError from None

        async def _execute(self, *args: Any, **options: Any) -> Any:
            return await driver.Connection.execute(self, *args, **options)

    return Connection


def _load_asyncpg() -> Any:
    """Return the driver, which has no type hints."""
    import asyncpg  # noqa: PLC0415 - an extra  # pyright: ignore[reportMissingTypeStubs]

    return asyncpg


def to_asyncpg_url(url: URL) -> URL:
    """Return the URL with the usual option `sslmode` under asyncpg's name `ssl`.

    Raises:
        StoreError: the URL has an unknown option.
        ImportError: asyncpg is not installed.
    """
    known = signature(_load_asyncpg().connect).parameters
    query = {"ssl" if name == "sslmode" else name: value for name, value in url.query.items()}
    for name in query:
        if name not in known and not name.startswith("prepared_statement_"):  # SQLAlchemy's options
            raise StoreError(
                f"the URL of the database has the unknown option {name}: use sslmode, or "
                "environment variables such as PGSSLROOTCERT"
            )
    return url.set(query=query)


def choose_timeouts(*, pooled: bool) -> dict[str, Any]:
    """Return the options of an SQLAlchemy engine that set the timeouts of this module.

    An unpooled connection is used for a migration, which may wait long for the migration of another
    process, so only its connection attempt has a timeout.
    """
    if not pooled:
        return {"connect_args": {"timeout": CONNECT_SECONDS}}
    waiting = {
        "timeout": CONNECT_SECONDS,
        "command_timeout": STATEMENT_SECONDS,
        "connection_class": _asyncpg_class(),
    }
    return {"connect_args": waiting, "pool_timeout": CONNECT_SECONDS}
