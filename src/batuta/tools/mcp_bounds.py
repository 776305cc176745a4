"""Servers of the Model Context Protocol that may say so much and no more.

The package `mcp` takes in a message of any length: it puts a line together in time that grows with
the square of its length, and everybody else waits.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client import Transport
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

MAX_SAID = 4_000_000
"""Bytes that a server may say: in one call by its output, in one answer over HTTP."""
_RELAY = """
import os, subprocess, sys

try:
    server = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE)
except OSError as error:
    sys.exit(f"the server of a tool could not be started: {error}")
left = int(sys.argv[1])
while left > 0 and (said := os.read(server.stdout.fileno(), min(left, 65536))):
    left -= len(said)
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()
server.kill()
"""
"""A program that starts the server and passes on what it says, up to the limit."""


@asynccontextmanager
async def bound_command(command: tuple[str, ...]) -> AsyncGenerator[Transport]:
    """Give a server that is started by a command."""
    arguments = ["-I", "-c", _RELAY, str(MAX_SAID), *command]
    yield stdio_client(StdioServerParameters(command=sys.executable, args=arguments))


@asynccontextmanager
async def bound_url(url: str) -> AsyncGenerator[Transport]:
    """Give a server that speaks HTTP."""
    async with httpx2.AsyncClient(
        headers={"accept-encoding": "identity"},
        timeout=None,  # the tool's own limit holds
        event_hooks={"response": [_bound_answer]},
    ) as http:
        yield streamable_http_client(url, http_client=http)


class _BoundStream(httpx2.AsyncByteStream):
    """The bytes of an answer, with an error after so many."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_SAID
        async for some in self._stream:
            left -= len(some)
            if left < 0:
                raise httpx2.ReadError("the answer is too long")
            yield some

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bound_answer(response: httpx2.Response) -> None:
    """Bound what is read of an answer; one that came packed unasked is not read."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.ReadError("the answer is packed")
    response.encoding = "utf-8"  # as events are: another charset may take minutes to decode
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _BoundStream(response.stream)
