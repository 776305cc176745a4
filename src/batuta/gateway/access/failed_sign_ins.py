"""Failed sign-ins in the audit trail: a flood of them makes few records."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import ceil
from time import monotonic
from typing import final

import anyio

from batuta.errors import StoreError
from batuta.store import Store
from batuta.store.audit import AuditEntry

WINDOW_SECONDS = 60.0
"""Seconds in which an address has at most two records: its first failure and how many followed."""
MAX_ADDRESSES = 60
"""Addresses that are told apart within a window; further ones are counted together."""
OTHERS = "other addresses"


@final
class FailedSignIns:
    """Counts failed sign-ins by their address."""

    def __init__(self, store: Store | None, clock: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._clock = clock
        self._begun: dict[str, float] = {}
        """Each address's window began at this time."""
        self._more: dict[str, int] = {}
        """Failures since then, without the first."""

    async def note(self, address: str) -> None:
        """Record the address's first failure of a minute; count those after it.

        Raises:
            StoreError: it cannot be recorded.
        """
        await self.flush()
        if address not in self._begun and len(self._begun) >= MAX_ADDRESSES:
            address = OTHERS
        if address in self._begun:
            self._more[address] = self._more.get(address, 0) + 1
            return
        await self._record(address, {"times": 1})
        self._begun[address] = self._clock()

    async def flush(self) -> None:
        """Record how many followed in the windows that have ended.

        Raises:
            StoreError: it cannot be recorded; it is tried again.
        """
        ended = self._clock() - WINDOW_SECONDS
        for address in [one for one, begun in self._begun.items() if begun <= ended]:
            if more := self._more.get(address):
                await self._record(address, {"times": more, "within_s": WINDOW_SECONDS})
            self._more.pop(address, None)
            self._begun.pop(address, None)

    async def _record(self, address: str, details: dict[str, float]) -> None:
        if self._store is not None:
            await self._store.audit.append(
                AuditEntry(actor=address, action="sign_in.failed", details=details)
            )


_CUT_EVERY = 60
"""Looks between two cuts."""
_LOG = logging.getLogger(__name__)


@final
class AuditKeeper:
    """Looks after the trail of one server."""

    def __init__(
        self,
        store: Store,
        failures: FailedSignIns,
        kept_days: float | None = None,
        *,
        started: float | None = None,
    ) -> None:
        """Cut nothing yet.

        Args:
            store: whose trail it is.
            failures: sign-ins that failed and are not recorded yet.
            kept_days: how long records are kept; None: for ever.
            started: when the server started, by the clock; None: when this process did.
        """
        self._started = started
        self._store = store
        self._failures = failures
        self._days = kept_days

    async def work(self) -> None:
        """Look at once and then every minute, until cancelled; cut when the clock is believed."""
        looks, cut_at = 0, None
        while True:
            try:
                await self._failures.flush()
                if self._days is not None:
                    if cut_at is None:
                        wait = await self._store.audit.unvouched_seconds(self._started)
                        cut_at = looks + ceil(wait / WINDOW_SECONDS)
                    if looks >= cut_at:
                        cut_at = looks + _CUT_EVERY
                        await self._store.audit.cut(self._days)
            except StoreError as error:
                _LOG.warning("the audit trail cannot be kept in order now: %s", error)
            looks += 1
            await anyio.sleep(WINDOW_SECONDS)
