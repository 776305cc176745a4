"""Freed memory is kept for the next step."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_TRIM_BYTES = 2**31 - 1
_PAD_BYTES = 256 * 2**20


def retain_freed_memory() -> bool:
    """Tell glibc not to hand freed memory back to the system; False on another C library.

    A step's activations are some hundred megabytes in pieces that glibc maps and unmaps one by one:
    filling fresh pages took more time than the arithmetic of a small network.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    options = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _TRIM_BYTES), (_TOP_PAD, _PAD_BYTES))
    return sum(int(mallopt(name, value)) for name, value in options) == len(options)
