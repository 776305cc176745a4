"""Table of runs paused on client tools, shared by replicas."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "waiting_runs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "run_id", name=op.f("pk_waiting_runs")),
    )
    op.create_index(op.f("ix_waiting_runs_expires"), "waiting_runs", ["expires"])
