"""Splits a record's questions into training, calibration and test.

In a random split, a question's part depends only on the seed and its text (or its id if texts may
be missing). Questions that differ only in case, spaces and punctuation are in one part, which
depends on the alphabetically first of their texts. So filtering a record moves few questions.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from batuta.errors import SourceError
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.tasks.recorded.outcomes import Integers, RecordedOutcomes

SHARES = (0.6, 0.2, 0.2)
"""The shares of the questions in training, calibration and test."""

_PARTS = 3
_LEFT_OUT = -1


@dataclass(frozen=True, slots=True, eq=False)
class QuestionSplit:
    """The indices of the questions in each part, in ascending order."""

    train: Integers
    calibration: Integers
    test: Integers


def random_split(
    record: RecordedOutcomes, seed: int, shares: tuple[float, float, float] = SHARES
) -> QuestionSplit:
    """Divide the questions at random; on average the parts have these shares of the questions."""
    bounds = (shares[0], shares[0] + shares[1])
    fractions = np.asarray([_random_fraction(seed, text) for text in _common_texts(record)])
    return _to_question_split(np.searchsorted(bounds, fractions, side="right"))


def unseen_family_split(
    record: RecordedOutcomes, seed: int, shares: tuple[float, float, float] = SHARES
) -> QuestionSplit:
    """Divide whole task families at random, so that test and calibration have new families.

    If near-duplicates fall into several parts, only those in the test part are kept, or those in
    the calibration part if the test part has none.

    Raises:
        SourceError: the record has fewer than three families.
    """
    sizes = Counter(record.families)
    if len(sizes) < _PARTS:
        raise SourceError(f"{record.name} has {len(sizes)} task families; three are needed")
    drawn = sorted(sizes, key=lambda family: _random_fraction(seed, family))
    part_of = _assign_parts([sizes[family] for family in drawn], shares)
    parts = dict(zip(drawn, part_of, strict=True))
    part_q = [parts[family] for family in record.families]
    keys = _question_keys(record)
    last = dict(sorted(zip(keys, part_q, strict=True)))
    kept = zip(keys, part_q, strict=True)
    return _to_question_split(
        np.asarray([part if part == last[key] else _LEFT_OUT for key, part in kept])
    )


def _question_keys(record: RecordedOutcomes) -> list[str]:
    return [text_key(text) for text in _drawn_texts(record)]


def _drawn_texts(record: RecordedOutcomes) -> list[str]:
    """Return the texts that decide the questions' parts, or the ids if texts may be missing."""
    tasks = record.tasks
    return [str(task.id) if record.is_drawn_by_id else task.question for task in tasks]


def _common_texts(record: RecordedOutcomes) -> list[str]:
    """Return for each question the alphabetically first of its near-duplicates' texts."""
    keys, texts = _question_keys(record), [text.strip() for text in _drawn_texts(record)]
    first = dict(sorted(zip(keys, texts, strict=True), reverse=True))
    return [first[key] for key in keys]


def _assign_parts(sizes: list[int], shares: tuple[float, float, float]) -> list[int]:
    """Return a part for each family, filling one part after another; no part is empty."""
    total, done, part = sum(sizes), 0, 0
    parts: list[int] = []
    for index, size in enumerate(sizes):
        left = len(sizes) - index
        full = done + size / 2 > total * sum(shares[: part + 1])
        if part < _PARTS - 1 and part in parts and (full or left < _PARTS - part):
            part += 1
        parts.append(part)
        done += size
    return parts


def _random_fraction(seed: int, text: str) -> float:
    """Return a pseudo-random number in [0, 1) that is the same on every machine."""
    drawn = hashlib.blake2b(f"{seed}\0{text.strip()}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") / 2**64


def _to_question_split(part_q: Integers) -> QuestionSplit:
    return QuestionSplit(*(np.flatnonzero(part_q == part) for part in range(_PARTS)))
