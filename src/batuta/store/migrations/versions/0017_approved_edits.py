"""Columns for the steps of accepted edits, so that they survive a restart of the server."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

NAMES = ("written", "steps", "edited_by")


def upgrade() -> None:
    for name in NAMES:
        column = sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))
        op.add_column("approvals", column)
