"""Column for a proposed edit of a plan that waits for a person's approval."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    column = sa.Column("edit", sa.Text(), nullable=False, server_default=sa.text("''"))
    op.add_column("approvals", column)
