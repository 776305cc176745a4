"""Connects to MCP servers with a limit on the bytes that they may send.

The package `mcp` accepts messages of any length, and assembles a line in time that is quadratic in
its length, which blocks the event loop.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client import Transport
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

MAX_OUTPUT_BYTES = 4_000_000
"""Maximum number of bytes that a server may send: on stdout per call, or in one HTTP response."""
_RELAY = """
import os, subprocess, sys

try:
    server = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE)
except OSError as error:
    sys.exit(f"the server of a tool could not be started: {error}")
left = int(sys.argv[1])
while left > 0 and (data := os.read(server.stdout.fileno(), min(left, 65536))):
    left -= len(data)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
server.kill()
"""
"""A program that starts the server and forwards its output, up to the limit."""


@asynccontextmanager
async def bound_command(command: tuple[str, ...]) -> AsyncGenerator[Transport]:
    """Yield a transport to a server that is started by a command."""
    arguments = ["-I", "-c", _RELAY, str(MAX_OUTPUT_BYTES), *command]
    yield stdio_client(StdioServerParameters(command=sys.executable, args=arguments))


@asynccontextmanager
async def bound_url(url: str) -> AsyncGenerator[Transport]:
    """Yield a transport to a server over HTTP."""
    async with httpx2.AsyncClient(
        headers={"accept-encoding": "identity"},
        timeout=None,  # the tool's own limit applies
        event_hooks={"response": [_bound_answer]},
    ) as http:
        yield streamable_http_client(url, http_client=http)


class _BoundStream(httpx2.AsyncByteStream):
    """The bytes of a response; reading more than the limit raises an error."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_OUTPUT_BYTES
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError("the response is too long")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bound_answer(response: httpx2.Response) -> None:
    """Limit how much of a response is read; refuse a compressed one, which was not requested."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.ReadError("the response is compressed")
    response.encoding = "utf-8"  # the charset of events; others may take minutes to decode
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _BoundStream(response.stream)
