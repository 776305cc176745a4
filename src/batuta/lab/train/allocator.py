"""Keeps freed memory in the process for the next step, and returns it if too much accumulates."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""Options of glibc's `mallopt`."""
_TRIM_BYTES = 2**31 - 1
_PAD_BYTES = 256 * 2**20


def retain_freed_memory() -> bool:
    """Make glibc keep freed memory in the process; return whether all options were set.

    A step's activations are some hundred megabytes, in pieces that glibc maps and unmaps one by
    one. Filling fresh pages took more time than the arithmetic of a small network.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    options = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _TRIM_BYTES), (_TOP_PAD, _PAD_BYTES))
    return sum(int(mallopt(name, value)) for name, value in options) == len(options)


_STATM = Path("/proc/self/statm")


@dataclass(slots=True)
class MemoryTrimmer:
    """Returns freed memory to the system when the process has grown by half since the last time.

    Batches of varying lengths fragment the heap: with a network of 135 million parameters, a
    training that needs 4 GB grew to 12 GB in forty steps and was killed.
    """

    least: int = 4 * 2**30
    """Resident bytes below which nothing is returned."""
    held: int = 0
    """Resident bytes after memory was last returned."""

    def trim_growth(self) -> bool:
        """Return freed memory to the system if the process has grown; return whether it did so."""
        if not _STATM.exists() or _resident_bytes() < max(self.least, self.held * 3 // 2):
            return False
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        except (OSError, AttributeError):
            return False
        self.held = _resident_bytes()
        return True


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
