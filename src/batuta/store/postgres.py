"""PostgreSQL by its driver: what its URL may say, and how long it may say nothing.

A server that hangs keeps its connections, so nothing but the time tells it from one that works.
What takes no time on a server that lives - to begin, to give up a transaction - has less of it.
"""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import Any

from sqlalchemy import URL

from batuta.errors import StoreError

CONNECT_SECONDS = 4.0
"""Seconds that the server may take to let somebody in."""

BEGIN_SECONDS = 3.0
"""Seconds that it may take to begin a transaction, or to give one up."""

STATEMENT_SECONDS = 8.0
"""Seconds that one of its statements may take."""

SILENT_SECONDS = 1.0
"""Seconds for which a server that let nobody begin is not asked again, so that those who stand in a
line for it do not each wait as long as the first."""

_INSTANT = ("BEGIN", "ROLLBACK")


class SilentServerError(TimeoutError):
    """The server has not begun a transaction in time."""


@cache
def _asyncpg_class() -> Any:
    driver = _load_asyncpg()

    class Connection(driver.Connection):
        """One whose transactions begin soon or never. SQLAlchemy executes nothing else by it."""

        async def execute(self, query: str, *args: Any, **options: Any) -> str:
            if not query.startswith(_INSTANT):
                return await self._execute(query, *args, **options)
            try:
                return await self._execute(query, timeout=BEGIN_SECONDS)
            except TimeoutError:
                self.terminate()  # closing it would wait for an answer
                raise SilentServerError from None

        async def _execute(self, *args: Any, **options: Any) -> Any:
            return await driver.Connection.execute(self, *args, **options)

    return Connection


def _load_asyncpg() -> Any:
    """Return the driver, of whose types little is known."""
    import asyncpg  # noqa: PLC0415 - an extra  # pyright: ignore[reportMissingTypeStubs]

    return asyncpg


def to_asyncpg_url(url: URL) -> URL:
    """Return the URL with `sslmode`, as everybody else calls it, under asyncpg's name.

    Raises:
        StoreError: it has an option that nobody knows.
    """
    known = signature(_load_asyncpg().connect).parameters
    query = {"ssl" if name == "sslmode" else name: value for name, value in url.query.items()}
    for name in query:
        if name not in known and not name.startswith("prepared_statement_"):  # SQLAlchemy's own
            raise StoreError(
                f"the URL of the database has the option {name}, which is not known: "
                "sslmode is, and others are set by variables such as PGSSLROOTCERT"
            )
    return url.set(query=query)


def choose_timeouts(*, pooled: bool) -> dict[str, Any]:
    """Return the options of an engine with which nobody waits longer.

    A connection that is used once is a migration's, which may wait for another process's.
    """
    if not pooled:
        return {"connect_args": {"timeout": CONNECT_SECONDS}}
    waiting = {
        "timeout": CONNECT_SECONDS,
        "command_timeout": STATEMENT_SECONDS,
        "connection_class": _asyncpg_class(),
    }
    return {"connect_args": waiting, "pool_timeout": CONNECT_SECONDS}
