"""Ends what runs for a key once the key has ended: a run may go on for long after its request."""

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
"""Seconds between two looks at the keys for which something runs."""


@final
@dataclass(slots=True, eq=False)
class KeyWork:
    """Something that runs for a key."""

    key: str
    """The key's id."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Around the work."""
    refusal: APIError | None = None
    """Why it was ended: its key is no longer valid."""


@final
class KeyWatch:
    """Looks whether the keys are still valid for which something runs here.

    Every process looks for itself, so a key ends in all replicas of a database.
    """

    def __init__(
        self,
        store: Store | None,
        forget: Callable[[str], None] = lambda _: None,
        *,
        seconds: float = WATCH_SECONDS,
    ) -> None:
        """Look at nothing before `work`.

        Args:
            store: where keys are kept; None: there are none.
            forget: is told the id of each key whose work was ended.
            seconds: between two looks.
        """
        self._store = store
        self._forget = forget
        self._seconds = seconds
        self._going_on: set[KeyWork] = set()
        self._changed = anyio.Event()

    @contextmanager
    def watch(self, key: str) -> Generator[KeyWork]:
        """End the block once the key is no longer valid; then what follows it says so."""
        work = KeyWork(key)
        self._going_on.add(work)
        try:
            with work.scope:
                yield work
        finally:
            self._going_on.discard(work)

    def look_again(self) -> None:
        """Look at once, as keys were changed here."""
        self._changed.set()

    async def work(self) -> None:
        """Look from time to time, until cancelled."""
        while True:
            self._changed = anyio.Event()
            await self.end_invalid()
            with anyio.move_on_after(self._seconds):
                await self._changed.wait()

    async def end_invalid(self) -> None:
        """End what runs for keys that are no longer valid."""
        looked_at = [work for work in self._going_on if work.refusal is None]
        if self._store is None or not looked_at:
            return
        try:
            found = await self._store.keys.find_all({work.key for work in looked_at})
        except StoreError as error:  # nothing is ended for want of an answer
            _LOG.warning("keys cannot be looked at now: %s", error)
            return
        for work in looked_at:
            try:
                check_key(found.get(work.key))
            except APIError as refusal:
                work.refusal = refusal
                work.scope.cancel()
                self._forget(work.key)


def check_key(key: ApiKey | None) -> ApiKey:
    """Return the key if it is valid now.

    Raises:
        APIError: there is none, or it is not valid any more.
    """
    if key is None:
        raise invalid_key("The API key is not valid here.")
    state = key.state(time())
    if state != "active":
        raise invalid_key(f"The API key has {'been revoked' if state == 'revoked' else state}.")
    return key


def invalid_key(message: str) -> APIError:
    """Return the error for a key that nobody here has."""
    return APIError(401, "invalid_api_key", message, headers={"www-authenticate": "Bearer"})
