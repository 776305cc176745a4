"""Names of what somebody deleted, for whoever is about to write it after all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import time

from sqlalchemy import Connection, delete, select

from batuta.store.database import insert_statement
from batuta.store.models import FORGOTTEN

REMEMBERED = 7 * 86_400.0
"""Seconds for which a deletion is remembered: longer than anything goes on."""
TENANT = "tenant:"
"""The beginning of a deleted tenant's name."""
_PAGE = 500
"""Names of one statement at most."""


def forgotten_among(
    connection: Connection, named: Iterable[str], owned: Iterable[tuple[str, float]]
) -> set[str | tuple[str, float]]:
    """Return which of these must not be written.

    Args:
        connection: within whose transaction it will be written or not.
        named: ids.
        owned: tenants and when, in seconds since the epoch, what they own began.
    """
    ids, tenants = set(named), set(owned)
    wanted = [*ids, *{TENANT + tenant for tenant, _ in tenants}]
    found: dict[str, float] = {}
    for page in in_pages(wanted):
        query = select(FORGOTTEN.c.name, FORGOTTEN.c.at).where(
            FORGOTTEN.c.name.in_(_pad_names(page))
        )
        found |= {row[0]: row[1] for row in connection.execute(query)}
    late = {one for one in tenants if found.get(TENANT + one[0], float("-inf")) >= one[1]}
    return {*(ids & found.keys()), *late}


def remember_deleted(connection: Connection, names: Sequence[str]) -> None:
    """Note that these were deleted now, within the caller's transaction."""
    now = time()
    connection.execute(delete(FORGOTTEN).where(FORGOTTEN.c.at < now - REMEMBERED))
    new = insert_statement(connection.dialect.name, FORGOTTEN)
    new = new.on_conflict_do_update(index_elements=["name"], set_={"at": new.excluded.at})
    for page in in_pages(names):
        connection.execute(new, [{"name": name, "at": now} for name in page])


def in_pages(names: Sequence[str]) -> Iterable[Sequence[str]]:
    """Return the names, as many at a time as one statement takes."""
    return (names[start : start + _PAGE] for start in range(0, len(names), _PAGE))


def _pad_names(page: Sequence[str]) -> Sequence[str]:
    """Return the names, some repeated: each number of them would be another statement."""
    room = 1 << (len(page) - 1).bit_length()
    return [*page, *[page[0]] * (room - len(page))]
