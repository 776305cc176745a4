"""Column for the vectors of the passages of an uploaded file's text."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("files", sa.Column("vectors", sa.LargeBinary(), nullable=True))
