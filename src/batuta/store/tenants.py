"""Tenants: whose the keys, runs and budgets are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from batuta.store.models import TENANTS
from batuta.store.upsert import insert_statement

_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """The owner of runs, responses and money."""

    name: str
    created: float
    per_day: Decimal | None = None
    """Dollars a day of all its keys together, in UTC."""
    per_month: Decimal | None = None


def check_name(tenant: str) -> None:
    """Return for a name that a tenant may have, else raise.

    Raises:
        ValueError: it may not.
    """
    if not _NAME_PATTERN.fullmatch(tenant):
        raise ValueError(
            f"{tenant!r} cannot name a tenant: use at most 64 letters, digits and . _ @ -"
        )


def ensure_tenant(connection: Connection, tenant: str, now: float) -> None:
    """Makes the tenant if there is none."""
    new = insert_statement(connection.dialect.name, TENANTS).values(name=tenant, created=now)
    connection.execute(new.on_conflict_do_nothing())


def tenant_json(tenant: Tenant) -> dict[str, Any]:
    """A tenant for programs; money as text."""
    day, month = tenant.per_day, tenant.per_month
    return {
        "name": tenant.name,
        "per_day": None if day is None else f"{day:f}",
        "per_month": None if month is None else f"{month:f}",
    }
