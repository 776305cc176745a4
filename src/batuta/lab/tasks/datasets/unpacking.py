"""Unpacks compressed files within limits, as a small file may unpack to a huge one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, TYPE_CHECKING, final

from batuta.errors import SourceError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_ROW_BYTES = 128 << 20
"""The most unpacked bytes of one row, or of one entry of an archive."""
_LEAST_LIMIT = 1 << 30
_MOST_TIMES = 100
"""The most bytes that a byte of a file may unpack to, beyond that least limit; texts of models
shrink to a tenth, and a bomb to a thousandth."""


@final
class UnpackingLimit:
    """Counts the bytes to which a file unpacks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._most = max(_LEAST_LIMIT, _MOST_TIMES * path.stat().st_size)
        self._unpacked = 0

    def add(self, amount: int) -> None:
        """Count further bytes.

        Raises:
            SourceError: the file unpacks to more than it may.
        """
        self._unpacked += amount
        if self._unpacked > self._most:
            raise SourceError(
                f"{self._path} unpacks to more than {self._most / (1 << 30):.3g} GiB: too much for "
                "a file of its size; unpack it yourself if you trust it"
            )


@final
class UnpackedStream(io.RawIOBase):
    """A stream that counts its unpacked bytes and stops at the limit."""

    def __init__(self, stream: IO[bytes], limit: UnpackingLimit) -> None:
        super().__init__()
        self._stream = stream
        self._limit = limit

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill the buffer as far as there is data."""
        view = memoryview(buffer)
        piece = self._stream.read(len(view))
        self._limit.add(len(piece))
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Close the compressed stream too."""
        self._stream.close()
        super().close()
