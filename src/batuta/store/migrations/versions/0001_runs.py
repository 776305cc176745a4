"""Runs and their contents."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MONEY = sa.Text().with_variant(sa.Numeric(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False, server_default="local"),
        sa.Column("parent", sa.Text()),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("conductor", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error_code", sa.Text()),
        sa.Column("question_preview", sa.Text(), nullable=False),
        sa.Column("answer_preview", sa.Text()),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("usd", _MONEY, nullable=False),
        sa.Column("unpriced_calls", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float(53), nullable=False),
        sa.Column("score", sa.Float(53)),
        sa.Column("score_comment", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_created_id", "runs", ["created", "id"])
    op.create_index("ix_runs_tenant_created_id", "runs", ["tenant", "created", "id"])
    op.create_table(
        "run_contents",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("format", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_contents"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_run_contents_run_id", ondelete="CASCADE"
        ),
    )
