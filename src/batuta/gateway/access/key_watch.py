"""Cancels the work of a key that is revoked, deleted or expired.

This also ends work that outlives its request, such as a background job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import time
from typing import final

import anyio

from batuta.errors import StoreError
from batuta.gateway.errors import APIError
from batuta.store import Store
from batuta.store.keys import ApiKey

_LOG = logging.getLogger(__name__)
WATCH_SECONDS = 5.0
"""Seconds between checks of the keys with running work."""


@final
@dataclass(slots=True, eq=False)
class KeyWork:
    """Work that runs for a key."""

    key: str
    """The key's id."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """The cancel scope around the work."""
    refusal: APIError | None = None
    """The error for an invalid key; None unless the work was cancelled because of the key."""


@final
class KeyWatch:
    """Checks the keys with work in this process, and cancels the work of invalid ones.

    Every server process does this, so a revoked key stops in all replicas that share a database.
    """

    def __init__(
        self,
        store: Store | None,
        forget: Callable[[str], None] = lambda _: None,
        *,
        seconds: float = WATCH_SECONDS,
    ) -> None:
        """Create the watch, which checks no key before `work` or `end_invalid`.

        Args:
            store: stores the keys; None: there are no keys.
            forget: called with the id of each key whose work was cancelled.
            seconds: the time between checks.
        """
        self._store = store
        self._forget = forget
        self._seconds = seconds
        self._running: set[KeyWork] = set()
        self._changed = anyio.Event()

    @contextmanager
    def watch(self, key: str) -> Generator[KeyWork]:
        """Cancel the block once the key is no longer valid; then the work's `refusal` is set."""
        work = KeyWork(key)
        self._running.add(work)
        try:
            with work.scope:
                yield work
        finally:
            self._running.discard(work)

    def look_again(self) -> None:
        """Let `work` check now, because this process has changed keys."""
        self._changed.set()

    async def work(self) -> None:
        """Check periodically until cancelled."""
        while True:
            self._changed = anyio.Event()
            await self.end_invalid()
            with anyio.move_on_after(self._seconds):
                await self._changed.wait()

    async def end_invalid(self) -> None:
        """Cancel the work of keys that are no longer valid; do nothing if the store fails."""
        checked = [work for work in self._running if work.refusal is None]
        if self._store is None or not checked:
            return
        try:
            found = await self._store.keys.find_all({work.key for work in checked})
        except StoreError as error:  # nothing is cancelled while the store fails
            _LOG.warning("keys cannot be checked now: %s", error)
            return
        for work in checked:
            try:
                check_key(found.get(work.key))
            except APIError as refusal:
                work.refusal = refusal
                work.scope.cancel()
                self._forget(work.key)


def check_key(key: ApiKey | None) -> ApiKey:
    """Return the key if it is valid now.

    Raises:
        APIError: the key does not exist, was revoked (also with the user who made it) or expired.
    """
    if key is None:
        raise invalid_key("The API key is not valid here.")
    state = key.state(time())
    if state != "active":
        raise invalid_key(f"The API key has {'been revoked' if state == 'revoked' else state}.")
    return key


def invalid_key(message: str) -> APIError:
    """Return the error for a missing or invalid key."""
    return APIError(401, "invalid_api_key", message, headers={"www-authenticate": "Bearer"})
