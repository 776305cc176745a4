"""A key's limit of runs at the same time, as its background jobs meet it."""

from __future__ import annotations

import logging
from typing import final

from batuta.errors import StoreError
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.access.concurrency import ConcurrencyCounter
from batuta.gateway.errors import APIError
from batuta.jobs import JobOwner

_LOG = logging.getLogger(__name__)


@final
class KeyLimitGate:
    """Counts a key's jobs with its requests, by the limit that the key has at that moment."""

    def __init__(self, authenticator: Authenticator, counter: ConcurrencyCounter) -> None:
        """Look nothing up yet.

        Args:
            authenticator: knows what a key may do.
            counter: counts what each key runs, requests and jobs together.
        """
        self._authenticator = authenticator
        self._counter = counter

    async def enter(self, owner: JobOwner, token: str) -> bool:
        """Count one more job of the key, unless it runs as much as it may."""
        if owner.key is None:
            return True
        try:
            caller = await self._authenticator.restore_caller(owner.tenant, owner.key)
            most = caller.permissions.concurrency
        except APIError:
            most = None  # the key has ended, which the job's own answer says
        except StoreError as error:
            _LOG.warning("a job waits, for its key's limit cannot be read: %s", error)
            return False
        return await self._counter.enter(owner.key, token, most)

    async def leave(self, owner: JobOwner, token: str) -> None:
        """Count the job no more."""
        if owner.key is not None:
            await self._counter.leave(owner.key, token)
