"""Groups of questions, by label or by text, and levels of ease within a group.

Axes: n questions, q questions of a group, g groups, l levels, d dimensions of the text's features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from batuta.conductors.features import Floats
from batuta.conductors.workflow_selector.model import (
    Labels,
    QuestionReader,
    fit_reader,
    fit_text,
    mask_digits,
)
from batuta.core import Task
from batuta.lab.learners.clustering import k_means_centres, nearest_centre, squared_distances

_STARTS = 8
"""The number of starts of k-means; the grouping with the smallest distances is kept."""
_FEWEST = 8
"""Minimum number of questions of a family's own group, and on average of a group by words."""
_LEAST_LEVEL = 0.5
"""Minimum size of a level of ease, as a share of an equal division."""
REST = "other"
"""The name of the group of joined families."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Grouping:
    """A grouping of questions."""

    reader: QuestionReader
    """Assigns a group to each text."""
    names: tuple[str, ...]
    """The names of the groups, by number."""


def group_questions(
    tasks: Sequence[Task], family: Callable[[Task], str], *, labelled: bool, most: int, seed: int
) -> Grouping:
    """Group questions by family if they are labelled, else by their words.

    `most` is the maximum number of groups by words. The `most` largest families are groups of their
    own if they have enough questions, and all others are joined in one more group.
    """
    texts = [task.question for task in tasks]
    if labelled:
        names, group_n = _group_by_label([family(task) for task in tasks], most)
    else:
        group_n = _group_by_text(texts, min(most, max(len(texts) // _FEWEST, 1)), seed)
        names = tuple(f"group {number + 1}" for number in range(int(group_n.max()) + 1))
    return Grouping(reader=fit_reader(texts, group_n), names=names)


def _group_by_label(labels: Sequence[str], most: int) -> tuple[tuple[str, ...], Labels]:
    found, group_n = np.unique(np.array(labels), return_inverse=True)
    count = np.bincount(group_n)
    large = sorted(np.argsort(-count, kind="stable")[:most])
    kept = [index for index in large if count[index] >= _FEWEST]
    if len(kept) == len(found):
        return tuple(str(name) for name in found), group_n.astype(np.intp)
    kept = [index for index in kept if found[index] != REST]  # a family of that name joins the rest
    number = {int(index): at for at, index in enumerate(kept)}
    names = (*(str(found[index]) for index in kept), REST)
    return names, np.array([number.get(int(index), len(kept)) for index in group_n], np.intp)


def _group_by_text(texts: Sequence[str], groups: int, seed: int) -> Labels:
    point_nd = fit_text(texts)([mask_digits(text) for text in texts])
    rng = np.random.default_rng(seed)
    tried = [k_means_centres(point_nd, groups, rng) for _ in range(_STARTS)]
    spread = [float(squared_distances(point_nd, one).min(axis=1).sum()) for one in tried]
    group_n = nearest_centre(point_nd, tried[int(np.argmin(spread))])
    _, dense_n = np.unique(group_n, return_inverse=True)
    return dense_n.astype(np.intp)


def ease_bounds(group_n: Labels, ease_n: Floats, groups: int, levels: int) -> Floats:
    """Return the ease at which each level after the first begins: (g, l - 1).

    The levels of a group have about equally many questions. A group in which many are equally
    easy is not divided, because some levels would have hardly any questions: its bounds are
    -infinity, so that all its questions have the last level.
    """
    shares = np.arange(1, levels) / levels
    rows = np.full((groups, levels - 1), -np.inf, np.float32)
    for group in range(groups):
        ease_q = ease_n[group_n == group]
        if len(ease_q):
            bounds = np.quantile(ease_q, shares).astype(np.float32)
            level_q = (ease_q[:, None] >= bounds).sum(axis=1)
            fewest = np.bincount(level_q, minlength=levels).min()
            if fewest >= _LEAST_LEVEL * len(ease_q) / levels:
                rows[group] = bounds
    return rows
