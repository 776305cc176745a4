"""Random numbers that are the same on every machine, because they are made from digests."""

from __future__ import annotations

import random
import struct
from hashlib import blake2b

NUMBERS_PER_DIGEST = 16
"""Number of uniform numbers made from one digest."""

_DIGEST_WORDS = struct.Struct("<16I")
_SCALE = 1 / 2**32


def hash_parts(*parts: object) -> bytes:
    """Return a digest of 64 bytes that depends on every part and on nothing else."""
    return blake2b("\x1f".join(map(str, parts)).encode("utf-8", "replace")).digest()


def uniform_numbers(*parts: object) -> tuple[float, ...]:
    """Return sixteen uniform numbers in [0, 1) that depend on every part and on nothing else."""
    return tuple(word * _SCALE for word in _DIGEST_WORDS.unpack(hash_parts(*parts)))


def uniform_number(*parts: object) -> float:
    """Return the first of `uniform_numbers`."""
    return uniform_numbers(*parts)[0]


def seeded_generator(*parts: object) -> random.Random:
    """Return a generator with a seed that depends on every part and on nothing else."""
    return random.Random(int.from_bytes(hash_parts(*parts)[:8], "little"))
