"""Responses of the Responses API in the database: input, body and events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, final

from sqlalchemy import (
    CTE,
    Column,
    ColumnElement,
    Connection,
    Executable,
    Float,
    Index,
    LargeBinary,
    Select,
    Table,
    Text,
    delete,
    func,
    literal,
    select,
)

from batuta.core import RunId
from batuta.errors import StoreError
from batuta.store.budgets import Batcher
from batuta.store.codec import sql_text, sql_values
from batuta.store.database import Database, insert_statement
from batuta.store.deleted import forgotten_among
from batuta.store.models import METADATA

RESPONSE_PREFIX = "resp_"
_RUN_PREFIX = "run_"


RESPONSES = Table(
    "responses",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("created", Float(53), nullable=False),
    Column("status", Text, nullable=False),
    # The response that it continues.
    Column("previous", Text),
    Column("body", LargeBinary, nullable=False),
    Column("input", LargeBinary, nullable=False),
    # Null: the response was not streamed, or its job stores the events.
    Column("events", LargeBinary),
    Index(None, "tenant", "created"),
    Index(None, "tenant", "previous"),
)
_PARTS = {"body": RESPONSES.c.body, "input": RESPONSES.c.input, "events": RESPONSES.c.events}
ALL_PARTS = frozenset(_PARTS)
"""The large columns of a response, each of which can be left out when a response is read."""
_CONTENT = frozenset({"body", "input"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response with its input and events, each part encoded by the caller."""

    id: str
    tenant: str
    created: float
    """Seconds since the epoch."""
    status: str
    """The status as in the Responses API, such as `in_progress`."""
    previous: str | None
    """The id of the response that this one continues; None: none."""
    body: bytes
    """Empty if it was not read."""
    input: bytes
    """Empty if it was not read."""
    events: bytes | None = None
    """None: it was not read, or there are none."""


@final
class ResponseTable:
    """Responses by id; responses of other tenants are not found."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows = Batcher(self._keep)

    async def put(self, response: StoredResponse) -> None:
        """Write the response, replacing an earlier state; it can be read when this returns.

        A response that `Forgetting` has erased, itself or with its tenant, is not written again.

        Raises:
            StoreError: the database fails, or rejects the response.
        """
        error = await self._rows.submit(sql_values(asdict(response)))
        if error is not None:
            raise error

    async def get(
        self, response_id: str, tenant: str, parts: Collection[str] = ALL_PARTS
    ) -> StoredResponse | None:
        """Return the response with these parts; None: the tenant has no such response."""
        rows = await self._database.fetch_rows(
            select(*_select_columns(parts)).where(*_row_filter(response_id, tenant))
        )
        return _response_from_row(rows[0]) if rows else None

    async def measure(
        self, ids: Sequence[str], tenant: str, parts: Collection[str] = _CONTENT
    ) -> int:
        """Return the total bytes of these parts of the responses that exist."""
        query = select(_size_of(parts)).where(*_rows_filter(ids, tenant))
        return await self._fetch_size(query)

    async def get_many(
        self, ids: Sequence[str], tenant: str, parts: Collection[str] = _CONTENT
    ) -> list[StoredResponse]:
        """Return the responses that exist, in any order, with these parts."""
        query = select(*_select_columns(parts)).where(*_rows_filter(ids, tenant))
        return [_response_from_row(row) for row in await self._database.fetch_rows(query)]

    async def measure_thread(self, response_id: str, tenant: str, most: int) -> int:
        """Return the number of bytes that `get_thread` would read."""
        thread = _select_thread(response_id, tenant, most)
        query = (
            select(_size_of(_CONTENT))
            .join(thread, RESPONSES.c.id == thread.c.id)
            .where(RESPONSES.c.tenant == sql_text(tenant))
        )
        return await self._fetch_size(query)

    async def get_thread(self, response_id: str, tenant: str, most: int) -> list[StoredResponse]:
        """Return the response and its predecessors, oldest first, without events.

        At most `most` responses are returned, the newest ones; none if the response does not exist.
        """
        thread = _select_thread(response_id, tenant, most)
        query = (
            select(*_select_columns(_CONTENT))
            .join(thread, RESPONSES.c.id == thread.c.id)
            .where(RESPONSES.c.tenant == sql_text(tenant))
            .order_by(thread.c.depth.desc())
        )
        return [_response_from_row(row) for row in await self._database.fetch_rows(query)]

    async def _fetch_size(self, query: Select[Any]) -> int:
        (row,) = await self._database.fetch_rows(query)
        return int(row["size"] or 0)

    async def delete(self, response_id: str, tenant: str) -> bool:
        """Delete the response; return whether it existed. A later `put` writes it again."""
        own = _row_filter(response_id, tenant)
        return await self._database.execute(delete(RESPONSES).where(*own)) > 0

    async def _keep(self, rows: list[dict[str, Any]]) -> list[StoreError | None]:
        """Write all rows in one transaction; if that fails, each in its own."""
        try:
            await self._database.run_write(lambda connection: _put_rows(connection, rows))
        except StoreError as error:
            if len(rows) > 1:
                return [(await self._keep([row]))[0] for row in rows]
            return [error]
        return [None] * len(rows)


def _put_rows(connection: Connection, rows: list[dict[str, Any]]) -> None:
    erased = forgotten_among(
        connection, [row["id"] for row in rows], [(row["tenant"], row["created"]) for row in rows]
    )
    kept = [row for row in rows if erased.isdisjoint({row["id"], (row["tenant"], row["created"])})]
    if kept:
        connection.execute(_put_statement(connection.dialect.name), kept)


@cache
def _put_statement(dialect: str) -> Executable:
    """Return the statement that inserts or replaces a response; cached, as building it is slow."""
    new = insert_statement(dialect, RESPONSES)
    names = [column.name for column in RESPONSES.c if not column.primary_key]
    later = {name: new.excluded[name] for name in names}
    return new.on_conflict_do_update(index_elements=["id", "tenant"], set_=later)


def _select_columns(parts: Collection[str]) -> list[ColumnElement[Any]]:
    return [column for column in RESPONSES.c if column.name not in _PARTS or column.name in parts]


def _size_of(parts: Collection[str]) -> ColumnElement[Any]:
    whole: ColumnElement[Any] = literal(0)
    for part in sorted(parts):
        whole = whole + func.coalesce(func.length(_PARTS[part]), 0)
    return func.sum(whole).label("size")


def _select_thread(response_id: str, tenant: str, most: int) -> CTE:
    """Select the ids of the response and its predecessors, with the distance as `depth`."""
    names = (RESPONSES.c.id, RESPONSES.c.previous)
    first = select(*names, literal(0).label("depth")).where(*_row_filter(response_id, tenant))
    thread = first.cte("thread", recursive=True)
    older = (
        select(*names, (thread.c.depth + 1).label("depth"))
        .join(thread, RESPONSES.c.id == thread.c.previous)
        .where(RESPONSES.c.tenant == sql_text(tenant), thread.c.depth + 1 < most)
    )
    return thread.union_all(older)


def _rows_filter(ids: Sequence[str], tenant: str) -> tuple[ColumnElement[bool], ...]:
    listed = RESPONSES.c.id.in_([sql_text(one) for one in ids])
    return listed, RESPONSES.c.tenant == sql_text(tenant)


def _row_filter(response_id: str, tenant: str) -> tuple[ColumnElement[bool], ...]:
    return RESPONSES.c.id == sql_text(response_id), RESPONSES.c.tenant == sql_text(tenant)


def _response_from_row(row: Mapping[str, Any]) -> StoredResponse:
    values: dict[str, Any] = {"body": b"", "input": b"", **row}
    return StoredResponse(**values)


def response_id(run_id: RunId) -> str:
    """Return the id of the run's response."""
    return RESPONSE_PREFIX + run_id.removeprefix(_RUN_PREFIX)


def run_id_of(response: str) -> RunId:
    """Return the id of the response's run."""
    return RunId(_RUN_PREFIX + response.removeprefix(RESPONSE_PREFIX))
