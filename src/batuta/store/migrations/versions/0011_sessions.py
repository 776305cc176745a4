"""Column for the session that a run belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("runs", sa.Column("session", sa.Text()))
    op.create_index(op.f("ix_runs_session_created_id"), "runs", ["session", "created", "id"])
