"""The probability that each of several answers is correct, and whether to draw another answer.

Answers are drawn one after another. After each draw, a logistic regression on agreement and on the
workers gives every answer a probability of being correct. The weights of agreement are shrunk
towards those of other pools (`agreement`); the weights of single workers are learned from the
pool's own labels if there are enough. The likeliest answer leads. Whether to draw again is a
problem of optimal stopping, solved backwards by regression as in Longstaff and Schwartz, "Valuing
American Options by Simulation" (2001): the gain of continuing on the training questions, less the
price of the draws, is regressed on the state; draws end where the predicted gain is not positive.

Credit is the score of an answer, from 0 to 1; the costs of calls are in credit too.

Axes: n questions, q questions of a history, k draws, m workers, s samples of a worker, f inputs of
the probability, g inputs of the stopping rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.lab.learners.agreement import (
    AGREEMENT_INPUTS,
    STOPPING_INPUTS,
    AgreementPrior,
    agreement_inputs,
    stopping_inputs,
)
from batuta.lab.learners.regression import apply_logistic, fit_linear, fit_logistic

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.signedinteger[Any]]

CREDIT_MARGIN = 0.03
"""Expected credits are kept this far from 0 and 1."""
_STOP_PENALTY = 20.0
"""Prior strength of the shipped stopping rule, in pseudo-observations (questions)."""


def log_odds(expected_nm: Floats) -> Floats:
    """Return expected credits as log-odds."""
    clipped = np.clip(expected_nm, CREDIT_MARGIN, 1 - CREDIT_MARGIN)
    return np.log(clipped / (1 - clipped))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawOrder:
    """The order of draws: next comes the worker with the highest expected credit less penalties."""

    again: float
    """The penalty, in credit, for each earlier draw of the same worker."""
    thrift: float = 0.0
    """The penalty, in credit, for a call of average cost."""

    def next_worker(
        self, expected_nm: Floats, drawn_nm: Integers, most_nm: Integers, calls_worth_m: Floats
    ) -> Integers:
        """Return the worker to draw next for each question, (n,); -1 if no worker may be drawn.

        `drawn_nm` is how often each worker was drawn, `most_nm` how often it may be drawn.
        `calls_worth_m` is each worker's cost as a multiple of the average call.
        """
        value_nm = expected_nm - self.again * drawn_nm - self.thrift * calls_worth_m
        merit_nm = np.where(drawn_nm < most_nm, value_nm, -np.inf)
        first_n = merit_nm.argmax(axis=1)
        left_n = np.isfinite(merit_nm[np.arange(len(first_n)), first_n])
        return np.where(left_n, first_n, -1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AnswerDraws:
    """Answers in the order in which they were drawn."""

    worker_nk: Integers
    """The worker of each draw; -1 if there was no draw."""
    answer_nk: Integers
    """Codes of the answers, equal for equal answers; -1 for no answer."""
    odds_nm: Floats
    """Expected credit of each worker before any draw, as log-odds."""
    cost_m: Floats
    """The cost of a call of each worker, in credit."""
    collisions: float
    """The rate at which two wrong answers are equal."""
    evidence_nk: Floats | None = None
    """Log-odds that checks of each answer add; None if answers are not checked."""

    def posterior_inputs(self, count: int, *, named: bool) -> Floats:
        """Return the inputs of each of the first `count` draws, (n, count, f).

        With `named` they include inputs of single workers.
        """
        worker_nk, answer_nk = self.worker_nk[:, :count], self.answer_nk[:, :count]
        general = agreement_inputs(worker_nk, answer_nk, self.odds_nm, self.collisions)
        if not named:
            return general
        rows = np.arange(len(worker_nk))[:, None]
        there_nk1 = (worker_nk >= 0)[:, :, None]
        odds_nk1 = np.where(there_nk1, self.odds_nm[rows, worker_nk][:, :, None], 0)
        who_nkm = np.eye(self.odds_nm.shape[1])[worker_nk] * there_nk1
        same_nkk = (answer_nk[:, :, None] == answer_nk[:, None, :]) & (answer_nk >= 0)[:, :, None]
        said_nkm = np.concatenate([who_nkm, who_nkm * odds_nk1], axis=2)
        support_nk = same_nkk @ np.log1p(np.exp(odds_nk1))
        return np.concatenate(
            [
                general,
                same_nkk @ said_nkm,
                ~same_nkk @ said_nkm,
                odds_nk1,
                support_nk,
                support_nk - support_nk.max(axis=1, keepdims=True),
            ],
            axis=2,
        )

    def stopping_state(
        self, found: LeadingAnswer, count: int, next_n: Integers, *, named: bool
    ) -> Floats:
        """Return the inputs of the decision to draw `next_n` after `count` draws, (n, g)."""
        who_n = np.maximum(next_n, 0)
        again_n = (self.worker_nk[:, :count] == who_n[:, None]).any(axis=1)
        general = stopping_inputs(
            found.prob_n,
            found.rival_n,
            self.odds_nm,
            next_n=who_n,
            cost_n=self.cost_m[who_n],
            again_n=again_n,
        )
        return np.column_stack([general, self.odds_nm]) if named else general


@dataclass(frozen=True, slots=True, eq=False)
class LeadingAnswer:
    """The leading answer after some draws."""

    draw_n: Integers
    """The first draw that gave the leading answer."""
    prob_n: Floats
    """The probability that the leading answer is correct."""
    rival_n: Floats
    """The probability of the likeliest other answer; 0 if there is none."""


def find_leading_answer(draws: AnswerDraws, prob_nk: Floats, margin: float) -> LeadingAnswer:
    """Find the leading answer among the draws that `prob_nk` has.

    A draw without an answer leads only if all draws have none. Another answer leads only if its
    probability exceeds that of the best worker's answer by more than `margin`.
    """
    count = prob_nk.shape[1]
    answer_nk, worker_nk = draws.answer_nk[:, :count], draws.worker_nk[:, :count]
    rank_nk = np.where(answer_nk >= 0, prob_nk, prob_nk - 2)
    rows = np.arange(len(rank_nk))
    best_nk = worker_nk == draws.odds_nm.argmax(axis=1)[:, None]
    first_n = np.where(best_nk, rank_nk, -np.inf).argmax(axis=1)
    held_n = best_nk.any(axis=1) & (answer_nk[rows, first_n] >= 0)
    best_given_nk = held_n[:, None] & (answer_nk == answer_nk[rows, first_n][:, None])
    draw_n = (rank_nk + margin * best_given_nk).argmax(axis=1)
    other_nk = (answer_nk != answer_nk[rows, draw_n][:, None]) & (answer_nk >= 0)
    rival_n = np.where(other_nk, prob_nk, 0).max(axis=1)
    return LeadingAnswer(draw_n, prob_nk[rows, draw_n], rival_n)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AnswerPosterior:
    """The fitted weights of answers and of the stopping rule."""

    weights_kf: Floats
    """Weights of the answers' inputs, a row for each number of draws from one."""
    onward_kg: Floats
    """Weights of the stopping rule's inputs, a row for each number of draws from one. Their product
    with the inputs is the expected gain of drawing again, in credit."""
    order: DrawOrder
    margin: float = 0.0
    """The margin of `find_leading_answer`."""

    @property
    def named(self) -> bool:
        """True if there are weights of single workers for the answers."""
        return self.weights_kf.shape[1] > len(AGREEMENT_INPUTS)

    def lead(self, draws: AnswerDraws, count: int) -> LeadingAnswer:
        """Return the leading answer after `count` draws."""
        inputs = draws.posterior_inputs(count, named=self.named)
        odds_nk: Floats = inputs @ self.weights_kf[count - 1]
        if draws.evidence_nk is not None:
            odds_nk = odds_nk + draws.evidence_nk[:, :count]
        prob_nk = apply_logistic(odds_nk)
        return find_leading_answer(draws, prob_nk, self.margin)

    def should_continue(
        self, draws: AnswerDraws, found: LeadingAnswer, count: int, next_n: Integers
    ) -> NDArray[np.bool_]:
        """Return whether to draw the worker `next_n` after `count` draws, (n,)."""
        named = self.onward_kg.shape[1] > len(STOPPING_INPUTS)
        state = draws.stopping_state(found, count, next_n, named=named)
        return (state @ self.onward_kg[count - 1] > 0) & (next_n >= 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PosteriorForm:
    """Settings of the fit, which determine how closely weights follow a pool's own labels."""

    named: bool
    """True if weights of single workers are learned."""
    agreement_penalty: float
    """Prior strength of the shipped agreement weights, in pseudo-observations (questions)."""
    margin: float = 0.0
    """The margin of `find_leading_answer`."""
    named_penalty: float = 10.0
    """The ridge penalty of the weights of single workers, in pseudo-observations."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingDraws:
    """Training questions with all of their draws."""

    draws: AnswerDraws
    credit_nk: Floats
    """The credit of each draw's answer."""
    order: DrawOrder

    def next_n(self, count: int) -> Integers:
        """Return the worker of the draw after `count` draws, (n,); -1 if there is none."""
        if count >= self.credit_nk.shape[1]:
            return np.full(len(self.credit_nk), -1)
        return self.draws.worker_nk[:, count]

    def draw_costs_nk(self) -> Floats:
        """Return the cost of each draw, in credit; 0 where no worker is drawn."""
        worker_nk = self.draws.worker_nk
        return np.where(worker_nk >= 0, self.draws.cost_m[worker_nk], 0.0)

    def simulate_stopping(self, belief: AnswerPosterior) -> tuple[Floats, Integers]:
        """Return each question's credit and number of draws by the stopping rule, both (n,)."""
        most = self.credit_nk.shape[1]
        earned_n, draws_n = np.zeros(len(self.credit_nk)), np.zeros(len(self.credit_nk), int)
        for count in _draw_counts(most):
            found = belief.lead(self.draws, count)
            continues_n = belief.should_continue(self.draws, found, count, self.next_n(count))
            rows = np.flatnonzero((draws_n == 0) & ~continues_n)
            earned_n[rows] = self.credit_nk[rows, found.draw_n[rows]]
            draws_n[rows] = count
        return earned_n, draws_n

    def cross_fit(
        self, half_n: Integers, form: PosteriorForm, prior: AgreementPrior
    ) -> tuple[Floats, ...]:
        """Return each answer's probability, (n, count), after each number of draws from one.

        `half_n` is 0 or 1 for each question. Each half is predicted by a regression on the other,
        with weights that are shrunk towards the prior.
        """
        found: list[Floats] = []
        for count in _draw_counts(self.credit_nk.shape[1]):
            inputs = self.draws.posterior_inputs(count, named=form.named)
            prob_nk = np.empty(inputs.shape[:2])
            for half in (0, 1):
                ours = half_n == half
                weights_f = _fit_weights(inputs[~ours], self.credit_nk[~ours], form, prior)
                prob_nk[ours] = apply_logistic(inputs[ours] @ weights_f)
            found.append(prob_nk)
        return tuple(found)

    def stop(
        self,
        probabilities: Sequence[Floats],
        half_n: Integers,
        form: PosteriorForm,
        prior: AgreementPrior,
    ) -> tuple[Floats, HeldOutCredit]:
        """Return the stopping rule, (k, g), and its credit on questions to which it was not fitted.

        `probabilities` is what `cross_fit` returned for the same halves and form.
        """
        most, rows = self.credit_nk.shape[1], np.arange(len(half_n))
        found = [find_leading_answer(self.draws, prob_nk, form.margin) for prob_nk in probabilities]
        earned = [self.credit_nk[rows, one.draw_n] for one in found]
        cost_nk = self.draw_costs_nk()
        width = len(STOPPING_INPUTS) + (self.draws.odds_nm.shape[1] if form.named else 0)
        onward_kg = np.zeros((most, width))
        earned_n, spent_n = earned[-1], np.zeros(len(rows))
        for count in reversed(_draw_counts(most - 1)):
            next_n, now_n = self.next_n(count), earned[count - 1]
            state = self.draws.stopping_state(found[count - 1], count, next_n, named=form.named)
            win_n = earned_n - spent_n - cost_nk[:, count] - now_n
            centre = _pad_with_zeros(prior.onward(count), width)
            onward_kg[count - 1] = fit_linear(state, win_n, centre, _STOP_PENALTY)
            continues_n = (_cross_fit_gain(state, win_n, half_n, centre) > 0) & (next_n >= 0)
            spent_n = np.where(continues_n, spent_n + cost_nk[:, count], 0)
            earned_n = np.where(continues_n, earned_n, now_n)
        return onward_kg, HeldOutCredit(earned_n, spent_n + cost_nk[:, 0])

    def fit_weights(self, form: PosteriorForm, prior: AgreementPrior) -> Floats:
        """Return the weights of the answers by number of draws, fitted on all questions: (k, f)."""
        counts = _draw_counts(self.credit_nk.shape[1])
        inputs = (self.draws.posterior_inputs(count, named=form.named) for count in counts)
        return np.stack([_fit_weights(each, self.credit_nk, form, prior) for each in inputs])


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutCredit:
    """The credit and cost of each question under a rule that was not fitted to the question."""

    earned_n: Floats
    spent_n: Floats
    """The cost of the draws, in credit."""

    @property
    def value(self) -> float:
        """Mean credit less cost."""
        return float((self.earned_n - self.spent_n).mean())


def collision_rate(answers_qms: Integers, credit_qms: Floats) -> float:
    """Return how often the wrong first answers of two workers are equal, in (0, 1).

    An answer is wrong if its credit is below `CREDIT_MARGIN`. Two pairs, one of them equal, are
    added, so the rate without any pair is 1/2.
    """
    answer_qm, credit_qm = answers_qms[:, :, 0], credit_qms[:, :, 0]
    wrong_qm = (credit_qm < CREDIT_MARGIN) & (answer_qm >= 0)
    alike, pairs = 1.0, 2.0
    for m in range(1, answer_qm.shape[1]):
        both_qm = wrong_qm[:, m:] & wrong_qm[:, :-m]
        pairs += float(both_qm.sum())
        alike += float((both_qm & (answer_qm[:, m:] == answer_qm[:, :-m])).sum())
    return alike / pairs


def _draw_counts(most: int) -> range:
    return range(1, most + 1)


def _pad_with_zeros(prior_f: Floats, width: int) -> Floats:
    """Return the prior's weights, with zeros for the weights of single workers."""
    return np.concatenate([prior_f, np.zeros(width - len(prior_f))])


def _fit_weights(
    inputs_nkf: Floats, credit_nk: Floats, form: PosteriorForm, prior: AgreementPrior
) -> Floats:
    count, width = inputs_nkf.shape[1:]
    shipped_f = prior.weights(count)
    penalty_f = np.full(width, form.named_penalty)
    penalty_f[: len(shipped_f)] = form.agreement_penalty
    return fit_logistic(
        inputs_nkf, credit_nk[:, :count], _pad_with_zeros(shipped_f, width), penalty_f
    )


def _cross_fit_gain(state_ng: Floats, win_n: Floats, half_n: Integers, centre_g: Floats) -> Floats:
    """Return the expected gain of drawing again, (n,), predicted by fits to the other half."""
    expected_n = np.empty(len(win_n))
    for half in (0, 1):
        ours = half_n == half
        expected_n[ours] = state_ng[ours] @ fit_linear(
            state_ng[~ours], win_n[~ours], centre_g, _STOP_PENALTY
        )
    return expected_n
