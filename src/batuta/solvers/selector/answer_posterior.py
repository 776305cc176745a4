"""Which of several answers is right, and whether another one is worth its price.

Answers are drawn one after another. After each draw, every answer so far has a probability of
being right: logistic regression on who gave it, who gave another, and what each of them was
expected to earn on the question. The likeliest leads. Whether to draw again is a question of
optimal stopping, solved backwards by regression as in Longstaff and Schwartz, "Valuing American
Options by Simulation" (2001): what going on won on the training questions, less the price of its
draws, is regressed on what is known by then, and the draws end where it is not positive.

Axes: n questions, k draws, m workers, f inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.signedinteger[Any]]

CREDIT_MARGIN = 0.03
"""Expected credits are held this far from 0 and 1."""
_PENALTY = 10.0
"""Ridge of the regressions, in questions."""
_NEWTON_STEPS = 8
"""Newton steps."""
_STOP_PENALTY = 1.0
"""Ridge of the stopping regressions, in questions."""


def log_odds(expected_nm: Floats) -> Floats:
    """Expected credit as log-odds."""
    held = np.clip(expected_nm, CREDIT_MARGIN, 1 - CREDIT_MARGIN)
    return np.log(held / (1 - held))


def next_worker(
    expected_nm: Floats, drawn_nm: Integers, most_nm: Integers, again: float
) -> Integers:
    """Who is drawn next for each question, (n,); -1: nobody is left.

    Args:
        expected_nm: expected credit.
        drawn_nm: how often each worker was drawn.
        most_nm: how often each worker may be drawn.
        again: what a worker's expected credit is less for each draw that it had.
    """
    merit_nm = np.where(drawn_nm < most_nm, expected_nm - again * drawn_nm, -np.inf)
    first_n = merit_nm.argmax(axis=1)
    left_n = np.isfinite(merit_nm[np.arange(len(first_n)), first_n])
    return np.where(left_n, first_n, -1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AnswerDraws:
    """Answers in the order in which they were drawn."""

    worker_nk: Integers
    """-1: nobody was left."""
    answer_nk: Integers
    """Equal numbers: equal answers. -1: no answer."""
    odds_nm: Floats
    evidence_nk: Floats | float = 0.0
    """What checks add to the log-odds that each answer is right."""

    def posterior_inputs(self, count: int) -> Floats:
        """What is known of each of the first draws, (n, count, f)."""
        worker_nk, answer_nk = self.worker_nk[:, :count], self.answer_nk[:, :count]
        rows = np.arange(len(worker_nk))[:, None]
        there_nk1 = (worker_nk >= 0)[:, :, None]
        odds_nk1 = np.where(there_nk1, self.odds_nm[rows, worker_nk][:, :, None], 0)
        who_nkm = np.eye(self.odds_nm.shape[1])[worker_nk] * there_nk1
        same_nkk = (answer_nk[:, :, None] == answer_nk[:, None, :]) & (answer_nk >= 0)[:, :, None]
        said_nkm = np.concatenate([who_nkm, who_nkm * odds_nk1], axis=2)
        support_nk = same_nkk @ np.log1p(np.exp(odds_nk1))
        return np.concatenate(
            [
                same_nkk @ said_nkm,
                ~same_nkk @ said_nkm,
                odds_nk1,
                (answer_nk < 0)[:, :, None].astype(np.float64),
                support_nk,
                support_nk - support_nk.max(axis=1, keepdims=True),
                np.ones((*answer_nk.shape, 1)),
            ],
            axis=2,
        )


@dataclass(frozen=True, slots=True, eq=False)
class LeadingAnswer:
    """Who leads after some draws."""

    draw_n: Integers
    """The first draw that gave the leading answer."""
    sure_n: Floats
    """Its probability of being right."""
    rival_n: Floats
    """That of the likeliest other answer; 0: there is none."""

    def stopping_state(self, odds_nm: Floats) -> Floats:
        """What the decision to draw again rests on, (n, g)."""
        return np.column_stack(
            [
                np.ones(len(self.sure_n)),
                self.sure_n,
                self.sure_n**2,
                self.rival_n,
                self.sure_n * self.rival_n,
                odds_nm.max(axis=1),
                odds_nm,
            ]
        )


def find_leading_answer(
    inputs_nkf: Floats, answer_nk: Integers, weights_f: Floats, evidence_nk: Floats | float = 0.0
) -> LeadingAnswer:
    """Who leads, by these weights; no answer leads only where there is no other."""
    sure_nk = _apply_logistic(inputs_nkf @ weights_f + evidence_nk)
    rank_nk = np.where(answer_nk >= 0, sure_nk, sure_nk - 1)
    rows, draw_n = np.arange(len(rank_nk)), rank_nk.argmax(axis=1)
    other_nk = (answer_nk != answer_nk[rows, draw_n][:, None]) & (answer_nk >= 0)
    rival_n = np.where(other_nk, sure_nk, 0).max(axis=1)
    return LeadingAnswer(draw_n, sure_nk[rows, draw_n], rival_n)


@dataclass(frozen=True, slots=True, eq=False)
class AnswerPosterior:
    """How answers are weighed and when there are enough."""

    weights_kf: Floats
    """Of the answers, by number of draws, from one."""
    onward_kg: Floats
    """Of the state, by number of draws; the sum is what drawing again is expected to win."""
    again: float
    """As in `next_worker`."""

    def judge(self, draws: AnswerDraws, count: int) -> tuple[LeadingAnswer, NDArray[np.bool_]]:
        """After so many draws: who leads, and whether to draw again, (n,)."""
        answer_nk = draws.answer_nk[:, :count]
        found = find_leading_answer(
            draws.posterior_inputs(count), answer_nk, self.weights_kf[count - 1], draws.evidence_nk
        )
        return found, found.stopping_state(draws.odds_nm) @ self.onward_kg[count - 1] > 0


@dataclass(frozen=True, slots=True, eq=False)
class TrainingDraws:
    """Training questions all of whose draws are known."""

    draws: AnswerDraws
    credit_nk: Floats
    """What each draw's answer earns."""
    again: float

    def simulate_stopping(self, belief: AnswerPosterior) -> tuple[Floats, Integers]:
        """What the belief earns on each question, and how many draws it makes, (n,)."""
        most = self.credit_nk.shape[1]
        earned_n, draws_n = np.zeros(len(self.credit_nk)), np.zeros(len(self.credit_nk), int)
        for count in range(1, most + 1):
            found, goes_n = belief.judge(self.draws, count)
            left_n = goes_n & (self.draws.worker_nk[:, min(count, most - 1)] >= 0)
            ends_n = (draws_n == 0) & (~left_n | (count == most))
            rows = np.flatnonzero(ends_n)
            earned_n[rows] = self.credit_nk[rows, found.draw_n[rows]]
            draws_n[rows] = count
        return earned_n, draws_n

    def fit_posterior(self, half_n: Integers, price: float) -> tuple[AnswerPosterior, float]:
        """The belief, and what it earned on held-out halves, less `price` a draw.

        Args:
            half_n: 0 or 1; each half is judged by regressions on the other one.
            price: credit that a draw is worth.
        """
        most = self.credit_nk.shape[1]
        inputs = [self.draws.posterior_inputs(count) for count in range(1, most + 1)]
        tried = [self._cross_fit_leader(one, half_n) for one in inputs]
        states = [found.stopping_state(self.draws.odds_nm) for found, _ in tried]
        onward = np.zeros((most, states[0].shape[1]))
        value_n = tried[-1][1]
        for place in reversed(range(most - 1)):
            earned_n = tried[place][1]
            win_n = value_n - price - earned_n
            onward[place] = _fit_linear(states[place], win_n)
            goes_n = _cross_fit_gain(states[place], win_n, half_n)
            value_n = np.where(goes_n > 0, value_n - price, earned_n)
        if value_n.mean() <= tried[0][1].mean():
            onward[:] = 0
            value_n = tried[0][1]
        weights = [
            _fit_logistic(one, self.credit_nk[:, : place + 1]) for place, one in enumerate(inputs)
        ]
        return AnswerPosterior(np.stack(weights), onward, self.again), float(value_n.mean()) - price

    def _cross_fit_leader(
        self, inputs_nkf: Floats, half_n: Integers
    ) -> tuple[LeadingAnswer, Floats]:
        """Who leads, judged by the other half, and what it earns."""
        count = inputs_nkf.shape[1]
        credit_nk, answer_nk = self.credit_nk[:, :count], self.draws.answer_nk[:, :count]
        draw_n = np.zeros(len(credit_nk), np.int64)
        sure_n, rival_n = np.zeros((2, len(credit_nk)))
        for half in (0, 1):
            ours = half_n == half
            weights_f = _fit_logistic(inputs_nkf[~ours], credit_nk[~ours])
            found = find_leading_answer(inputs_nkf[ours], answer_nk[ours], weights_f)
            draw_n[ours], sure_n[ours], rival_n[ours] = found.draw_n, found.sure_n, found.rival_n
        earned_n = credit_nk[np.arange(len(draw_n)), draw_n]
        return LeadingAnswer(draw_n, sure_n, rival_n), earned_n


def _cross_fit_gain(state_ng: Floats, win_n: Floats, half_n: Integers) -> Floats:
    """What drawing again is expected to win, judged by the other half."""
    expected_n = np.empty(len(win_n))
    for half in (0, 1):
        ours = half_n == half
        expected_n[ours] = state_ng[ours] @ _fit_linear(state_ng[~ours], win_n[~ours])
    return expected_n


def _fit_linear(state_ng: Floats, win_n: Floats) -> Floats:
    """Ridge regression of what drawing again won: (g,)."""
    ridge = _STOP_PENALTY * np.eye(state_ng.shape[1])
    return np.linalg.solve(state_ng.T @ state_ng + ridge, state_ng.T @ win_n)


def _fit_logistic(inputs_nkf: Floats, credit_nk: Floats) -> Floats:
    """Logistic regression of credit, with ridge, by Newton's method: (f,)."""
    x_rf = inputs_nkf.reshape(-1, inputs_nkf.shape[2])
    y_r = credit_nk.reshape(-1)
    weights_f, ridge = np.zeros(x_rf.shape[1]), _PENALTY * np.eye(x_rf.shape[1])
    for _ in range(_NEWTON_STEPS):
        sure_r = _apply_logistic(x_rf @ weights_f)
        slope_f = x_rf.T @ (sure_r - y_r) + _PENALTY * weights_f
        curve_ff = (x_rf * (sure_r * (1 - sure_r))[:, None]).T @ x_rf + ridge
        weights_f -= np.linalg.solve(curve_ff, slope_f)
    return weights_f


def _apply_logistic(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))
