"""Tables of workers' drift, of the scores of explored arms, and of runs with a counted score."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "worker_drift",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "worker", "model", "kind", "reference", name=op.f("pk_worker_drift")
        ),
    )
    op.create_table(
        "explored_arms",
        sa.Column("system", sa.Text(), nullable=False),
        sa.Column("cell", sa.Text(), nullable=False),
        sa.Column("arm", sa.Text(), nullable=False),
        sa.Column("score", sa.Float(53), nullable=False),
        sa.Column("judged", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("system", "cell", "arm", name=op.f("pk_explored_arms")),
    )
    op.create_table(
        "counted_judgements",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_counted_judgements")),
    )
