"""The database tables.

A run's numbers and its content are separate rows, since content may be deleted or not stored at
all while the numbers stay. In PostgreSQL runs and contents are partitioned by day and have no
foreign key; see `partitions`.
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
        """Return TEXT for SQLite, since its NUMERIC is a float."""
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else Numeric())

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> Any:
        """Convert a value for the database."""
        return str(value) if dialect.name == "sqlite" and value is not None else value

    def process_result_value(self, value: Any, dialect: Dialect) -> Decimal | None:
        """Convert a value from the database."""
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
    # The id of the run's session; null: none, or stored before sessions existed.
    Column("session", Text),
    # Labels to search by; see rows.py. Null: none, or stored before labels existed.
    Column("labels", Text),
    # Estimated cost of the best single worker; see savings.py. Null: not known.
    Column("alone_usd", Money),
    # Verdict of the comparison with that worker's answer, and the cost of the comparison.
    Column("shadow", Text),
    Column("shadow_usd", Money),
    # The worker that acted at this request of its session, the worker before, the turn, and the
    # reason; see `ActingNote` in rows.py. Null also if stored before these columns existed.
    Column("acting", Text),
    Column("took_over_from", Text),
    Column("turn", Text),
    Column("reason", Text),
    # Covering indexes, by which run_list.py reads many runs with any filter and order.
    Index("ix_runs_created_figures", "created", "id", *_FIGURES),
    Index("ix_runs_tenant_figures", "tenant", "created", "id", *_FIGURES),
    Index(None, "parent"),
    Index(None, "model", "created", "id"),
    Index(None, "outcome", "created", "id"),
    Index(None, "session", "created", "id"),
)

FIGURES = tuple(RUNS.c[name] for name in ("created", "id", *_FIGURES))
"""Columns of runs that filters, sort orders and totals use."""

CONTENTS = Table(
    "run_contents",
    METADATA,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("format", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    # As in `runs`; in PostgreSQL part of the key, since both tables are partitioned by day.
    Column("created", Float(53), nullable=False, server_default="0"),
)

SAME_RUN = and_(RUNS.c.id == CONTENTS.c.run_id, RUNS.c.created == CONTENTS.c.created)
"""The join condition of a run and its content."""

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
    # The digest before the last rotation, and until when it is still accepted.
    Column("old_digest", LargeBinary),
    Column("old_until", Float(53)),
    Column("policy", Text, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("expires", Float(53)),
    Column("revoked", Float(53)),
    # For the entry of a user who signs in: identity at the identity provider, and role.
    Column("identity", Text),
    Column("role", Text),
    # For a key that such a user created: the id of the user's entry; its limits apply too.
    Column("user", Text),
    Index(None, "tenant"),
    Index(None, "identity", unique=True),
    Index(None, "user"),
)

LEDGER = Table(
    "ledger",
    METADATA,
    # Append-only: the cost of each run, with a line for its conductor, each worker and each tool.
    # Further lines have what budgets count besides; see ledger.py and lost_runs.py.
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
    # Dollars that budgets count besides `usd`: for unpriced, cancelled or lost calls.
    Column("assumed_usd", Money, nullable=False),
    Index(None, "day", "tenant"),
    Index(None, "tenant", "day"),
)

SPENDING = Table(
    "spending",
    METADATA,
    # Billionths of a dollar by account and period (a day or a month); see `Bucket` in ledger.py.
    Column("account", Text, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("spent", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
)

RESERVATIONS = Table(
    "reservations",
    METADATA,
    # Money of unfinished runs and of leases; other processes end the rows of a dead process.
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
    # Responses by Idempotency-Key; without a status: the request is still being answered.
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("owner", Text, nullable=False),
    Column("expires", Float(53), nullable=False),
    Column("status", Integer),
    Column("headers", LargeBinary),
    Column("body", LargeBinary),
    # The run of the response.
    Column("run_id", Text),
    Index(None, "expires"),
    Index(None, "run_id"),
)

ANSWERS = Table(
    "answers",
    METADATA,
    # Index of the answer cache: digests of questions and ids of runs, without any text.
    Column("tenant", Text, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("expires", Float(53), nullable=False),
    # Unused, but kept for replicas of the previous version, which write nulls here.
    Column("family", LargeBinary),
    Column("vector", LargeBinary),
    Index(None, "expires"),
    Index(None, "run_id"),
    Index(None, "tenant", "family", "expires"),
)

FORGOTTEN = Table(
    "forgotten",
    METADATA,
    # Tombstones of erased runs, responses and tenants, and of closed sessions; see deleted.py.
    Column("name", Text, primary_key=True),
    Column("at", Float(53), nullable=False),
)

AUDIT = Table(
    "audit",
    METADATA,
    # Actions such as a new key; see audit.py. No text of questions or answers.
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
    # Plans that wait for approval; see approvals.py. `plan` and `steps` are cleared when the plan
    # is decided or closed, except that `steps` of an approved plan stay until its run has ended.
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
    # Number of requests refused by the rates or budgets of a key or tenant; see refusals.py.
    Column("hour", Text, primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("code", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
)

WAITING_RUNS = Table(
    "waiting_runs",
    METADATA,
    # Runs that wait for client tools, if their content is stored nowhere else; see waiting_runs.py.
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
    # Uploaded files; see files.py.
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
    # Extracted text, as UTF-8; null: there is none, and `fault` may say why.
    Column("text", LargeBinary),
    Column("fault", Text, nullable=False),
    # Vectors of the text's passages, after the encoder's name; null: there are none.
    Column("vectors", LargeBinary),
    Index(None, "tenant", "created"),
    Index(None, "expires"),
)

WORKER_DRIFT = Table(
    "worker_drift",
    METADATA,
    # Evidence that a worker has drifted from its measured interval; see drift.py.
    Column("worker", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    # The measured interval; empty: it is learned from the first values.
    Column("reference", Text, primary_key=True),
    Column("state", Text, nullable=False),
)

EXPLORED_ARMS = Table(
    "explored_arms",
    METADATA,
    # Scores of the arms among which a served system explores: workflows, or single models.
    Column("system", Text, primary_key=True),
    Column("cell", Text, primary_key=True),
    Column("arm", Text, primary_key=True),
    Column("score", Float(53), nullable=False),
    Column("judged", Float(53), nullable=False),
)

COUNTED_JUDGEMENTS = Table(
    "counted_judgements",
    METADATA,
    # Runs with a judgement that was counted; a later judgement is not new evidence.
    Column("run_id", Text, primary_key=True),
)
