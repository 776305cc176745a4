"""The drift of workers from their measured behaviour, as the API reports it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, final

from batuta.errors import StoreError
from batuta.gateway.serving.models import Catalogue, ServedModel
from batuta.store import Store
from batuta.store.drift import DriftKind, DriftState

CACHE_SECONDS = 5.0
"""Seconds for which a read is cached."""
_LOG = logging.getLogger(__name__)

WorkerDrift = Mapping[str, Mapping[DriftKind, DriftState]]
"""Drift by worker and kind."""


@final
class DriftMonitor:
    """Reads the drift that the store has counted over all replicas, and caches the result."""

    def __init__(self, catalogue: Catalogue, store: Store | None) -> None:
        self._catalogue = catalogue
        self._store = store
        self._due = 0.0
        self.latest: WorkerDrift = {}
        """The result of the latest read."""

    async def read(self) -> WorkerDrift:
        """Return the drift of each worker, read again after `CACHE_SECONDS`.

        If the store fails, return the latest result. Without a store the result is empty.
        """
        if self._store is None or time.monotonic() < self._due:
            return self.latest
        self._due = time.monotonic() + CACHE_SECONDS
        try:
            self.latest = await self._store.drift.read(self._catalogue.pool)
        except StoreError as error:
            _LOG.warning("the workers' drift cannot be read: %s", error)
        return self.latest


def drift_of(model: ServedModel, drift: WorkerDrift, *, whole: bool) -> dict[str, Any]:
    """Return the drift of a single worker's model for the API; empty if unknown or for others.

    Args:
        model: the model.
        drift: the drift of all workers.
        whole: whether to include the numbers, which also count other tenants' runs.
    """
    if not model.direct or len(model.pool) > 1:
        return {}
    states = drift.get(model.pool.workers[0].id, {})
    values = {kind.value: drift_json(state) for kind, state in states.items()}
    if not whole:
        values = {kind: {"state": state["state"]} for kind, state in values.items()}
    return {"drift": values} if values else {}


def drift_json(state: DriftState) -> dict[str, Any]:
    """Return the drift of one kind as an object of the API; unknown values are null."""
    interval = state.interval
    return {
        "state": state.side.value,
        "low": interval and interval.low,
        "high": interval and interval.high,
        "recent": state.recent,
        "values": state.count,
        "since": state.since,
    }
