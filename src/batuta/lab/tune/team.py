"""Chooses which workers of a larger pool a tuning run keeps: a few that complement each other.

Every additional worker multiplies the workflows that could be tried, so that the same budget
measures each workflow less precisely. A few workers that are right on different questions are worth
more than many workers that agree.

Axes: q questions, m workers, g groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from batuta.core import Pool, Task, WorkerId
from batuta.lab.tune.calibrate import WorkerCard
from batuta.lab.tune.candidate_runner import CandidateRunner
from batuta.lab.tune.library import Candidate

Scores = NDArray[np.float64]
_MOST_TEAMS = 20_000
"""Maximum number of teams that are compared; if there are more, workers are added greedily."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The workers that a tuning run keeps, and figures about them from the calibration."""

    workers: tuple[WorkerId, ...]
    """The workers that are kept, in the pool's order."""
    passed_over: tuple[WorkerId, ...]
    """The usable models that are not kept."""
    covered: float
    """The mean, over the questions, of the best score of a chosen model alone."""
    covered_by_all: float
    """The mean, over the questions, of the best score of any model alone."""


def choose_team(
    runner: CandidateRunner,
    tasks: Sequence[Task],
    usable: Sequence[WorkerId],
    *,
    cards: Sequence[WorkerCard],
    most: int,
) -> Team:
    """Return the best complementary workers by their calibration answers.

    At most `most` models are chosen. Workers that are not models, such as a worker that runs
    programs, are kept and not counted, because they help only in workflows. The runner must have
    the results of the `usable` workers on the tasks.
    """
    models = [worker for worker in usable if runner.pool[worker].is_model]
    score_qm = _score_table(runner, tasks, models)
    share_gm, weight_g = _group_shares(cards, models)
    usd_m = _known_dollars(cards, models)
    chosen = choose_complementary(score_qm, share_gm, weight_g=weight_g, usd_m=usd_m, most=most)
    kept = {models[m] for m in chosen}
    return Team(
        workers=tuple(w for w in usable if w in kept or w not in models),
        passed_over=tuple(worker for worker in models if worker not in kept),
        covered=float(score_qm[:, chosen].max(axis=1).mean()),
        covered_by_all=float(score_qm.max(axis=1).mean()),
    )


def choose_complementary(
    score_qm: Scores, share_gm: Scores, *, weight_g: Scores, usd_m: Scores, most: int
) -> list[int]:
    """Return the indices of the best single worker, and of the workers that complement it best.

    The best single worker is kept, because the tuning run is compared with it. The worth of a team
    is the mean of two figures. The first is the accuracy if every group goes to its best worker, as
    a selector can do. The second is the share of questions that at least one worker answers
    correctly, the best that a comparison of answers could reach; alone, this figure would prefer
    workers that guess. Of equal teams the cheaper one is taken.

    Args:
        score_qm: each worker's score on each question.
        share_gm: each worker's accuracy in each group, shrunk.
        weight_g: each group's share of the calibration questions.
        usd_m: each worker's dollars per question; infinite if unknown.
        most: maximum number of workers.
    """
    mean_m = score_qm.mean(axis=0)
    workers = range(score_qm.shape[1])
    best = max(workers, key=lambda m: (float(mean_m[m]), -float(usd_m[m])))
    others = [m for m in workers if m != best]
    wanted = min(most - 1, len(others))

    def worth(added: tuple[int, ...]) -> tuple[float, float]:
        team = [best, *added]
        routed = float(weight_g @ share_gm[:, team].max(axis=1))
        covered = float(score_qm[:, team].max(axis=1).mean())
        return round((routed + covered) / 2, 9), -float(usd_m[team].sum())

    if comb(len(others), wanted) <= _MOST_TEAMS:
        return [best, *max(combinations(others, wanted), key=worth)]
    chosen: tuple[int, ...] = ()
    while len(chosen) < wanted:
        left = (m for m in others if m not in chosen)
        chosen = max(((*chosen, m) for m in left), key=worth)
    return [best, *chosen]


def effective_limit(most: int | None, pool: Pool) -> int | None:
    """Return `most`, the number of models to keep; None if all models of the pool are kept."""
    models = sum(worker.is_model for worker in pool)
    return most if most is not None and most < models else None


def _score_table(
    runner: CandidateRunner, tasks: Sequence[Task], workers: Sequence[WorkerId]
) -> Scores:
    """Return each worker's score on each question; an unknown score counts as 0."""
    found = [[runner.find_result(task, Candidate.single(w)) for w in workers] for task in tasks]
    return np.array(
        [[0.0 if one is None or one.score is None else one.score for one in row] for row in found]
    )


def _group_shares(
    cards: Sequence[WorkerCard], workers: Sequence[WorkerId]
) -> tuple[Scores, Scores]:
    """Return the shrunk accuracy of each worker in each group, (g, m), and the groups' weights."""
    by_worker = {card.worker: card for card in cards}
    rows = [by_worker[worker].by_group for worker in workers]
    share_mg = np.array([[one.shrunk or 0.0 for one in row] for row in rows])
    asked_g = np.array([[one.questions for one in row] for row in rows], float).max(axis=0)
    return share_mg.T, asked_g / max(float(asked_g.sum()), 1.0)


def _known_dollars(cards: Sequence[WorkerCard], workers: Sequence[WorkerId]) -> Scores:
    known = {card.worker: card.usd for card in cards}
    return np.array([np.inf if (usd := known[worker]) is None else usd for worker in workers])
