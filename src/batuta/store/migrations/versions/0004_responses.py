"""The table of the responses that /v1/responses stores; `previous` is the id of the one before."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text()),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("input", sa.LargeBinary(), nullable=False),
        sa.Column("events", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id", "tenant", name="pk_responses"),
    )
    op.create_index("ix_responses_tenant_created", "responses", ["tenant", "created"])
