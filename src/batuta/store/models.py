"""The tables: one row of money and numbers a run, and its content apart.

Content can be redacted, or never kept at all, while the row that bills it stays.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine


class Money(TypeDecorator[Decimal]):
    """An exact `Decimal`: NUMERIC where the database has one, text in SQLite."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Text in SQLite, whose NUMERIC is a float."""
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else Numeric())

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> Any:
        """Towards the database."""
        return str(value) if dialect.name == "sqlite" and value is not None else value

    def process_result_value(self, value: Any, dialect: Dialect) -> Decimal | None:
        """From the database."""
        return None if value is None else Decimal(value)


METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

RUNS = Table(
    "runs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False, server_default="local"),
    Column("parent", Text),
    # Seconds since the epoch; a float, as in the run itself.
    Column("created", Float(53), nullable=False),
    Column("model", Text, nullable=False),
    Column("conductor", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("error_code", Text),
    Column("question_preview", Text, nullable=False),
    Column("answer_preview", Text),
    Column("steps", Integer, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("usd", Money, nullable=False),
    Column("unpriced_calls", BigInteger, nullable=False),
    Column("seconds", Float(53), nullable=False),
    Column("score", Float(53)),
    Column("score_comment", Text),
    Index(None, "created", "id"),
    Index(None, "tenant", "created", "id"),
)

CONTENTS = Table(
    "run_contents",
    METADATA,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("format", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
