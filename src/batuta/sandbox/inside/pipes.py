"""The pipes between the supervisor and a test's processes, and their out-of-memory score."""
# ruff: noqa: PTH123 - no pathlib here, see the package

from __future__ import annotations

import os

from .messages import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 65536


def set_oom_score(score: int) -> None:
    """Set how soon the kernel kills this process if memory runs out: -1000 is never, 1000 first."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(score))


def close_descriptors(*descriptors: int) -> None:
    """Close each of the descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


class RunningTest:
    """A test's order, its standard input, and pipes for stdout, stderr and its report, the result.

    Its descriptors are not closed here: `stdin`, `readers` and `writers` belong to the caller.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.stdin = os.memfd_create("stdin")
        write_all(self.stdin, order.get("stdin", "").encode("utf-8", "surrogatepass"))
        os.lseek(self.stdin, 0, os.SEEK_SET)
        self.readers: list[int] = []
        self.writers: list[int] = []
        """Descriptors, like `readers` in the order stdout, stderr, result."""
        for _ in ("stdout", "stderr", "result"):
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            self.readers.append(reader)
            self.writers.append(writer)
        self.received = {reader: bytearray() for reader in self.readers}
        """The bytes read from each of `readers`."""

    def read_available(self, reader: int) -> bool:
        """Add up to `CHUNK` bytes to `received`; return False if there are none now or any more."""
        try:
            data = os.read(reader, CHUNK)
        except BlockingIOError:
            return False
        self.received[reader] += data
        return bool(data)

    def texts(self) -> dict[str, str]:
        """Return the received texts by name: stdout, stderr and result."""
        texts = (bytes(data).decode("utf-8", "replace") for data in self.received.values())
        return dict(zip(("stdout", "stderr", "result"), texts, strict=True))
