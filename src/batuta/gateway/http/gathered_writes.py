"""Writes of one turn of the event loop, sent to the connection together.

An answer is written in pieces: its head, its body, the chunks of a stream that came at once. Each
would be a system call and a packet of its own, though nobody could read one before the next.
"""

from __future__ import annotations

import asyncio
from typing import Any, final

MOST_GATHERED = 1 << 16
"""Bytes that wait for the turn's end at most."""


@final
class GatheredTransport(asyncio.Transport):
    """A transport that hands on what it is told to write at the end of the turn."""

    __slots__ = ("_inner", "_is_due", "_loop", "_pieces", "_size")

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._size = 0
        self._is_due = False
        """True while the turn's end is awaited."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep the bytes until the turn's end, or send them with all before if they are many."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MOST_GATHERED:
            self._send()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_due = False
        self._send()

    def _send(self) -> None:
        pieces = self._pieces
        if pieces:
            self._pieces, self._size = [], 0
            if self._inner.is_closing():
                return  # the reader has gone meanwhile
            self._inner.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def close(self) -> None:
        """Close the connection once all is sent that was written."""
        self._send()
        self._inner.close()

    def abort(self) -> None:
        """Close the connection at once; what waits is dropped."""
        self._pieces, self._size = [], 0
        self._inner.abort()

    def is_closing(self) -> bool:
        """Return True if the connection is closed, or about to be."""
        return self._inner.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that have not left yet."""
        return self._size + self._inner.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection under that name."""
        return self._inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._inner.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell another protocol from now on what happens."""
        self._inner.set_protocol(protocol)
