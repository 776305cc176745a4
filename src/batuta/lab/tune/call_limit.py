"""Finds the lowest weight of a call that keeps the mean calls of a question within a limit. Pure.

A cell is a group of questions at one level of ease, and runs the workflow of greatest merit: the
workflow's worth less the weight of a call for each of its calls. The greater the weight, the fewer
calls are made. The weight is the Lagrange multiplier of the limit.

Axes: c cells, w workflows.
"""

from __future__ import annotations

import numpy as np

from batuta.lab.tune.sparse_design import Matrix, Places

_DOUBLINGS, _HALVINGS = 60, 40


def best_places(worth_cw: Matrix, calls_cw: Matrix, weight: float) -> Places:
    """Return the index of the workflow with the greatest merit in each cell: (c,)."""
    return (worth_cw - weight * calls_cw).argmax(axis=1)


def mean_calls(calls_cw: Matrix, place_c: Places, count_c: Matrix) -> float:
    """Return the mean calls of a question; 0 if there are no questions.

    `place_c` is the index of each cell's workflow, and `count_c` its number of questions.
    """
    chosen_c = np.take_along_axis(calls_cw, place_c[:, None], axis=1)[:, 0]
    return float(np.average(chosen_c, weights=count_c)) if count_c.any() else 0.0


def find_call_weight(
    worth_cw: Matrix, calls_cw: Matrix, count_c: Matrix, *, most: float, least: float
) -> float:
    """Return the lowest weight of a call, at least `least`, that keeps the limit.

    `worth_cw` is the worth of each workflow in each cell, without the price of calls. `count_c` has
    each cell's number of questions, and `most` is the maximum mean calls of a question. If no
    weight keeps the limit, the weight is so great that only calls matter.
    """

    def keeps(weight: float) -> bool:
        return mean_calls(calls_cw, best_places(worth_cw, calls_cw, weight), count_c) <= most

    if keeps(least):
        return least
    low, high = least, max(2 * least, 0.01)
    for _ in range(_DOUBLINGS):
        if keeps(high):
            break
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high
