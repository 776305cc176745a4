"""A provider's response that ends: aiohttp waits without an end where a provider breaks HTTP."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

MAX_INTERIM_RESPONSES = 16
"""`100 Continue` and its like before one response. Providers send none or one; early hints may come
several times."""


class TooManyInterimResponsesError(aiohttp.ClientConnectionError):
    """The provider announces a response and never sends it."""


class BoundedResponse(aiohttp.ClientResponse):
    """A response whose head and body come to an end, if need be by an error.

    aiohttp skips interim responses without an end: a provider that sends nothing else would keep
    the event loop busy, and every other request waiting, until the run's deadline. And the reader
    of a body whose chunks are no HTTP waits for ever, its time-outs taken away (aiohttp 3.14).
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
        broken: list[BaseException] = []

        def set_exception(error: BaseException, *cause: BaseException) -> None:
            ResponseHandler.set_exception(protocol, error, *cause)
            if isinstance(error, HttpProcessingError):
                broken.append(error)
                self._tell_reader(error)

        # It tells only whoever waits for the next head, and forgets the body; the connection is
        # closed then. For its next response this is done anew.
        protocol.set_exception = set_exception
        try:
            started = await super().start(connection)
        finally:
            del protocol.read
        for error in broken:  # it came when the head was read and not yet taken
            self._tell_reader(error)
        return started

    def _tell_reader(self, error: BaseException) -> None:
        """Tell the reader of the body, if there is one, that what comes is no HTTP."""
        body = cast("aiohttp.StreamReader | None", self.content)  # None before the head
        if body is not None and not body.is_eof() and body.exception() is None:
            told = aiohttp.ClientPayloadError("the body is no HTTP")
            body.set_exception(told, error)
            # A reader that the end of a chunk has just woken waits again without a look at it.
            asyncio.get_running_loop().call_soon(body.set_exception, told, error)
