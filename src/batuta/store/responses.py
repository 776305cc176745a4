"""Responses on disk: what was put in, what came out, and the events in which it was told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from sqlalchemy import (
    Column,
    ColumnElement,
    Float,
    Index,
    LargeBinary,
    Table,
    Text,
    delete,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from batuta.store.codec import sql_text
from batuta.store.database import Database
from batuta.store.models import METADATA

RESPONSES = Table(
    "responses",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("created", Float(53), nullable=False),
    Column("status", Text, nullable=False),
    # The response that it goes on from.
    Column("previous", Text),
    Column("body", LargeBinary, nullable=False),
    Column("input", LargeBinary, nullable=False),
    # Null: told of at once, or kept by the job that told them.
    Column("events", LargeBinary),
    Index(None, "tenant", "created"),
)
_LIGHT = [column for column in RESPONSES.c if column.name != "events"]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and what led to it, each part encoded by whoever stores it."""

    id: str
    tenant: str
    created: float
    """Seconds since the epoch."""
    status: str
    previous: str | None
    body: bytes
    input: bytes
    events: bytes | None = None


@final
class Responses:
    """Responses by their ids; for another tenant they do not exist."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, response: StoredResponse) -> None:
        """Writes the response, in place of an earlier state of it.

        Raises:
            StoreError: the database fails.
        """
        row = {
            "id": sql_text(response.id),
            "tenant": sql_text(response.tenant),
            "created": response.created,
            "status": response.status,
            "previous": None if response.previous is None else sql_text(response.previous),
            "body": response.body,
            "input": response.input,
            "events": response.events,
        }
        async with self._database.begin() as connection:
            dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
            insert = dialect.insert(RESPONSES).values(row)
            later = {name: insert.excluded[name] for name in row if name not in {"id", "tenant"}}
            await connection.execute(
                insert.on_conflict_do_update(index_elements=["id", "tenant"], set_=later)
            )

    async def get(self, response_id: str, tenant: str) -> StoredResponse | None:
        """The response; None if there is none.

        Raises:
            StoreError: the database fails.
        """
        rows = await self._database.rows(select(RESPONSES).where(*_named(response_id, tenant)))
        return _read(rows[0]) if rows else None

    async def several(self, ids: Sequence[str], tenant: str) -> list[StoredResponse]:
        """Those of the responses that there are, without events.

        Raises:
            StoreError: the database fails.
        """
        wanted = RESPONSES.c.id.in_([sql_text(one) for one in ids])
        query = select(*_LIGHT).where(wanted, RESPONSES.c.tenant == sql_text(tenant))
        return [_read(row) for row in await self._database.rows(query)]

    async def thread(self, response_id: str, tenant: str, most: int) -> list[StoredResponse]:
        """The response and those before it, oldest first, at most `most` and without events.

        Raises:
            StoreError: the database fails.
        """
        first = select(*_LIGHT, literal(0).label("depth")).where(*_named(response_id, tenant))
        thread = first.cte("thread", recursive=True)
        older = (
            select(*_LIGHT, (thread.c.depth + 1).label("depth"))
            .join(thread, RESPONSES.c.id == thread.c.previous)
            .where(RESPONSES.c.tenant == sql_text(tenant), thread.c.depth + 1 < most)
        )
        thread = thread.union_all(older)
        rows = await self._database.rows(select(thread).order_by(thread.c.depth.desc()))
        return [_read(row) for row in rows]

    async def delete(self, response_id: str, tenant: str) -> bool:
        """Forgets the response; whether there was one.

        Raises:
            StoreError: the database fails.
        """
        async with self._database.begin() as connection:
            found = await connection.execute(
                delete(RESPONSES).where(*_named(response_id, tenant)).returning(RESPONSES.c.id)
            )
            return found.first() is not None


def _named(response_id: str, tenant: str) -> tuple[ColumnElement[bool], ...]:
    return RESPONSES.c.id == sql_text(response_id), RESPONSES.c.tenant == sql_text(tenant)


def _read(row: Mapping[str, Any]) -> StoredResponse:
    return StoredResponse(
        row["id"],
        row["tenant"],
        row["created"],
        row["status"],
        row["previous"],
        row["body"],
        row["input"],
        row.get("events"),
    )
