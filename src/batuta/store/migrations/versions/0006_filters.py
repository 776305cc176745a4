"""Indexes for the filters of the list of runs; in PostgreSQL also for words."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.exc import DBAPIError

revision = "0006"
down_revision = "0005"

_WORDS = ("question_preview", "answer_preview")


def upgrade() -> None:
    for column in ("model", "outcome"):
        op.create_index(f"ix_runs_{column}_created_id", "runs", [column, "created", "id"])
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    op.execute("CREATE INDEX ix_runs_id_prefix ON runs (id text_pattern_ops)")
    if not _has_trigrams(connection):
        return
    for column in _WORDS:
        op.execute(
            f"CREATE INDEX ix_runs_{column}_words ON runs USING gin (lower({column}) gin_trgm_ops)"
        )


def _has_trigrams(connection: sa.Connection) -> bool:
    """Return True if the extension exists or can be created; else a search reads every row."""
    nested = connection.begin_nested()
    try:
        connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except DBAPIError:
        nested.rollback()
        return False
    nested.commit()
    return True
