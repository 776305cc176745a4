"""The tables: one row of money and numbers a run, its content apart, and whose money it is.

Content may never be kept at all, while the rows that bill it stay. In PostgreSQL runs
and contents are kept by day, without the foreign key: see `partitions`.
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
    and_,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine


class Money(TypeDecorator[Decimal]):
    """An exact `Decimal`: NUMERIC where the database has one, text in SQLite."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return text in SQLite, whose NUMERIC is a float."""
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else Numeric())

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> Any:
        """Convert a value on its way to the database."""
        return str(value) if dialect.name == "sqlite" and value is not None else value

    def process_result_value(self, value: Any, dialect: Dialect) -> Decimal | None:
        """Read the number from the database."""
        return None if value is None else Decimal(value)


METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

_FIGURES = (
    "model", "outcome", "session", "labels", "input_tokens", "output_tokens", "usd",
    "unpriced_calls", "seconds", "score",
)  # fmt: skip

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
    # The session that it was part of; null: none, or from before there were sessions.
    Column("session", Text),
    # Words to be found by; see rows.py. Null: none, or from before there were any.
    Column("labels", Text),
    # What the best single worker would have cost, by estimate; see savings.py. Null: not known.
    Column("alone_usd", Money),
    # How it did beside that worker, where it was asked too, and what asking cost.
    Column("shadow", Text),
    Column("shadow_usd", Money),
    # Who acted at this request of its session, from whom they took over, which turn it belongs to,
    # and why; see rows.py. Null: not known, or from before it was kept.
    Column("acting", Text),
    Column("took_over_from", Text),
    Column("turn", Text),
    Column("reason", Text),
    # Lists and totals read nothing but these two, whatever they filter and sort by.
    Index("ix_runs_created_figures", "created", "id", *_FIGURES),
    Index("ix_runs_tenant_figures", "tenant", "created", "id", *_FIGURES),
    Index(None, "parent"),
    Index(None, "model", "created", "id"),
    Index(None, "outcome", "created", "id"),
    Index(None, "session", "created", "id"),
)

FIGURES = tuple(RUNS.c[name] for name in ("created", "id", *_FIGURES))
"""Columns of runs that filters, orders and totals know."""

CONTENTS = Table(
    "run_contents",
    METADATA,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("format", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    # The run's: in PostgreSQL both tables are kept by day, and the key is the id with it.
    Column("created", Float(53), nullable=False, server_default="0"),
)

SAME_RUN = and_(RUNS.c.id == CONTENTS.c.run_id, RUNS.c.created == CONTENTS.c.created)
"""A run and what it says."""

TENANTS = Table(
    "tenants",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("created", Float(53), nullable=False),
    # Budgets in dollars; null: none.
    Column("per_day", Money),
    Column("per_month", Money),
)

KEYS = Table(
    "keys",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.name"), nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    # The one before the last rotation, and until when it is taken too.
    Column("old_digest", LargeBinary),
    Column("old_until", Float(53)),
    Column("policy", Text, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("expires", Float(53)),
    Column("revoked", Float(53)),
    # Of somebody's own entry, who signs in by an identity provider: who it is, and what they may.
    Column("identity", Text),
    Column("role", Text),
    # Of a key that such a user has made: the user's own entry, whose limits and money count.
    Column("user", Text),
    Index(None, "tenant"),
    Index(None, "identity", unique=True),
    Index(None, "user"),
)

LEDGER = Table(
    "ledger",
    METADATA,
    # Append-only: what each run cost, a line for its conductor and one for each worker.
    Column("run_id", Text, primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("key", Text),
    Column("at", Float(53), nullable=False),
    Column("day", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("estimated_calls", BigInteger, nullable=False),
    Column("usd", Money, nullable=False),
    Column("unpriced_calls", BigInteger, nullable=False),
    # What budgets count beside `usd`: for calls without a price, cut off, or lost.
    Column("assumed_usd", Money, nullable=False),
    Index(None, "day", "tenant"),
    Index(None, "tenant", "day"),
)

SPENDING = Table(
    "spending",
    METADATA,
    # Billionths of a dollar of an account (a tenant or a key) in a period (a day or a month).
    Column("account", Text, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("spent", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
)

RESERVATIONS = Table(
    "reservations",
    METADATA,
    # What runs that are going on may still spend; a row whose process died expires.
    Column("id", Text, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("key", Text),
    Column("model", Text, nullable=False),
    Column("buckets", Text, nullable=False),
    Column("nano", BigInteger, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("owner", Text, nullable=False),
    Column("expires", Float(53), nullable=False),
    Index(None, "expires"),
    Index(None, "owner"),
)

IDEMPOTENT = Table(
    "idempotent",
    METADATA,
    # What was answered under an Idempotency-Key; without a status: it is being answered.
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("owner", Text, nullable=False),
    Column("expires", Float(53), nullable=False),
    Column("status", Integer),
    Column("headers", LargeBinary),
    Column("body", LargeBinary),
    # The run that the answer tells of.
    Column("run_id", Text),
    Index(None, "expires"),
    Index(None, "run_id"),
)

ANSWERS = Table(
    "answers",
    METADATA,
    # Which run answered a question before; digests and ids, and no words.
    Column("tenant", Text, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("expires", Float(53), nullable=False),
    # Not used: nearly the same questions are found by their digests too. A replica of the version
    # before, which writes nulls here, may still serve beside this one.
    Column("family", LargeBinary),
    Column("vector", LargeBinary),
    Index(None, "expires"),
    Index(None, "run_id"),
    Index(None, "tenant", "family", "expires"),
)

FORGOTTEN = Table(
    "forgotten",
    METADATA,
    # Ids of runs and responses, and tenants, that somebody deleted: not to be written again.
    Column("name", Text, primary_key=True),
    Column("at", Float(53), nullable=False),
)

AUDIT = Table(
    "audit",
    METADATA,
    # What administrators did; see audit.py. No words of questions or answers.
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Float(53), nullable=False),
    Column("actor", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    # JSON.
    Column("details", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
)

APPROVALS = Table(
    "approvals",
    METADATA,
    # Plans that wait for a person; see approvals.py. The plan's words go when it is decided, the
    # steps of an edited one when its run has ended.
    Column("id", Text, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("plan", Text, nullable=False),
    Column("usd", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("expires", Float(53), nullable=False),
    Column("by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("edit", Text, nullable=False, server_default=text("''")),
    Column("written", Text, nullable=False, server_default=text("''")),
    Column("steps", Text, nullable=False, server_default=text("''")),
    Column("edited_by", Text, nullable=False, server_default=text("''")),
)

REFUSALS = Table(
    "refusals",
    METADATA,
    # Requests that were refused for a key's rates or budgets; see refusals.py.
    Column("hour", Text, primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("code", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
)

WAITING_RUNS = Table(
    "waiting_runs",
    METADATA,
    # Runs that wait for tools and of which nothing else is kept; see waiting_runs.py.
    Column("tenant", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("expires", Float(53), nullable=False),
    Column("size", Integer, nullable=False),
    # Encrypted with the server's secret.
    Column("body", LargeBinary, nullable=False),
    Index(None, "expires"),
)

FILES = Table(
    "files",
    METADATA,
    # Files that callers uploaded; see files.py. A row is whole or is not there.
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("created", Float(53), nullable=False),
    # Null: never.
    Column("expires", Float(53)),
    Column("size", BigInteger, nullable=False),
    Column("content", LargeBinary, nullable=False),
    # What can be read of it, as UTF-8; null: it has no text, or a fault that says why.
    Column("text", LargeBinary),
    Column("fault", Text, nullable=False),
    # Of the text's passages, with the encoder's name before them; null: there are none.
    Column("vectors", LargeBinary),
    Index(None, "tenant", "created"),
    Index(None, "expires"),
)

WORKER_DRIFT = Table(
    "worker_drift",
    METADATA,
    # How a worker does beside what was measured of it; see store/drift.py. Numbers alone.
    Column("worker", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    # The interval of its card; empty: it is learned from the first values.
    Column("reference", Text, primary_key=True),
    Column("state", Text, nullable=False),
)

EXPLORED_ARMS = Table(
    "explored_arms",
    METADATA,
    # What judgements said of the workflows that a served system may choose among.
    Column("system", Text, primary_key=True),
    Column("cell", Text, primary_key=True),
    Column("arm", Text, primary_key=True),
    Column("score", Float(53), nullable=False),
    Column("judged", Float(53), nullable=False),
)

COUNTED_JUDGEMENTS = Table(
    "counted_judgements",
    METADATA,
    # Runs whose judgement was counted: taken back and given again, it is no new evidence.
    Column("run_id", Text, primary_key=True),
)
