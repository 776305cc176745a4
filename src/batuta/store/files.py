"""Files that callers uploaded, with the text that can be read of them.

A file is one row, written in one transaction: it is whole, or it is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import time
from typing import final

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select

from batuta.store.codec import sql_text, sql_values
from batuta.store.database import Database
from batuta.store.models import FILES
from batuta.store.steady_clock import STEADY_CLOCK, sweep_hourly

_HEAD = tuple(
    FILES.c[name]
    for name in ("id", "tenant", "name", "media_type", "purpose", "created", "expires", "size")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file without its content."""

    id: str
    tenant: str
    name: str
    media_type: str
    purpose: str
    created: float
    """Seconds since the epoch."""
    expires: float | None
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    """The text that can be read of a file."""

    id: str
    name: str
    text: str | None
    """None: there is none."""
    fault: str
    """Why there is none, if it should have one."""


class FileQuotaError(Exception):
    """A tenant has no room for another file; the sentence says why."""


@final
class FileTable:
    """Files by their ids; for another tenant they do not exist, nor do they once they expired."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(
        self,
        file: StoredFile,
        content: bytes,
        *,
        text: str | None,
        fault: str,
        vectors: bytes | None = None,
        most_files: int,
        most_bytes: int,
    ) -> None:
        """Write the file; it is there afterwards.

        Args:
            file: what it is.
            content: its bytes.
            text: what can be read of it.
            fault: why nothing can be.
            vectors: those of its text's passages; None: there are none.
            most_files: files of its tenant, with this one.
            most_bytes: bytes of its tenant's files, with this one.

        Raises:
            FileQuotaError: the tenant has no room for it.
        """

        def write(connection: Connection) -> None:
            connection.execute(delete(FILES).where(FILES.c.expires < STEADY_CLOCK()))
            own = FILES.c.tenant == sql_text(file.tenant)
            counted = select(func.count(), func.coalesce(func.sum(FILES.c.size), 0)).where(own)
            count, size = connection.execute(counted).one()
            if count >= most_files:
                raise FileQuotaError(f"it has {count} files, and may have {most_files}")
            if size + file.size > most_bytes:
                raise FileQuotaError(f"its files may have {most_bytes} bytes together")
            values = asdict(file) | {"content": content, "fault": fault, "vectors": vectors}
            values["text"] = None if text is None else text.encode("utf-8", "replace")
            connection.execute(insert(FILES).values(sql_values(values)))

        await self._database.run_write(write)

    async def find(self, file_id: str, tenant: str) -> StoredFile | None:
        """Return the file; None: there is none."""
        query = select(*_HEAD).where(FILES.c.id == sql_text(file_id), *_is_live(tenant))
        rows = await self._database.fetch_rows(query)
        return StoredFile(**rows[0]) if rows else None

    async def heads(self, ids: Sequence[str], tenant: str) -> dict[str, StoredFile]:
        """Return those of the files that exist, by their ids."""
        named = [sql_text(one) for one in ids]
        query = select(*_HEAD).where(FILES.c.id.in_(named), *_is_live(tenant))
        return {row["id"]: StoredFile(**row) for row in await self._database.fetch_rows(query)}

    async def list(
        self, tenant: str, *, purpose: str = "", after: str = "", limit: int = 100
    ) -> list[StoredFile]:
        """Return the tenant's files, newest first.

        Args:
            tenant: whose files.
            purpose: only those of it; empty: all.
            after: the id of the file after which the list begins.
            limit: files at most.
        """
        query = select(*_HEAD).where(*_is_live(tenant))
        if purpose:
            query = query.where(FILES.c.purpose == sql_text(purpose))
        if after:
            last = select(FILES.c.created).where(FILES.c.id == sql_text(after)).scalar_subquery()
            same = (FILES.c.created == last) & (FILES.c.id < sql_text(after))
            query = query.where(or_(FILES.c.created < last, same))
        query = query.order_by(FILES.c.created.desc(), FILES.c.id.desc()).limit(limit)
        return [StoredFile(**row) for row in await self._database.fetch_rows(query)]

    async def read(self, file_id: str, tenant: str) -> bytes | None:
        """Return the file's content; None: there is no such file."""
        query = select(FILES.c.content).where(FILES.c.id == sql_text(file_id), *_is_live(tenant))
        rows = await self._database.fetch_rows(query)
        return bytes(rows[0]["content"]) if rows else None

    async def texts(self, ids: Sequence[str], tenant: str) -> list[FileText]:
        """Return the texts of those of the files that exist."""
        named = [sql_text(one) for one in ids]
        columns = (FILES.c.id, FILES.c.name, FILES.c.text, FILES.c.fault)
        query = select(*columns).where(FILES.c.id.in_(named), *_is_live(tenant))
        return [
            FileText(
                id=row["id"],
                name=row["name"],
                text=None if row["text"] is None else bytes(row["text"]).decode(),
                fault=row["fault"],
            )
            for row in await self._database.fetch_rows(query)
        ]

    async def vectors(self, ids: Sequence[str], tenant: str) -> dict[str, bytes]:
        """Return the vectors of those of the files that have some, by their ids."""
        named = [sql_text(one) for one in ids]
        has_some = FILES.c.vectors.is_not(None)
        columns = (FILES.c.id, FILES.c.vectors)
        query = select(*columns).where(FILES.c.id.in_(named), has_some, *_is_live(tenant))
        return {row["id"]: bytes(row["vectors"]) for row in await self._database.fetch_rows(query)}

    async def names(self, tenant: str) -> dict[str, str]:
        """Return the names of all files of the tenant, by their ids."""
        query = select(FILES.c.id, FILES.c.name).where(*_is_live(tenant))
        return {row["id"]: row["name"] for row in await self._database.fetch_rows(query)}

    async def delete(self, file_id: str, tenant: str) -> bool:
        """Erase the file and its text; whether there was one."""
        own = (FILES.c.id == sql_text(file_id), FILES.c.tenant == sql_text(tenant))

        def erase(connection: Connection) -> int:
            return connection.execute(delete(FILES).where(*own)).rowcount

        found = await self._database.run_write(erase)
        await self._database.checkpoint()
        return found > 0

    async def work(self) -> None:
        """Erase what expired, at once if the clock can be believed, and then every hour."""
        complaint = "files that expired are not erased now"
        await sweep_hourly(self._database, FILES.c.created, self._erase_expired, complaint)

    async def _erase_expired(self) -> None:
        await self._database.execute(delete(FILES).where(FILES.c.expires < STEADY_CLOCK()))


def _is_live(tenant: str) -> tuple[ColumnElement[bool], ...]:
    lasting = or_(FILES.c.expires.is_(None), FILES.c.expires >= time())
    return (FILES.c.tenant == sql_text(tenant), lasting)
