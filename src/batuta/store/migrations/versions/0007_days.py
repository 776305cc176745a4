"""Partitions of runs by day in PostgreSQL, and the run's time in contents, in both databases.

The time is written into every row of the contents. Partitioning copies no rows: the old table
becomes the partition of all days until today, or until its newest row if that is later, and only
its primary key is rebuilt. Rows dated after 2099 are moved to a partition of their own.
"""

import time

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_DAY = 86_400
_FIRST_DAY = 1_577_836_800  # 2020-01-01: an empty store has daily partitions from then on
_LATE_START = 4_102_444_800  # 2100-01-01
_INDEXES = {
    "runs": (
        "ix_runs_created_id",
        "ix_runs_tenant_created_id",
        "ix_runs_parent",
        "ix_runs_model_created_id",
        "ix_runs_outcome_created_id",
        "ix_runs_id_prefix",
        "ix_runs_question_preview_words",
        "ix_runs_answer_preview_words",
    ),
    "run_contents": (),
}
_KEYS = {"runs": "id", "run_contents": "run_id"}


def upgrade() -> None:
    op.add_column(
        "run_contents", sa.Column("created", sa.Float(53), nullable=False, server_default="0")
    )
    op.execute(
        "UPDATE run_contents SET created = (SELECT created FROM runs WHERE runs.id = run_id)"
    )
    if op.get_bind().dialect.name != "postgresql":
        return
    op.drop_constraint("fk_run_contents_run_id", "run_contents")
    first = _first_day()
    for table in ("runs", "run_contents"):
        _keep_by_day(table, first)


def _first_day() -> int:
    """Return the start of the first daily partition, in seconds since the epoch.

    It is after all rows dated before 2100.
    """
    latest = sa.text("SELECT max(created) FROM runs WHERE created < :late")
    newest = op.get_bind().execute(latest, {"late": _LATE_START}).scalar()
    if newest is None:
        return _FIRST_DAY
    return min((int(max(newest, time.time())) // _DAY + 1) * _DAY, _LATE_START)


def _keep_by_day(table: str, first: int) -> None:
    key = _KEYS[table]
    early, late = f"{table}_early", f"{table}_late"
    op.execute(f"ALTER TABLE {table} RENAME TO {early}")
    op.execute(f"ALTER TABLE {early} DROP CONSTRAINT pk_{table}")
    op.execute(f"ALTER TABLE {early} ADD CONSTRAINT pk_{early} PRIMARY KEY ({key}, created)")
    indexes = _rename_indexes(table)
    op.execute(
        f"CREATE TABLE {table} (LIKE {early} INCLUDING DEFAULTS,"
        f" CONSTRAINT pk_{table} PRIMARY KEY ({key}, created)) PARTITION BY RANGE (created)"
    )
    op.execute(
        f"CREATE TABLE {late} PARTITION OF {table} FOR VALUES FROM ({_LATE_START}) TO (MAXVALUE)"
    )
    op.execute(
        f"WITH moved AS (DELETE FROM {early} WHERE created >= {_LATE_START} RETURNING *)"  # noqa: S608 - ours
        f" INSERT INTO {late} SELECT * FROM moved"
    )
    op.execute(
        f"ALTER TABLE {table} ATTACH PARTITION {early} FOR VALUES FROM (MINVALUE) TO ({first})"
    )
    _create_indexes(table, indexes)


def _rename_indexes(table: str) -> dict[str, str]:
    """Rename the indexes, to free their names; return their definitions by the old name."""
    found: dict[str, str] = {}
    for name in _INDEXES[table]:
        query = sa.text("SELECT pg_get_indexdef(to_regclass(:name))")
        definition = op.get_bind().execute(query, {"name": name}).scalar()
        if definition is not None:
            found[name] = definition.partition(" USING ")[2]
            op.execute(f"ALTER INDEX {name} RENAME TO {name}_early")
    return found


def _create_indexes(table: str, definitions: dict[str, str]) -> None:
    """Create the indexes on every partition; an equal index of a partition is used as it is."""
    for name, definition in definitions.items():
        op.execute(f"CREATE INDEX {name} ON {table} USING {definition}")
