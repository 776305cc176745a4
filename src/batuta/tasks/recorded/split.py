"""Which questions are for training, for calibration, for the test.

A question's part depends on the seed and on its text alone, so that it stays where it is when a
record is filtered, and a question that a set has twice is on one side only.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from batuta.errors import SourceError
from batuta.tasks.recorded.record import Integers, Recorded

SHARES = (0.6, 0.2, 0.2)
"""Of training, calibration and test."""

_PARTS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """Places of questions, each in one part."""

    train: Integers
    calibration: Integers
    test: Integers


def random_split(
    record: Recorded, seed: int, shares: tuple[float, float, float] = SHARES
) -> Division:
    """Questions by lot; the shares are met on average."""
    bounds = (shares[0], shares[0] + shares[1])
    lots = np.asarray([_lot(seed, task.question) for task in record.tasks])
    return _divided(np.searchsorted(bounds, lots, side="right"))


def unseen_split(
    record: Recorded, seed: int, shares: tuple[float, float, float] = SHARES
) -> Division:
    """Whole task families by lot: no family of the test or of calibration is trained on.

    Raises:
        SourceError: the record has fewer than three families.
    """
    sizes = Counter(record.families)
    if len(sizes) < _PARTS:
        raise SourceError(f"{record.name} has {len(sizes)} task families; three are needed")
    drawn = sorted(sizes, key=lambda family: _lot(seed, family))
    part_of = _dealt([sizes[family] for family in drawn], shares)
    parts = dict(zip(drawn, part_of, strict=True))
    return _divided(np.asarray([parts[family] for family in record.families]))


def _dealt(sizes: list[int], shares: tuple[float, float, float]) -> list[int]:
    """A part for each family, filled one after another; none stays empty."""
    total, done, part = sum(sizes), 0, 0
    parts: list[int] = []
    for place, size in enumerate(sizes):
        left = len(sizes) - place
        full = done + size / 2 > total * sum(shares[: part + 1])
        if part < _PARTS - 1 and part in parts and (full or left < _PARTS - part):
            part += 1
        parts.append(part)
        done += size
    return parts


def _lot(seed: int, text: str) -> float:
    """A number in [0, 1) that looks random and is the same on every machine."""
    drawn = hashlib.blake2b(f"{seed}\0{text.strip()}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") / 2**64


def _divided(part_q: Integers) -> Division:
    return Division(*(np.flatnonzero(part_q == part) for part in range(_PARTS)))
