"""Messages between the supervisor and its parent: JSON after its length (4 bytes, big-endian)."""

from __future__ import annotations

import json
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def receive_order() -> dict[str, Any]:
    """Return the next order; exit the supervisor at the end of standard input."""
    return json.loads(read_exactly(*struct.unpack(">I", read_exactly(4))))


def read_exactly(size: int) -> bytearray:
    """Read that many bytes of standard input; exit the process at its end."""
    data = bytearray()
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            sys.exit()
        data += chunk
    return data


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however many calls that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def pack_message(message: dict[str, Any]) -> bytes:
    """Return a message with its length before it."""
    data = json.dumps(message, ensure_ascii=False).encode()
    return struct.pack(">I", len(data)) + data


def close_orders(*_: object) -> None:
    """Handle a signal by ending standard input; the supervisor then exits."""
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
