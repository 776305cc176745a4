"""Explains why a worker counts as the best single one if no measurement says so."""

from __future__ import annotations

from batuta.core import Pool


def explain_best(pool: Pool) -> str:
    """Return the reason why `pool.ranked()` puts its first worker first."""
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
        return "it is the most expensive"
    if (best.parameters or 0) > (second.parameters or 0):
        return "it is the largest"
    return "it is the first of the pool"


def warn_unmeasured(pool: Pool) -> str:
    """Return a warning that names the worker taken as the best without a measurement."""
    return (
        f"there are no other questions to measure the workers on: {pool.ranked()[0].id} is taken "
        f"as the best single worker, because {explain_best(pool)}; another one may be better. "
        "Ask fewer questions with --limit, so that the others can measure it"
    )
