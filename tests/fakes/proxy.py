"""A wire between a client and a server that can be cut, muted and mended."""

from __future__ import annotations

import asyncio
from typing import Self

import anyio


class Proxy:
    """Passes bytes between a port of its own and the server's; `async with` runs it."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.port = 0
        self.muted = False
        self._flowing = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def cut(self) -> None:
        """Breaks every connection and refuses new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._open):
            writer.transport.abort()
        await anyio.sleep(0)

    async def mend(self) -> None:
        """Takes connections again, on the same port."""
        self.muted = False
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def mute(self) -> None:
        """Breaks every connection, takes new ones, and says nothing on them."""
        await self.cut()
        await self.mend()
        self.muted = True

    def freeze(self) -> None:
        """Keeps every connection and takes new ones, and passes nothing on until it is mended."""
        self._flowing.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        there = None
        try:
            if self.muted:
                while await reader.read(65_536):
                    pass
                return
            back, there = await asyncio.open_connection(*self.target)
            self._open.add(there)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump, reader, there)
                tasks.start_soon(self._pump, back, writer)
        except OSError:
            pass
        finally:
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()
                    self._open.discard(end)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        sink.transport.abort()
