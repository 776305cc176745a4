"""Chance that is the same on every machine: uniform numbers from digests, never `hash()`."""

from __future__ import annotations

import random
import struct
from hashlib import blake2b

ROLLS = 16
"""Uniform numbers that one digest gives."""

_WORDS = struct.Struct("<16I")
_SCALE = 1 / 2**32


def digest(*parts: object) -> bytes:
    """Sixty-four bytes that depend on every part and on nothing else."""
    return blake2b("\x1f".join(map(str, parts)).encode("utf-8", "replace")).digest()


def rolls(*parts: object) -> tuple[float, ...]:
    """Sixteen uniform numbers in [0, 1)."""
    return tuple(word * _SCALE for word in _WORDS.unpack(digest(*parts)))


def roll(*parts: object) -> float:
    """One uniform number in [0, 1)."""
    return rolls(*parts)[0]


def generator(*parts: object) -> random.Random:
    """A seeded generator."""
    return random.Random(int.from_bytes(digest(*parts)[:8], "little"))
