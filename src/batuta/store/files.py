"""Uploaded files, with their extracted text.

A file is one row, written in one transaction, so it is never stored in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import time
from typing import final

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select, tuple_

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
    """Seconds since the epoch; None: never."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    """The extracted text of a file."""

    id: str
    name: str
    text: str | None
    """None: there is none; `fault` may say why."""
    fault: str
    """Why no text could be extracted; empty: there is text, or none is expected."""


class FileQuotaError(Exception):
    """A tenant has no room for another file; the message says why."""


@final
class FileTable:
    """Files by id; files of other tenants are not found, and only `delete` finds expired files."""

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
        """Store the file; it can be read as soon as this returns.

        Args:
            file: its metadata.
            content: its bytes.
            text: its extracted text; None: there is none.
            fault: why no text could be extracted; empty if there is text, or none is expected.
            vectors: the vectors of its text's passages; None: there are none.
            most_files: maximum files of the tenant, including this one.
            most_bytes: maximum bytes of the tenant's files, including this one.

        Raises:
            FileQuotaError: the tenant has no room for the file. In PostgreSQL, files that are
                stored at the same time may together exceed the limits.
        """

        def write(connection: Connection) -> None:
            connection.execute(delete(FILES).where(FILES.c.expires < STEADY_CLOCK()))
            own = FILES.c.tenant == sql_text(file.tenant)
            counted = select(func.count(), func.coalesce(func.sum(FILES.c.size), 0)).where(own)
            count, size = connection.execute(counted).one()
            if count >= most_files:
                raise FileQuotaError(f"the tenant has {count} of at most {most_files} files")
            if size + file.size > most_bytes:
                raise FileQuotaError(f"the tenant's files may have {most_bytes} bytes in total")
            values = asdict(file) | {"content": content, "fault": fault, "vectors": vectors}
            values["text"] = None if text is None else text.encode("utf-8", "replace")
            connection.execute(insert(FILES).values(sql_values(values)))

        await self._database.run_write(write)

    async def find(self, file_id: str, tenant: str) -> StoredFile | None:
        """Return the file's metadata; None: there is no such file."""
        query = select(*_HEAD).where(FILES.c.id == sql_text(file_id), *_is_live(tenant))
        rows = await self._database.fetch_rows(query)
        return StoredFile(**rows[0]) if rows else None

    async def heads(self, ids: Sequence[str], tenant: str) -> dict[str, StoredFile]:
        """Return the metadata of the files that exist, by id."""
        cleaned_ids = [sql_text(one) for one in ids]
        query = select(*_HEAD).where(FILES.c.id.in_(cleaned_ids), *_is_live(tenant))
        return {row["id"]: StoredFile(**row) for row in await self._database.fetch_rows(query)}

    async def list(
        self,
        tenant: str,
        *,
        purpose: str = "",
        after: str = "",
        limit: int = 100,
        newest_first: bool = True,
    ) -> list[StoredFile]:
        """Return the tenant's files, ordered by the time of their upload.

        Args:
            tenant: the tenant.
            purpose: only files of that purpose; empty: all.
            after: the id of the last file of the previous page; empty: the first page. If that
                file has been deleted, no files are returned.
            limit: maximum number of files.
            newest_first: whether the newest file comes first.
        """
        query, place = select(*_HEAD).where(*_is_live(tenant)), (FILES.c.created, FILES.c.id)
        if purpose:
            query = query.where(FILES.c.purpose == sql_text(purpose))
        if after:
            last = select(FILES.c.created).where(FILES.c.id == sql_text(after)).scalar_subquery()
            here, there = tuple_(*place), tuple_(last, sql_text(after))
            query = query.where(here < there if newest_first else here > there)
        order = [column.desc() for column in place] if newest_first else place
        query = query.order_by(*order).limit(limit)
        return [StoredFile(**row) for row in await self._database.fetch_rows(query)]

    async def read(self, file_id: str, tenant: str) -> bytes | None:
        """Return the file's content; None: there is no such file."""
        query = select(FILES.c.content).where(FILES.c.id == sql_text(file_id), *_is_live(tenant))
        rows = await self._database.fetch_rows(query)
        return bytes(rows[0]["content"]) if rows else None

    async def texts(self, ids: Sequence[str], tenant: str) -> list[FileText]:
        """Return the texts of the files that exist, in any order."""
        cleaned_ids = [sql_text(one) for one in ids]
        columns = (FILES.c.id, FILES.c.name, FILES.c.text, FILES.c.fault)
        query = select(*columns).where(FILES.c.id.in_(cleaned_ids), *_is_live(tenant))
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
        """Return the stored vectors of the files that have some, by id."""
        cleaned_ids = [sql_text(one) for one in ids]
        has_some = FILES.c.vectors.is_not(None)
        columns = (FILES.c.id, FILES.c.vectors)
        query = select(*columns).where(FILES.c.id.in_(cleaned_ids), has_some, *_is_live(tenant))
        return {row["id"]: bytes(row["vectors"]) for row in await self._database.fetch_rows(query)}

    async def names(self, tenant: str) -> dict[str, str]:
        """Return the names of all files of the tenant, by id."""
        query = select(FILES.c.id, FILES.c.name).where(*_is_live(tenant))
        return {row["id"]: row["name"] for row in await self._database.fetch_rows(query)}

    async def delete(self, file_id: str, tenant: str) -> bool:
        """Erase the file and its text; return whether it existed."""
        own = (FILES.c.id == sql_text(file_id), FILES.c.tenant == sql_text(tenant))
        deleted = await self._database.execute(delete(FILES).where(*own))
        await self._database.checkpoint()
        return deleted > 0

    async def work(self) -> None:
        """Erase expired files every hour until cancelled; see `sweep_hourly`."""
        complaint = "expired files could not be erased (retrying in an hour)"
        await sweep_hourly(self._database, FILES.c.created, self._erase_expired, complaint)

    async def _erase_expired(self) -> None:
        await self._database.execute(delete(FILES).where(FILES.c.expires < STEADY_CLOCK()))


def _is_live(tenant: str) -> tuple[ColumnElement[bool], ...]:
    lasting = or_(FILES.c.expires.is_(None), FILES.c.expires >= time())
    return (FILES.c.tenant == sql_text(tenant), lasting)
