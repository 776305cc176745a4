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
from batuta.tasks.recorded.outcomes import Integers, RecordedOutcomes

SHARES = (0.6, 0.2, 0.2)
"""Of training, calibration and test."""

_PARTS = 3


@dataclass(frozen=True, slots=True, eq=False)
class QuestionSplit:
    """Places of questions, each in one part."""

    train: Integers
    calibration: Integers
    test: Integers


def random_split(
    record: RecordedOutcomes, seed: int, shares: tuple[float, float, float] = SHARES
) -> QuestionSplit:
    """Questions at random; the shares are met on average."""
    bounds = (shares[0], shares[0] + shares[1])
    lots = np.asarray([_random_fraction(seed, task.question) for task in record.tasks])
    return _to_question_split(np.searchsorted(bounds, lots, side="right"))


def unseen_family_split(
    record: RecordedOutcomes, seed: int, shares: tuple[float, float, float] = SHARES
) -> QuestionSplit:
    """Whole task families at random: no family of the test or of calibration is trained on.

    Raises:
        SourceError: the record has fewer than three families.
    """
    sizes = Counter(record.families)
    if len(sizes) < _PARTS:
        raise SourceError(f"{record.name} has {len(sizes)} task families; three are needed")
    drawn = sorted(sizes, key=lambda family: _random_fraction(seed, family))
    part_of = _assign_parts([sizes[family] for family in drawn], shares)
    parts = dict(zip(drawn, part_of, strict=True))
    return _to_question_split(np.asarray([parts[family] for family in record.families]))


def _assign_parts(sizes: list[int], shares: tuple[float, float, float]) -> list[int]:
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


def _random_fraction(seed: int, text: str) -> float:
    """A number in [0, 1) that looks random and is the same on every machine."""
    drawn = hashlib.blake2b(f"{seed}\0{text.strip()}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") / 2**64


def _to_question_split(part_q: Integers) -> QuestionSplit:
    return QuestionSplit(*(np.flatnonzero(part_q == part) for part in range(_PARTS)))
