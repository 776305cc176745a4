"""Tenants, keys, the ledger, budgets and idempotency."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0001"

_MONEY = sa.Text().with_variant(sa.Numeric(), "postgresql")


_DAYS = {
    "sqlite": "date(created, 'unixepoch')",
    "postgresql": "to_char(to_timestamp(created) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
}


def upgrade() -> None:
    _create_tenants_and_keys()
    _create_ledger()
    _copy_old_runs()
    op.create_table(
        "idempotent",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("headers", sa.LargeBinary()),
        sa.Column("body", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_idempotent"),
    )
    op.create_index("ix_idempotent_expires", "idempotent", ["expires"])


def _create_tenants_and_keys() -> None:
    op.create_table(
        "tenants",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("per_day", _MONEY),
        sa.Column("per_month", _MONEY),
        sa.PrimaryKeyConstraint("name", name="pk_tenants"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("old_digest", sa.LargeBinary()),
        sa.Column("old_until", sa.Float(53)),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("expires", sa.Float(53)),
        sa.Column("revoked", sa.Float(53)),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_keys_tenant"),
    )
    op.create_index("ix_keys_tenant", "keys", ["tenant"])


def _create_ledger() -> None:
    op.create_table(
        "ledger",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("estimated_calls", sa.BigInteger(), nullable=False),
        sa.Column("usd", _MONEY, nullable=False),
        sa.Column("unpriced_calls", sa.BigInteger(), nullable=False),
        sa.Column("assumed_usd", _MONEY, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "line", name="pk_ledger"),
    )
    op.create_index("ix_ledger_day_tenant", "ledger", ["day", "tenant"])
    op.create_index("ix_ledger_tenant_day", "ledger", ["tenant", "day"])
    op.create_table(
        "spending",
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", "period", name="pk_spending"),
    )
    op.create_table(
        "reservations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("buckets", sa.Text(), nullable=False),
        sa.Column("nano", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reservations"),
    )
    op.create_index("ix_reservations_expires", "reservations", ["expires"])
    op.create_index("ix_reservations_owner", "reservations", ["owner"])


def _copy_old_runs() -> None:
    """Insert one ledger line, with all calls, for each run stored before the ledger existed."""
    dialect = op.get_bind().dialect.name
    zero = "'0'" if dialect == "sqlite" else "0"
    op.execute(
        "INSERT INTO ledger (run_id, line, tenant, at, day, model, kind, name, calls,"  # noqa: S608 - ours
        " input_tokens, output_tokens, estimated_calls, usd, unpriced_calls, assumed_usd)"
        f" SELECT id, 0, tenant, created, {_DAYS[dialect]}, model, 'run', conductor, calls,"
        f" input_tokens, output_tokens, 0, usd, unpriced_calls, {zero} FROM runs"
    )
