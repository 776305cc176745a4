"""Which of several answers is right, and whether another one is worth its price.

Answers are drawn one after another. After each draw, every answer so far has a probability of
being right: logistic regression on how many agree and who they are. What agreement is worth
whoever agrees is shrunk towards what it was worth on other pools (`agreement`); what each worker's
word is worth beyond that is learned from the pool's own labels, where these bear it. The likeliest
answer leads. Whether to draw again is a question of optimal stopping, solved backwards by
regression as in Longstaff and Schwartz, "Valuing American Options by Simulation" (2001): what
going on won on the training questions, less the price of its draws, is regressed on what is known
by then, and the draws end where it is not positive.

Axes: n questions, k draws, m workers, f inputs.
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
"""Expected credits are held this far from 0 and 1."""
_STOP_PENALTY = 20.0
"""How many questions the shipped stopping rule counts as."""


def log_odds(expected_nm: Floats) -> Floats:
    """Expected credit as log-odds."""
    held = np.clip(expected_nm, CREDIT_MARGIN, 1 - CREDIT_MARGIN)
    return np.log(held / (1 - held))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawOrder:
    """Who is asked next: who is expected to earn most, less what counts against it."""

    again: float
    """Credit that a worker counts less for each draw that it had."""
    thrift: float = 0.0
    """Credit that a worker counts less for each call's worth of money."""

    def next_worker(
        self, expected_nm: Floats, drawn_nm: Integers, most_nm: Integers, calls_worth_m: Floats
    ) -> Integers:
        """Who is drawn next for each question, (n,); -1: nobody is left.

        Args:
            expected_nm: expected credit.
            drawn_nm: how often each worker was drawn.
            most_nm: how often each worker may be drawn.
            calls_worth_m: what each worker's call costs, in calls of usual cost.
        """
        liked_nm = expected_nm - self.again * drawn_nm - self.thrift * calls_worth_m
        merit_nm = np.where(drawn_nm < most_nm, liked_nm, -np.inf)
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
    cost_m: Floats
    """What a call of each worker costs, in credit."""
    collisions: float
    """How often two wrong answers are the same."""
    evidence_nk: Floats | None = None
    """What checks add to the log-odds that each answer is right; None: nothing."""

    def posterior_inputs(self, count: int, *, named: bool) -> Floats:
        """What is known of each of the first draws, (n, count, f).

        Args:
            count: how many draws.
            named: whether the workers are told apart; else only their agreement counts.
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
        """What the decision to draw `next_n` after so many draws rests on, (n, g)."""
        who_n = np.maximum(next_n, 0)
        again_n = (self.worker_nk[:, :count] == who_n[:, None]).any(axis=1)
        general = stopping_inputs(
            found.sure_n,
            found.rival_n,
            self.odds_nm,
            next_n=who_n,
            cost_n=self.cost_m[who_n],
            again_n=again_n,
        )
        return np.column_stack([general, self.odds_nm]) if named else general


@dataclass(frozen=True, slots=True, eq=False)
class LeadingAnswer:
    """Who leads after some draws."""

    draw_n: Integers
    """The first draw that gave the leading answer."""
    sure_n: Floats
    """Its probability of being right."""
    rival_n: Floats
    """That of the likeliest other answer; 0: there is none."""


def find_leading_answer(draws: AnswerDraws, sure_nk: Floats, margin: float) -> LeadingAnswer:
    """Who leads among the first draws; no answer leads only where there is no other.

    Args:
        draws: the answers.
        sure_nk: the probability that each of the first draws' answers is right.
        margin: by how much likelier another answer must be than one that the best worker gave.
    """
    count = sure_nk.shape[1]
    answer_nk, worker_nk = draws.answer_nk[:, :count], draws.worker_nk[:, :count]
    rank_nk = np.where(answer_nk >= 0, sure_nk, sure_nk - 2)
    rows = np.arange(len(rank_nk))
    best_nk = worker_nk == draws.odds_nm.argmax(axis=1)[:, None]
    first_n = np.where(best_nk, rank_nk, -np.inf).argmax(axis=1)
    held_n = best_nk.any(axis=1) & (answer_nk[rows, first_n] >= 0)
    its_nk = held_n[:, None] & (answer_nk == answer_nk[rows, first_n][:, None])
    draw_n = (rank_nk + margin * its_nk).argmax(axis=1)
    other_nk = (answer_nk != answer_nk[rows, draw_n][:, None]) & (answer_nk >= 0)
    rival_n = np.where(other_nk, sure_nk, 0).max(axis=1)
    return LeadingAnswer(draw_n, sure_nk[rows, draw_n], rival_n)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AnswerPosterior:
    """How answers are weighed and when there are enough."""

    weights_kf: Floats
    """Of the answers, by number of draws, from one."""
    onward_kg: Floats
    """Of the state, by number of draws; the sum is what drawing again is expected to win."""
    order: DrawOrder
    margin: float = 0.0
    """As in `find_leading_answer`."""

    @property
    def named(self) -> bool:
        """Whether it tells the workers apart."""
        return self.weights_kf.shape[1] > len(AGREEMENT_INPUTS)

    def lead(self, draws: AnswerDraws, count: int) -> LeadingAnswer:
        """Who leads after so many draws."""
        inputs = draws.posterior_inputs(count, named=self.named)
        odds_nk: Floats = inputs @ self.weights_kf[count - 1]
        if draws.evidence_nk is not None:
            odds_nk = odds_nk + draws.evidence_nk[:, :count]
        sure_nk = apply_logistic(odds_nk)
        return find_leading_answer(draws, sure_nk, self.margin)

    def goes_on(
        self, draws: AnswerDraws, found: LeadingAnswer, count: int, next_n: Integers
    ) -> NDArray[np.bool_]:
        """Whether to draw `next_n` after so many draws, (n,)."""
        named = self.onward_kg.shape[1] > len(STOPPING_INPUTS)
        state = draws.stopping_state(found, count, next_n, named=named)
        return (state @ self.onward_kg[count - 1] > 0) & (next_n >= 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PosteriorForm:
    """How freely the weights follow a pool's own labels."""

    named: bool
    """Whether what each worker's word is worth is learned."""
    agreement_penalty: float
    """Questions that the shipped weights of agreement count as."""
    margin: float = 0.0
    """As in `find_leading_answer`."""
    named_penalty: float = 10.0
    """Ridge of the weights of single workers, in questions."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingDraws:
    """Training questions all of whose draws are known."""

    draws: AnswerDraws
    credit_nk: Floats
    """What each draw's answer earns."""
    order: DrawOrder

    def next_n(self, count: int) -> Integers:
        """Who is drawn after so many draws; -1: nobody."""
        if count >= self.credit_nk.shape[1]:
            return np.full(len(self.credit_nk), -1)
        return self.draws.worker_nk[:, count]

    def draw_costs_nk(self) -> Floats:
        """What each draw costs, in credit; 0 where nobody is drawn."""
        worker_nk = self.draws.worker_nk
        return np.where(worker_nk >= 0, self.draws.cost_m[worker_nk], 0.0)

    def simulate_stopping(self, belief: AnswerPosterior) -> tuple[Floats, Integers]:
        """What the belief earns on each question, and how many draws it makes, (n,)."""
        most = self.credit_nk.shape[1]
        earned_n, draws_n = np.zeros(len(self.credit_nk)), np.zeros(len(self.credit_nk), int)
        for count in range(1, most + 1):
            found = belief.lead(self.draws, count)
            goes_n = belief.goes_on(self.draws, found, count, self.next_n(count))
            rows = np.flatnonzero((draws_n == 0) & ~goes_n)
            earned_n[rows] = self.credit_nk[rows, found.draw_n[rows]]
            draws_n[rows] = count
        return earned_n, draws_n

    def cross_fit(
        self, half_n: Integers, form: PosteriorForm, prior: AgreementPrior
    ) -> tuple[Floats, ...]:
        """How sure each answer is, (n, count), after each number of draws from one.

        Args:
            half_n: 0 or 1; each half is judged by a regression on the other one.
            form: how freely the weights follow the labels.
            prior: what they are shrunk towards.
        """
        found: list[Floats] = []
        for count in _draw_counts(self.credit_nk.shape[1]):
            inputs = self.draws.posterior_inputs(count, named=form.named)
            sure_nk = np.empty(inputs.shape[:2])
            for half in (0, 1):
                ours = half_n == half
                weights_f = _fit_weights(inputs[~ours], self.credit_nk[~ours], form, prior)
                sure_nk[ours] = apply_logistic(inputs[ours] @ weights_f)
            found.append(sure_nk)
        return tuple(found)

    def stop(
        self,
        sure_by_count: Sequence[Floats],
        half_n: Integers,
        form: PosteriorForm,
        prior: AgreementPrior,
    ) -> tuple[Floats, HeldOutCredit]:
        """The stopping rule (k, g), and what it earns where it was not fitted.

        Args:
            sure_by_count: as `cross_fit` gives it.
            half_n: 0 or 1; each half is judged by regressions on the other one.
            form: how the weights were fitted.
            prior: what the rule is shrunk towards.
        """
        most, rows = self.credit_nk.shape[1], np.arange(len(half_n))
        found = [find_leading_answer(self.draws, sure, form.margin) for sure in sure_by_count]
        earned = [self.credit_nk[rows, one.draw_n] for one in found]
        cost_nk = self.draw_costs_nk()
        width = len(STOPPING_INPUTS) + (self.draws.odds_nm.shape[1] if form.named else 0)
        onward_kg = np.zeros((most, width))
        earned_n, spent_n, draws_n = earned[-1], np.zeros(len(rows)), np.full(len(rows), most)
        for count in reversed(_draw_counts(most - 1)):
            next_n, now_n = self.next_n(count), earned[count - 1]
            state = self.draws.stopping_state(found[count - 1], count, next_n, named=form.named)
            win_n = earned_n - spent_n - cost_nk[:, count] - now_n
            centre = _pad_with_zeros(prior.onward(count), width)
            onward_kg[count - 1] = fit_linear(state, win_n, centre, _STOP_PENALTY)
            goes_n = (_cross_fit_gain(state, win_n, half_n, centre) > 0) & (next_n >= 0)
            spent_n = np.where(goes_n, spent_n + cost_nk[:, count], 0)
            earned_n = np.where(goes_n, earned_n, now_n)
            draws_n = np.where(goes_n, draws_n, count)
        return onward_kg, HeldOutCredit(earned_n, spent_n + cost_nk[:, 0], draws_n)

    def fit_weights(self, form: PosteriorForm, prior: AgreementPrior) -> Floats:
        """The weights of the answers, by number of draws, on all questions: (k, f)."""
        return np.stack(
            [
                _fit_weights(
                    self.draws.posterior_inputs(count, named=form.named),
                    self.credit_nk,
                    form,
                    prior,
                )
                for count in _draw_counts(self.credit_nk.shape[1])
            ]
        )


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutCredit:
    """What a way of drawing and stopping earned on questions that did not shape it."""

    earned_n: Floats
    spent_n: Floats
    """What its draws cost, in credit."""
    draws_n: Integers

    @property
    def value(self) -> float:
        """Credit less cost, the mean."""
        return float((self.earned_n - self.spent_n).mean())


def collision_rate(answers_qms: Integers, credit_qms: Floats) -> float:
    """How often the wrong first answers of two workers are the same; a half if none is known."""
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
    """The shipped numbers, and 0 for what is learned of single workers."""
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
    """What drawing again is expected to win, judged by the other half."""
    expected_n = np.empty(len(win_n))
    for half in (0, 1):
        ours = half_n == half
        expected_n[ours] = state_ng[ours] @ fit_linear(
            state_ng[~ours], win_n[~ours], centre_g, _STOP_PENALTY
        )
    return expected_n
