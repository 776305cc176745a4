"""Savings against the best single worker, per session and in total.

That worker's cost is an estimate, made when a run ends; runs without an estimate are left out of
both sums. Only the newest runs are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, Select, case, cast, func, select, update

from batuta.core.formatting import format_percent, format_usd
from batuta.store.codec import sql_text
from batuta.store.database import Database
from batuta.store.models import RUNS
from batuta.store.run_list import read_dollars

SAVINGS_WINDOW = 200_000
"""Maximum number of runs that are read, the newest first."""
_NANO = 1_000_000_000


class ShadowVerdict(StrEnum):
    """A judge's comparison of an answer with that of the best single worker."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    UNJUDGED = "unjudged"
    """The worker or the judge did not answer, or the judge gave no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The runs of one session, or all runs, compared with the best single worker."""

    session: str | None
    """None: all runs, with or without a session."""
    tenant: str | None
    """None: all tenants."""
    latest: float
    """Start of the newest run, in seconds since the epoch; 0 if there is no run."""
    runs: int
    """Number of runs with an estimate."""
    usd: Decimal
    """Dollars that the runs with an estimate cost."""
    alone_usd: Decimal
    """Estimated dollars that the best single worker would have cost for these runs."""
    shadows: dict[ShadowVerdict, int]
    """Number of compared answers, by verdict."""
    shadow_usd: Decimal
    """Dollars of the comparisons."""

    @property
    def saved_usd(self) -> Decimal:
        """Estimated dollars saved; negative if conducting cost more."""
        return self.alone_usd - self.usd

    @property
    def share(self) -> float | None:
        """Saved share of the best single worker's cost; None: that cost is 0."""
        return float(self.saved_usd / self.alone_usd) if self.alone_usd else None

    @property
    def sentence(self) -> str:
        """The saving as a phrase."""
        if not self.runs:
            return "nothing to compare yet"
        share = "" if self.share is None else f" ({format_percent(abs(self.share))})"
        word = "less" if self.saved_usd >= 0 else "more"
        usd = format_usd(abs(self.saved_usd))
        return f"about {usd}{share} {word} than the best single worker alone, by estimate"

    @property
    def verdicts(self) -> str:
        """The verdicts as a phrase; empty: no answer was compared."""
        if not sum(self.shadows.values()):
            return ""
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.shadows.items() if count)
        return f"beside that worker's answers: {counts}, for {format_usd(self.shadow_usd)}"


async def list_savings(
    database: Database,
    limit: int,
    *,
    tenant: str | None = None,
    session: str | None = None,
    since: float | None = None,
) -> list[Saving]:
    """Return the savings of the most recently active sessions, the latest first.

    Only the newest `SAVINGS_WINDOW` runs that meet the conditions are read.

    Args:
        database: the store's database.
        limit: maximum number of sessions.
        tenant: only that tenant's sessions; None: those of all tenants.
        session: only that session; None: all.
        since: only runs that started then or later, in seconds since the epoch; None: all.
    """

    def read(connection: Connection) -> list[Saving]:
        rows = _select_newest(tenant, session, since).subquery()
        groups = (rows.c.session, rows.c.tenant)
        sums = _sum_columns(rows.c, connection.dialect.name)
        query = select(*groups, *sums).where(rows.c.session.is_not(None)).group_by(*groups)
        query = query.order_by(func.max(rows.c.created).desc()).limit(limit)
        groups = connection.execute(query).mappings()
        return [_read_saving(row, connection.dialect.name) for row in groups]

    return await database.run_read(read)


async def sum_savings(
    database: Database, *, tenant: str | None = None, since: float | None = None
) -> Saving:
    """Return the savings of the newest `SAVINGS_WINDOW` runs together; see `list_savings`."""

    def read(connection: Connection) -> Saving:
        rows = _select_newest(tenant, None, since).subquery()
        sums = select(*_sum_columns(rows.c, connection.dialect.name))
        sums_row = connection.execute(sums).mappings().one()
        return _read_saving(
            {"session": None, "tenant": tenant, **sums_row}, connection.dialect.name
        )

    return await database.run_read(read)


async def note_shadow(
    database: Database, run_id: str, verdict: ShadowVerdict, usd: Decimal
) -> None:
    """Store the verdict on a run's comparison with the best single worker, and its cost.

    A run that is not stored is ignored.
    """
    values = {"shadow": verdict.value, "shadow_usd": usd}
    changed = update(RUNS).where(RUNS.c.id == sql_text(run_id)).values(values)
    await database.execute(changed)


def saving_json(saving: Saving) -> dict[str, Any]:
    """Return the saving as JSON values, with money as strings."""
    return {
        "session": saving.session,
        "latest": saving.latest,
        "runs": saving.runs,
        "cost_usd": f"{saving.usd:f}",
        "best_single_usd_estimate": f"{saving.alone_usd:f}",
        "saved_usd_estimate": f"{saving.saved_usd:f}",
        "saved_share_estimate": saving.share,
        "shadows": {verdict.value: count for verdict, count in saving.shadows.items()},
        "shadow_usd": f"{saving.shadow_usd:f}",
    }


def _select_newest(tenant: str | None, session: str | None, since: float | None) -> Select[Any]:
    names = ("session", "tenant", "created", "usd", "alone_usd", "shadow", "shadow_usd")
    query = select(*(RUNS.c[name] for name in names))
    if tenant is not None:
        query = query.where(RUNS.c.tenant == sql_text(tenant))
    if session is not None:
        query = query.where(RUNS.c.session == sql_text(session))
    if since is not None:
        query = query.where(RUNS.c.created >= since)
    return query.order_by(RUNS.c.created.desc()).limit(SAVINGS_WINDOW)


def _sum_columns(rows: Any, dialect: str) -> Sequence[ColumnElement[Any]]:
    """Return the sums; dollars are summed as decimals, in SQLite as rounded integer billionths."""

    def dollars(column: ColumnElement[Any]) -> ColumnElement[Any]:
        exact = func.round(cast(column, Float) * float(_NANO)) if dialect == "sqlite" else column
        return func.sum(exact)

    known = rows.alone_usd.is_not(None)
    verdicts = [
        func.count().filter(rows.shadow == verdict.value).label(f"shadow_{verdict.value}")
        for verdict in ShadowVerdict
    ]
    return (
        func.max(rows.created).label("latest"),
        func.count(rows.alone_usd).label("runs"),
        dollars(case((known, rows.usd))).label("usd"),
        dollars(rows.alone_usd).label("alone_usd"),
        dollars(rows.shadow_usd).label("shadow_usd"),
        *verdicts,
    )


def _read_saving(row: Any, dialect: str) -> Saving:
    return Saving(
        session=row["session"],
        tenant=row["tenant"],
        latest=row["latest"] or 0.0,
        runs=row["runs"],
        usd=read_dollars(row["usd"], dialect),
        alone_usd=read_dollars(row["alone_usd"], dialect),
        shadows={verdict: row[f"shadow_{verdict.value}"] for verdict in ShadowVerdict},
        shadow_usd=read_dollars(row["shadow_usd"], dialect),
    )
