"""A limit on the mean calls of a question: the least weight of a call with which it is kept. Pure.

In every cell the workflow with the greatest merit is run: what it is worth, less its calls times
the weight of a call. The greater the weight, the fewer calls on average; the weight is the
Lagrange multiplier of the limit.
"""

from __future__ import annotations

import numpy as np

from batuta.lab.tune.sparse_design import Matrix, Places

_DOUBLED, _HALVED = 60, 40


def best_places(worth_cw: Matrix, calls_cw: Matrix, weight: float) -> Places:
    """The workflow of the greatest merit in each cell."""
    return (worth_cw - weight * calls_cw).argmax(axis=1)


def mean_calls(calls_cw: Matrix, place_c: Places, count_c: Matrix) -> float:
    """Calls of a question, if each cell has that workflow and so many questions."""
    chosen_c = np.take_along_axis(calls_cw, place_c[:, None], axis=1)[:, 0]
    return float(np.average(chosen_c, weights=count_c)) if count_c.any() else 0.0


def find_call_weight(
    worth_cw: Matrix, calls_cw: Matrix, count_c: Matrix, *, most: float, least: float
) -> float:
    """The least weight with which a question takes no more calls on average than the limit.

    Args:
        worth_cw: of each workflow in each cell, its calls not counted.
        calls_cw: how many it makes there.
        count_c: questions of each cell.
        most: calls of a question on average.
        least: the weight is never less.

    Returns:
        The weight; if none is great enough, one with which calls are all that counts.
    """

    def keeps(weight: float) -> bool:
        return mean_calls(calls_cw, best_places(worth_cw, calls_cw, weight), count_c) <= most

    if keeps(least):
        return least
    low, high = least, max(2 * least, 0.01)
    for _ in range(_DOUBLED):
        if keeps(high):
            break
        low, high = high, 2 * high
    for _ in range(_HALVED):
        middle = (low + high) / 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high
