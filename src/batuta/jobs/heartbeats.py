"""The processes that run jobs of one PostgreSQL database, and who of them still lives."""

from __future__ import annotations

from contextlib import suppress
from typing import final

from sqlalchemy import Column, DateTime, MetaData, Table, Text, create_engine, delete, func, select
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from batuta.jobs.records import CONNECT_TIMEOUTS

SILENCE_SECONDS = 5.0
"""Seconds without a sign of life after which a process counts as dead."""
_LOCK_ID = 7_092_011
_HEARTBEAT_TABLE = Table(
    "job_peers",
    MetaData(),
    Column("id", Text, primary_key=True),
    Column("seen", DateTime(timezone=True), nullable=False),
)


@final
class Heartbeats:
    """A table of signs of life, by the database's clock. It blocks: call it from a thread."""

    def __init__(self, url: URL, name: str) -> None:
        """Makes the table if need be, and gives the first sign of life.

        Args:
            url: the database.
            name: of this process.
        """
        self._engine = create_engine(
            url, pool_size=1, max_overflow=1, connect_args=CONNECT_TIMEOUTS
        )
        self._name = name
        with self._engine.begin() as connection:
            connection.execute(sql("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK_ID})
            _HEARTBEAT_TABLE.create(connection, checkfirst=True)
        self.send()

    def send(self) -> None:
        """A sign of life."""
        row = insert(_HEARTBEAT_TABLE).values(id=self._name, seen=func.clock_timestamp())
        seen = {"seen": func.clock_timestamp()}
        with self._engine.begin() as connection:
            connection.execute(row.on_conflict_do_update(index_elements=["id"], set_=seen))

    def live_processes(self) -> set[str]:
        """Who gave a sign of life a short while ago; forgets those who were silent for long."""
        age = func.extract("epoch", func.clock_timestamp() - _HEARTBEAT_TABLE.c.seen)
        with self._engine.begin() as connection:
            connection.execute(delete(_HEARTBEAT_TABLE).where(age > 100 * SILENCE_SECONDS))
            return {
                row[0]
                for row in connection.execute(
                    select(_HEARTBEAT_TABLE.c.id).where(age < SILENCE_SECONDS)
                )
            }

    def leave(self) -> None:
        """Says farewell, so that the others take over at once; else they notice the silence."""
        with suppress(SQLAlchemyError), self._engine.begin() as connection:
            connection.execute(delete(_HEARTBEAT_TABLE).where(_HEARTBEAT_TABLE.c.id == self._name))
        self._engine.dispose()
