"""Keeps the audit trail in order while the server runs: counts are written, old records are cut."""

from __future__ import annotations

import logging
from typing import final

import anyio

from batuta.errors import StoreError
from batuta.gateway.access.failed_sign_ins import WINDOW_SECONDS, FailedSignIns
from batuta.store import Store

_CUT_EVERY = 60
"""Looks between two cuts."""
_LOG = logging.getLogger(__name__)


@final
class AuditKeeper:
    """Looks after the trail of one server."""

    def __init__(
        self, store: Store, failures: FailedSignIns, kept_days: float | None = None
    ) -> None:
        """Does nothing yet.

        Args:
            store: has the trail.
            failures: counts failed sign-ins.
            kept_days: how long records are kept; None: for ever.
        """
        self._store = store
        self._failures = failures
        self._days = kept_days

    async def work(self) -> None:
        """Looks at once and then every minute, until cancelled."""
        looks = 0
        while True:
            try:
                await self._failures.flush()
                if self._days is not None and looks % _CUT_EVERY == 0:
                    await self._store.audit.cut(self._days)
            except StoreError as error:
                _LOG.warning("the audit trail cannot be kept in order now: %s", error)
            looks += 1
            await anyio.sleep(WINDOW_SECONDS)
