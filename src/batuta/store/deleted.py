"""Tombstones: names of erased runs, responses and tenants, and of closed browser sessions.

A run that is still in progress when it is erased ends later, perhaps in another process; its
writer looks for the tombstone first. The tombstone of a tenant concerns only what began before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import time

from sqlalchemy import Connection, delete, select

from batuta.store.database import insert_statement
from batuta.store.ledger import pad_ids
from batuta.store.models import FORGOTTEN

TOMBSTONE_SECONDS = 7 * 86_400.0
"""Seconds for which a tombstone is kept: as long as a plan may wait for approval."""
TENANT_PREFIX = "tenant:"
"""Prefix of a tenant's name among the tombstones."""
_PAGE = 500
"""Maximum names in one statement."""


def forgotten_among(
    connection: Connection, named: Iterable[str], owned: Iterable[tuple[str, float]]
) -> set[str | tuple[str, float]]:
    """Return the items of `named` and `owned` that were deleted and must not be written.

    Args:
        connection: the transaction that is about to write.
        named: ids of runs and responses, or names of browser sessions.
        owned: for each item to write, its tenant and the time it began, in seconds since the epoch;
            deleted if the tenant was deleted at that time or later.
    """
    ids, owners = set(named), set(owned)
    names = [*ids, *{TENANT_PREFIX + tenant for tenant, _ in owners}]
    deleted: dict[str, float] = {}
    for page in in_pages(names):
        of_page = FORGOTTEN.c.name.in_(pad_ids(tuple(page)))
        query = select(FORGOTTEN.c.name, FORGOTTEN.c.at).where(of_page)
        deleted |= {row[0]: row[1] for row in connection.execute(query)}
    late = {
        owner
        for owner in owners
        if deleted.get(TENANT_PREFIX + owner[0], float("-inf")) >= owner[1]
    }
    return {*(ids & deleted.keys()), *late}


def remember_deleted(connection: Connection, names: Sequence[str]) -> None:
    """Write tombstones of these names, and delete old ones, in the caller's transaction."""
    now = time()
    connection.execute(delete(FORGOTTEN).where(FORGOTTEN.c.at < now - TOMBSTONE_SECONDS))
    new = insert_statement(connection.dialect.name, FORGOTTEN)
    new = new.on_conflict_do_update(index_elements=["name"], set_={"at": new.excluded.at})
    for page in in_pages(names):
        connection.execute(new, [{"name": name, "at": now} for name in page])


def in_pages(names: Sequence[str]) -> Iterable[Sequence[str]]:
    """Return the names in batches that fit in one statement."""
    return (names[start : start + _PAGE] for start in range(0, len(names), _PAGE))
