"""Groups of questions: by label, or by their texts; and how easy they are within a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from batuta.conductors.workflow_selector.reader import (
    Floats,
    Places,
    QuestionReader,
    fit_reader,
    fit_text,
    mask_digits,
)
from batuta.core import Task
from batuta.lab.learners.clustering import k_means_centres, nearest_centre, squared_distances

_STARTS = 8
"""Times that k-means is begun anew; the tightest groups are kept."""
_FEWEST = 8
"""Questions below which a group is not worth having: they count with the rest."""
_LEAST_LEVEL = 0.5
"""The least share of its questions that a level of ease must have, of as many as the others."""
REST = "other"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Grouping:
    """How questions are told apart."""

    reader: QuestionReader
    names: tuple[str, ...]
    labelled: bool


def group_questions(
    tasks: Sequence[Task], family: Callable[[Task], str], *, labelled: bool, most: int, seed: int
) -> Grouping:
    """Groups by the questions' families, or without labels by their words.

    Args:
        tasks: what the groups are learned from.
        family: a question's label.
        labelled: whether labels are to be used.
        most: groups at most; of families the largest, the others count together.
        seed: of k-means.
    """
    texts = [task.question for task in tasks]
    if labelled:
        names, group_n = _of_labels([family(task) for task in tasks], most)
    else:
        group_n = _of_words(texts, min(most, max(len(texts) // _FEWEST, 1)), seed)
        names = tuple(f"group {number + 1}" for number in range(int(group_n.max()) + 1))
    return Grouping(reader=fit_reader(texts, group_n), names=names, labelled=labelled)


def _of_labels(labels: Sequence[str], most: int) -> tuple[tuple[str, ...], Places]:
    found, group_n = np.unique(np.array(labels), return_inverse=True)
    count = np.bincount(group_n)
    large = sorted(np.argsort(-count, kind="stable")[:most])
    kept = [place for place in large if count[place] >= _FEWEST]
    if len(kept) == len(found):
        return tuple(str(name) for name in found), group_n.astype(np.intp)
    number = {int(place): at for at, place in enumerate(kept)}
    names = (*(str(found[place]) for place in kept), REST)
    return names, np.array([number.get(int(place), len(kept)) for place in group_n], np.intp)


def _of_words(texts: Sequence[str], groups: int, seed: int) -> Places:
    point_nd = fit_text(texts)([mask_digits(text) for text in texts])
    rng = np.random.default_rng(seed)
    tried = [k_means_centres(point_nd, groups, rng) for _ in range(_STARTS)]
    spread = [float(squared_distances(point_nd, one).min(axis=1).sum()) for one in tried]
    group_n = nearest_centre(point_nd, tried[int(np.argmin(spread))])
    _, dense_n = np.unique(group_n, return_inverse=True)
    return dense_n.astype(np.intp)


def ease_bounds(group_n: Places, ease_n: Floats, groups: int, levels: int) -> Floats:
    """Ease from which on a question is of the next level: as many questions in each level.

    Where many questions are equally easy, some levels would have hardly any of them; such a group
    is not divided. Each level counts for as much as the others, in the choice of a workflow too.
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
