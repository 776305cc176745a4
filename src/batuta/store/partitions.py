"""PostgreSQL partitions by day (UTC), so that old runs are dropped by whole days.

`runs` and `run_contents` have a partition for every day with a run, created when the day's first
run is written. `_early` holds rows older than the first day, `_late` rows dated after 2099. SQLite
has no partitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from math import floor

from sqlalchemy import Connection, MetaData, Table, text

from batuta.store.database import AdvisoryLock, is_partitioned
from batuta.store.hours import DAY_SECONDS
from batuta.store.models import CONTENTS, RUNS

LATE_START = 4_102_444_800
"""2100-01-01 in seconds since the epoch; later rows are not partitioned by day."""
_PATIENCE_MS = 400
"""Milliseconds that dropping waits for a table lock, behind which other statements queue. It is
below PostgreSQL's deadlock timeout, after which the other transaction might be aborted."""
_PARTITIONED = (RUNS, CONTENTS)
_EARLY_METADATA = MetaData()
_EARLY = tuple(
    table.to_metadata(_EARLY_METADATA, name=f"{table.name}_early") for table in _PARTITIONED
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UPPER_BOUND = re.compile(r"TO \('([^']+)'\)")
_DAY_NAME = re.compile(rf"{RUNS.name}_(\d{{4}})(\d\d)(\d\d)")


def unique_columns(dialect: str, table: Table) -> tuple[str, ...]:
    """Return the columns of the table's unique key, for `ON CONFLICT`."""
    keys = tuple(column.name for column in table.primary_key.columns)
    by_day = dialect == "postgresql" and table in _PARTITIONED
    return (*keys, "created") if by_day else keys


def prunable_tables(connection: Connection) -> tuple[Table, Table]:
    """Return the tables of runs and contents from which old rows are deleted individually."""
    return (_EARLY[0], _EARLY[1]) if is_partitioned(connection) else (RUNS, CONTENTS)


def create_partitions(connection: Connection, times: Iterable[float]) -> None:
    """Create the missing partitions of the days of these times; the database is PostgreSQL.

    Readers and writers of other days are not blocked.

    Args:
        connection: the transaction that will write the rows.
        times: seconds since the epoch.
    """
    days = {floor(at / DAY_SECONDS) for at in times if 0 <= at < LATE_START}
    if not (missing := _missing_days(connection, days)):
        return
    AdvisoryLock.PARTITIONS.take(connection)
    for day in _missing_days(connection, missing):
        for table in _PARTITIONED:
            _create_partition(connection, table.name, day)


def drop_old_days(connection: Connection, limit: float) -> int:
    """Drop the runs of the oldest day, if that day ended before `limit`.

    Args:
        connection: a separate transaction.
        limit: seconds since the epoch.

    Returns:
        The number of runs of that day, 0 if another process has dropped it; -1: no day is that old,
        or the database is SQLite.

    Raises:
        DBAPIError: the tables are locked by other transactions; try again.
    """
    if not is_partitioned(connection):
        return -1
    connection.execute(text(f"SET LOCAL lock_timeout = '{_PATIENCE_MS}ms'"))
    days = [day for day in _kept_days(connection) if (day + 1) * DAY_SECONDS <= limit]
    if not days:
        return -1
    AdvisoryLock.PARTITIONS.take(connection)
    runs = _partition_name(RUNS.name, days[0])
    if not _existing_names(connection, [runs]):  # another process was first
        return 0
    # Locked before counting, so that no run is added. Without ONLY all partitions would be locked.
    connection.execute(text(f"LOCK TABLE ONLY {RUNS.name}, ONLY {CONTENTS.name}"))
    count = connection.execute(text(f"SELECT count(*) FROM {runs}")).scalar_one()  # noqa: S608 - ours
    for table in reversed(_PARTITIONED):
        connection.execute(text(f"DROP TABLE {_partition_name(table.name, days[0])}"))
    return count


def _create_partition(connection: Connection, parent: str, day: int) -> None:
    """Create a table and attach it; unlike `PARTITION OF`, that blocks no other transaction."""
    name = _partition_name(parent, day)
    connection.execute(text(f"CREATE TABLE {name} (LIKE {parent} INCLUDING ALL)"))
    connection.execute(
        text(
            f"ALTER TABLE {parent} ATTACH PARTITION {name}"
            f" FOR VALUES FROM ({day * DAY_SECONDS}) TO ({(day + 1) * DAY_SECONDS})"
        )
    )


def _missing_days(connection: Connection, days: set[int]) -> set[int]:
    """Return the days that need a partition but have none; earlier days are in `_early`."""
    if not days:
        return set()
    existing = _existing_names(connection, [_partition_name(RUNS.name, day) for day in days])
    missing = {day for day in days if _partition_name(RUNS.name, day) not in existing}
    if not missing:
        return set()
    query = text("SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = to_regclass(:n)")
    partitioned = connection.execute(query, {"n": _EARLY[0].name}).scalar_one()
    bound = _UPPER_BOUND.search(partitioned)
    first = float(bound[1]) if bound else 0.0
    return {day for day in missing if day * DAY_SECONDS >= first}


def _existing_names(connection: Connection, names: Sequence[str]) -> set[str]:
    query = text(
        "SELECT one.name FROM unnest(CAST(:names AS text[])) AS one(name)"
        " WHERE to_regclass(one.name) IS NOT NULL"
    )
    return {row[0] for row in connection.execute(query, {"names": list(names)})}


def _kept_days(connection: Connection) -> list[int]:
    """Return the days with a partition, as days since the epoch, oldest first."""
    query = text(
        "SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = to_regclass(:parent)"
    )
    names = (row[0] for row in connection.execute(query, {"parent": RUNS.name}))
    matches = [match for name in names if (match := _DAY_NAME.fullmatch(name))]
    dates = (datetime(*(int(one) for one in match.groups()), tzinfo=UTC) for match in matches)  # type: ignore[misc]
    return sorted((date - _EPOCH).days for date in dates)


def _partition_name(parent: str, day: int) -> str:
    return f"{parent}_{_EPOCH + timedelta(days=day):%Y%m%d}"
