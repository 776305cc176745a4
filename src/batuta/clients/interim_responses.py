"""A provider's responses before the response (`100 Continue` and its like): only a few."""

from __future__ import annotations

from typing import Any

import aiohttp

MAX_INTERIM_RESPONSES = 16
"""Before one response. Providers send none or one; early hints may come several times."""


class TooManyInterimResponsesError(aiohttp.ClientConnectionError):
    """The provider announces a response and never sends it."""


class BoundedResponse(aiohttp.ClientResponse):
    """A response before which at most `MAX_INTERIM_RESPONSES` others may come.

    aiohttp skips them without an end. A provider that sends nothing else would keep the event loop
    busy, and every other request waiting, until the run's deadline.
    """

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Reads the head of the response.

        Raises:
            TooManyInterimResponsesError: what came before it has no end.
        """
        protocol = connection.protocol
        read, left = protocol.read, MAX_INTERIM_RESPONSES + 1

        async def read_bounded() -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise TooManyInterimResponsesError("the provider sent interim responses only")
            return await read()

        # aiohttp has no setting for it. The heads of all responses come through this one method,
        # and nothing else reads by it, so it is replaced while this response's head is awaited.
        protocol.read = read_bounded
        try:
            return await super().start(connection)
        finally:
            del protocol.read
