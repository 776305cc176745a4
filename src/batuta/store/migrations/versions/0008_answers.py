"""The index of the answer cache: which run answered a question."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "answers",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
        sa.Column("family", sa.LargeBinary()),
        sa.Column("vector", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("tenant", "digest", name="pk_answers"),
    )
    op.create_index("ix_answers_expires", "answers", ["expires"])
    op.create_index("ix_answers_run_id", "answers", ["run_id"])
    op.create_index("ix_answers_tenant_family_expires", "answers", ["tenant", "family", "expires"])
