"""The interim looks of a judgement, and the p-values that end it at each. Pure.

Testing after every question and stopping at a small p would be wrong in far more than 5 of 100
judgements. Four looks, after equal numbers of questions, keep that rate with the levels of O'Brien
and Fleming (1979, Biometrics 35): early looks require much smaller p-values than the last.
"""

from __future__ import annotations

from collections.abc import Iterator

LEVELS = (0.0000516, 0.0042, 0.0194, 0.0430)
"""Two-sided levels of the looks, together 0.05 (Jennison and Turnbull 1999, table 2.3)."""


def divide_into_looks(questions: int) -> Iterator[tuple[int, float]]:
    """Yield the number of questions at each look, and the level there.

    With few questions there is only the last look.
    """
    steps = len(LEVELS)
    before = 0
    for number, level in enumerate(LEVELS, start=1):
        until = questions * number // steps
        if until > before:
            yield until, level
        before = until
