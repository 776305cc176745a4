"""Limits on reads from the store: on memory, and on the bytes per minute of a caller."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.types import Scope

from batuta.gateway.access.caller import caller_of
from batuta.gateway.access.rate_limit import RateLimiter, retry_headers
from batuta.gateway.errors import APIError
from batuta.gateway.http.request_slots import hold_memory
from batuta.store import Store

MAX_READ_BYTES = 512 * 1024 * 1024
"""Maximum number of stored bytes that a caller may read per minute.

A caller is a key, a user with all its keys, a tenant without keys, or all administrators."""
PIECE = 1 << 20
"""Maximum number of bytes of stored data in one piece of a response."""
_READ_BYTES = "bytes"
_ROW_BYTES = 16 * 1024
"""Bytes added to the size of each read, for its fixed cost."""
_LIMITER_KEY = "batuta.rate_limiter"


def give_limiter(scope: Scope, rate_limiter: RateLimiter) -> None:
    """Count the request's reads with this rate limiter."""
    scope[_LIMITER_KEY] = rate_limiter


async def make_room(scope: Scope, size: int) -> None:
    """Count the bytes that the request is about to read, towards its memory and its caller's rate.

    Raises:
        APIError: the memory does not suffice now, or the caller reads too much.
    """
    hold_memory(scope, size)  # first, as a refusal for memory must not count as a read
    rate_limiter: RateLimiter | None = scope.get(_LIMITER_KEY)
    if rate_limiter is not None:
        caller = caller_of(scope)
        name = caller.key or f"tenant {caller.tenant}"
        window = await rate_limiter.take(_READ_BYTES, name, MAX_READ_BYTES, size + _ROW_BYTES)
        if not window.is_allowed:
            message = f"Too much stored data was read; try again in {window.reset:.1f} s."
            headers = retry_headers(window.reset)
            raise APIError(429, "rate_limit_exceeded", message, headers=headers)


async def read_stored_run(
    store: Store, run_id: str, tenant: str | None, scope: Scope
) -> bytes | None:
    """Return an encoded run; None if it does not exist or its content was not stored.

    A tenant of None stands for all tenants.

    Raises:
        APIError: the memory does not suffice now, or the caller reads too much.
        StoreError: the database fails, or the run is of another version or cannot be encoded.
    """
    await make_room(scope, await store.measure(run_id, tenant))
    return await store.get_encoded(run_id, tenant)


async def in_pieces(*parts: bytes) -> AsyncIterator[bytes]:
    """Yield the parts in pieces, so that other requests run while the client reads."""
    for part in parts:
        for at in range(0, len(part), PIECE):
            yield part[at : at + PIECE]
