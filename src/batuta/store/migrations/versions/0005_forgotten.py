"""Table of tombstones of deleted rows, and a column and indexes by which deletion finds rows."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "forgotten",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_forgotten"),
    )
    op.create_index("ix_runs_parent", "runs", ["parent"])
    op.create_index("ix_responses_tenant_previous", "responses", ["tenant", "previous"])
    op.add_column("idempotent", sa.Column("run_id", sa.Text()))
    op.create_index("ix_idempotent_run_id", "idempotent", ["run_id"])
