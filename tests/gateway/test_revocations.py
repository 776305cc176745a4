"""When a key that was revoked stops to be believed, in this process and in others."""

from __future__ import annotations

from time import monotonic

import anyio
import pytest

from batuta.gateway.access.caller import CACHE_SECONDS, Authenticator, CallerRole
from batuta.gateway.errors import APIError
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions

pytestmark = pytest.mark.anyio
HASHER = KeyHasher(b"x" * 32)


class SlowStore:
    """A store in which a key that was read arrives only when it may."""

    def __init__(self, store):
        self._store, self.keys = store, self
        self.database = store.database
        self.was_read, self.may_arrive = anyio.Event(), anyio.Event()

    async def has_keys(self):
        return True

    async def find(self, name):
        found = await self._store.keys.find(name)
        self.was_read.set()
        await self.may_arrive.wait()
        return found


async def new_key(store):
    return await store.keys.create(HASHER, "acme", "a key", KeyPermissions())


async def test_other_replicas_believe_a_revoked_key_for_10_seconds_at_most(store):
    assert CACHE_SECONDS <= 10
    key, issued = await new_key(store)
    others = [Authenticator(store, HASHER, cache_seconds=0.5) for _ in range(3)]
    looked_up = monotonic()
    for other in others:
        assert (await other.authenticate(issued.text)).role is CallerRole.KEY
    await store.keys.revoke(key.id)  # as another process does
    await anyio.sleep(max(0.0, looked_up + 0.6 - monotonic()))
    for other in others:
        with pytest.raises(APIError, match=r"revoked|not valid"):
            await other.authenticate(issued.text)


async def test_a_key_is_believed_from_the_moment_at_which_it_was_read(store):
    """A slow database makes no key live longer."""
    key, issued = await new_key(store)
    slow = SlowStore(store)
    other = Authenticator(slow, HASHER, cache_seconds=0.5)  # pyright: ignore[reportArgumentType]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.authenticate, issued.text)
        await slow.was_read.wait()
        await store.keys.revoke(key.id)
        await anyio.sleep(0.6)
        slow.may_arrive.set()
    with pytest.raises(APIError, match=r"revoked|not valid"):
        await other.authenticate(issued.text)


async def test_a_key_that_is_being_read_while_it_is_revoked_here_is_dead_at_once(store):
    key, issued = await new_key(store)
    slow = SlowStore(store)
    gate = Authenticator(slow, HASHER)  # pyright: ignore[reportArgumentType]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gate.authenticate, issued.text)
        await slow.was_read.wait()
        await store.keys.revoke(key.id)
        gate.forget(key.id)
        slow.may_arrive.set()
    with pytest.raises(APIError, match=r"revoked|not valid"):
        await gate.authenticate(issued.text)
