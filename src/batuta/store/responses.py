"""Responses on disk: what was put in, what came out, and the events in which it was told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Executable,
    Float,
    Index,
    LargeBinary,
    Table,
    Text,
    delete,
    literal,
    select,
)

from batuta.errors import StoreError
from batuta.store.codec import sql_text
from batuta.store.database import Database
from batuta.store.models import METADATA
from batuta.store.together import Together
from batuta.store.upsert import upsert

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
        self._rows = Together(self._keep)

    async def put(self, response: StoredResponse) -> None:
        """Writes the response, in place of an earlier state of it; it is there afterwards.

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
        error = await self._rows.do(row)
        if error is not None:
            raise error

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
        return (
            await self._database.execute(delete(RESPONSES).where(*_named(response_id, tenant))) > 0
        )

    async def _keep(self, rows: list[dict[str, Any]]) -> list[StoreError | None]:
        """All in one transaction; if that fails, each in its own."""
        try:
            await self._database.change(lambda connection: _put(connection, rows))
        except StoreError as error:
            if len(rows) > 1:
                return [(await self._keep([row]))[0] for row in rows]
            return [error]
        return [None] * len(rows)


def _put(connection: Connection, rows: list[dict[str, Any]]) -> None:
    connection.execute(_putting(connection.dialect.name), rows)


@cache
def _putting(dialect: str) -> Executable:
    """In place of what is there; built once."""
    new = upsert(dialect, RESPONSES)
    names = [column.name for column in RESPONSES.c if not column.primary_key]
    later = {name: new.excluded[name] for name in names}
    return new.on_conflict_do_update(index_elements=["id", "tenant"], set_=later)


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
