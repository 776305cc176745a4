"""What a pool of workers that a seed draws is called: `WORLD[:SEED[:COUNT]]`."""

from __future__ import annotations

DEFAULT_SEED, DEFAULT_COUNT = 1, 7
MOST_WORKERS = 2000


def parse_drawn_source(source: str) -> tuple[int, int] | None:
    """Seed and number of workers, where not said 1 and 7; None: it says something else."""
    _, *parts = source.split(":")
    if len(parts) > 2 or not all(part.isdecimal() and part.isascii() for part in parts):  # noqa: PLR2004
        return None
    if any(len(part) > MOST_DIGITS for part in parts):
        return None
    seed, count, *_ = (*map(int, parts), *(DEFAULT_SEED, DEFAULT_COUNT)[len(parts) :])
    return (seed, count) if 1 <= count <= MOST_WORKERS else None


MOST_DIGITS = 18
"""Of a seed; Python reads no number of thousands of digits."""
