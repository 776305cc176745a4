"""Columns for the worker that acted at a request, the worker before, the turn and the reason."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    for name in ("acting", "took_over_from", "turn", "reason"):
        op.add_column("runs", sa.Column(name, sa.Text()))
