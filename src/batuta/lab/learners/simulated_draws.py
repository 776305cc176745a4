"""Replays a history's answers in the order in which a cascade would draw them.

Axes: n questions, m workers, k draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.errors import SourceError
from batuta.lab.learners.answer_posterior import AnswerDraws, DrawOrder, TrainingDraws, log_odds
from batuta.lab.learners.history import History

Floats = NDArray[np.floating[Any]]


def simulate_draws(
    history: History,
    expected_nm: Floats,
    order: DrawOrder,
    calls: int,
    *,
    cost_m: Floats,
    calls_worth_m: Floats,
    collisions: float,
) -> TrainingDraws:
    """Return each question's draws by a cascade that makes `calls` draws, or as many as are known.

    `expected_nm` is each worker's expected credit, `cost_m` the cost of a call in credit, and
    `calls_worth_m` the cost as a multiple of the average call. `collisions` is the rate at which
    two wrong answers are equal.

    Raises:
        SourceError: the history has no answers.
    """
    samples = history.samples
    if samples is None:
        raise SourceError("the history has no answers")
    most_nm = (~np.isnan(samples.credit_qms)).sum(axis=2)
    drawn_nm = np.zeros_like(most_nm)
    rows = np.arange(len(most_nm))
    worker_nk, answer_nk = np.full((2, len(rows), calls), -1)
    credit_nk = np.zeros((len(rows), calls))
    for draw in range(calls):
        worker_n = order.next_worker(expected_nm, drawn_nm, most_nm, calls_worth_m)
        drawn = worker_n >= 0
        index = (rows[drawn], worker_n[drawn], drawn_nm[rows[drawn], worker_n[drawn]])
        worker_nk[:, draw] = worker_n
        answer_nk[drawn, draw] = samples.answers_qms[index]
        credit_nk[drawn, draw] = samples.credit_qms[index]
        drawn_nm[rows[drawn], worker_n[drawn]] += 1
    draws = AnswerDraws(
        worker_nk=worker_nk,
        answer_nk=answer_nk,
        odds_nm=log_odds(expected_nm),
        cost_m=cost_m,
        collisions=collisions,
    )
    return TrainingDraws(draws, credit_nk, order)
