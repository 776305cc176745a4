"""Records of failed sign-ins in the audit trail, and the deletion of the trail's old records.

Many failed sign-ins from one address make few records.
"""

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
"""Length of an address's window, which makes at most two records: its first failure, then a count
of the others."""
MAX_ADDRESSES = 60
"""Maximum number of addresses counted separately within a window; others are counted together."""
OTHERS = "other addresses"


@final
class FailedSignIns:
    """Counts failed sign-ins by address, and records them if there is a store.

    The counts of windows that have not ended are lost with the process.
    """

    def __init__(self, store: Store | None, clock: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._clock = clock
        self._begun: dict[str, float] = {}
        """The start of each address's window."""
        self._more: dict[str, int] = {}
        """Number of failures in each address's window after the first."""

    async def note(self, address: str) -> None:
        """Record the address's first failure of a window; count later ones.

        The counts of windows that have ended are recorded first, as by `flush`.

        Raises:
            StoreError: an entry cannot be written; the failure is then not counted.
        """
        await self.flush()
        if address not in self._begun and len(self._begun) >= MAX_ADDRESSES:
            address = OTHERS
        if address in self._begun:
            self._more[address] = self._more.get(address, 0) + 1
            return
        self._begun[address] = self._clock()  # first, so that concurrent failures are only counted
        try:
            await self._record(address, {"times": 1})
        except BaseException:
            self._begun.pop(address, None)
            raise

    async def flush(self) -> None:
        """Record the counts of the windows that have ended.

        Raises:
            StoreError: an entry cannot be written; the next call tries again.
        """
        ended = self._clock() - WINDOW_SECONDS
        for address, begun in tuple(self._begun.items()):
            if begun > ended or self._begun.get(address) != begun:  # or another call has ended it
                continue
            more = self._more.pop(address, 0)
            del self._begun[address]
            try:
                if more:
                    await self._record(address, {"times": more, "within_s": WINDOW_SECONDS})
            except BaseException:
                self._begun.setdefault(address, begun)
                self._more[address] = self._more.get(address, 0) + more
                raise

    async def _record(self, address: str, details: dict[str, float]) -> None:
        if self._store is not None:
            await self._store.audit.append(
                AuditEntry(actor=address, action="sign_in.failed", details=details)
            )


_PURGE_EVERY = 60
"""Number of checks between purges; there is a check every `WINDOW_SECONDS`."""
_LOG = logging.getLogger(__name__)


@final
class AuditKeeper:
    """Maintains the audit trail of one server: writes pending counts and purges old records."""

    def __init__(
        self,
        store: Store,
        failures: FailedSignIns,
        kept_days: float | None,
        *,
        started: float | None = None,
    ) -> None:
        """Create the keeper, which does nothing before `work`.

        Args:
            store: the store with the audit trail.
            failures: the failed sign-ins, some of which are not yet recorded.
            kept_days: days for which records are kept; None: they are not deleted.
            started: the server's start, in seconds since the epoch; None: that of this process.
        """
        self._started = started
        self._store = store
        self._failures = failures
        self._days = kept_days

    async def work(self) -> None:
        """Write pending counts every minute, the first time at once, until cancelled.

        Unless `kept_days` is None, old records are purged hourly, after the wait that
        `AuditTrail.unvouched_seconds` returns. Failures of the store are logged.
        """
        checks, purge_at = 0, None
        while True:
            try:
                await self._failures.flush()
                if self._days is not None:
                    if purge_at is None:
                        wait = await self._store.audit.unvouched_seconds(self._started)
                        purge_at = checks + ceil(wait / WINDOW_SECONDS)
                    if checks >= purge_at:
                        purge_at = checks + _PURGE_EVERY
                        await self._store.audit.cut(self._days)
            except StoreError as error:
                _LOG.warning("the audit trail cannot be written or purged now: %s", error)
            checks += 1
            await anyio.sleep(WINDOW_SECONDS)
