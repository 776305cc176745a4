"""The reason why a worker is taken for the best single one if nothing measured it."""

from __future__ import annotations

from batuta.core import Pool


def explain_best(pool: Pool) -> str:
    """Why the first of `pool.ranked()` is the first, in words."""
    best, *others = pool.ranked()
    if not others:
        return "there is no other"
    second = others[0]
    if best.strength is not None:
        return (
            "the pool's own strengths name it"
            if best.strength != second.strength
            else ("it is the cheapest of those that the pool's own strengths name")
        )
    if best.measured and best.measured != second.measured:
        return "its measured skills are the best"
    if best.price and (not second.price or best.price.output > second.price.output):
        return "it is the dearest"
    if (best.parameters or 0) > (second.parameters or 0):
        return "it is the largest"
    return "it is the first of the pool"


def warn_unmeasured(pool: Pool) -> str:
    """Say who stands for the best worker where no other questions are left to measure by."""
    return (
        "there are no other questions to measure the workers on: for the best single worker "
        f"stands {pool.ranked()[0].id}, since {explain_best(pool)}; another one may be better. "
        "Ask fewer questions with --limit, and the rest measure it"
    )
