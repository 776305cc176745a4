"""Fits the cascade to outcomes: the order of workers, the weights of agreement, the stopping rule.

A server calls `fit_cascade` when the first question to `baseline/cascade` arrives, unless it was
started with the folder of a fitted cascade.

A question is familiar if it is close to a training question, else strange. Each kind has its own
posterior. Strange questions are simulated by leaving out whole families. The questions are divided
into halves; what is fitted on one half is measured on the other.

Axes: n questions, m workers, k draws, s samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.selector import Selector
from batuta.errors import SourceError
from batuta.lab.baselines.cascade import Cascade, most_calls
from batuta.lab.baselines.checker import Checker
from batuta.lab.learners.agreement import AgreementPrior, load_shipped_prior
from batuta.lab.learners.answer_posterior import (
    AnswerPosterior,
    DrawOrder,
    HeldOutCredit,
    PosteriorForm,
    TrainingDraws,
    collision_rate,
)
from batuta.lab.learners.history import History
from batuta.lab.learners.selector_training import (
    SelectorRecipe,
    family_numbers,
    fit_selector,
    grouped_folds,
    held_out_values,
    random_folds,
    wins_on_families,
)
from batuta.lab.learners.simulated_draws import simulate_draws

PRICES = (0.02, 0.01, 0.005, 0.002, 0.001, 0.0005)
"""Prices to choose from, of a call of average cost, in credit; the highest first."""
_DEFAULT_PRICE = 0.002
"""The price if there are too few questions to choose one."""
_PRICE_TOLERANCE = 0.25
"""Standard errors by which a higher price may earn less than the best price."""
_REPEAT_PENALTIES = (0.0, 0.02, 0.1, 1.0)
"""Penalties for calling a worker again. With the first, the best worker is called as often as
possible; with the last, every worker is called once before any is called again."""
_COST_PENALTIES = (0.0, 0.05, 0.2, 1.0)
"""Penalties for a call's cost, as a multiple of the average call. With the last, workers that are
much cheaper come first."""
_FREE = PosteriorForm(named=False, agreement_penalty=30.0)
_FIRM = PosteriorForm(named=False, agreement_penalty=1000.0)
_NAMED = PosteriorForm(named=True, agreement_penalty=30.0)
"""The forms of the posterior that are tried; only `_NAMED` learns weights of single workers."""
_MARGINS = (0.0, 0.05, 0.15)
"""The margins of the posterior that are tried."""
_MARGIN_TOLERANCE = 0.0015
"""The credit that a wider margin may cost on unseen families."""
_MIN_FAMILIAR_QUESTIONS = 200
"""Minimum number of familiar training questions for a posterior of their own, or of questions for
choosing a price."""
_MAX_TRIED_QUESTIONS = 2500
"""Maximum number of questions on which orders, prices and forms are tried."""

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Lesson:
    """Training questions with their halves, and with predictions made before any answer."""

    history: History
    expected_nm: Floats
    """The predicted credit of each worker on each question."""
    half_n: Integers
    """The half of each question, 0 or 1."""
    family_n: Integers
    calls: int
    """Maximum number of answers to a question."""
    calls_worth_m: Floats
    """Each worker's cost as a multiple of the average call."""
    collisions: float
    """The rate at which two wrong answers are equal."""

    def select(self, rows: NDArray[np.intp]) -> _Lesson:
        """Return the lesson with some of the questions."""
        return replace(
            self,
            history=self.history.select(rows),
            expected_nm=self.expected_nm[rows],
            half_n=self.half_n[rows],
            family_n=self.family_n[rows],
        )

    def draw(self, order: DrawOrder, cost_m: Floats) -> TrainingDraws:
        """Return the draws of a cascade that never stops."""
        return simulate_draws(
            self.history,
            self.expected_nm,
            order,
            self.calls,
            cost_m=cost_m,
            calls_worth_m=self.calls_worth_m,
            collisions=self.collisions,
        )


def fit_cascade(
    history: History,
    recipe: SelectorRecipe | None = None,
    *,
    seed: int = 0,
    price: float | None = None,
    calls: int | None = None,
    selector: Selector | None = None,
    checker: Checker | None = None,
    prior: AgreementPrior | None = None,
) -> Cascade:
    """Fit a cascade to the history.

    `price` is the price of a call of average cost, in credit; None chooses it on the history's
    scores, or takes 0 if the recipe has a price of dollars. `calls` is the maximum number of calls
    for a question; None for `most_calls`. A `selector` must be fitted to this very history. The
    rates of the `checker` are not fitted here. `prior` replaces the shipped weights of agreement.

    Raises:
        SourceError: the history has no answers or too few questions, or it lacks costs that a price
            of dollars needs.
    """
    history, recipe = history.drop_unscored(), recipe or SelectorRecipe()
    if history.samples is None:
        raise SourceError(
            "a cascade needs the answers of each run: write answers and scores into the history"
        )
    selector = selector or fit_selector(history, recipe, seed=seed)
    prior = prior or load_shipped_prior()
    calls = most_calls(len(history.workers)) if calls is None else calls
    familiar, strange = _make_lessons(history, selector, seed, calls)
    usd_m = mean_usd_m(history, needed=recipe.dollar > 0)
    by_family, by_random = (_try_orders(one, prior, seed) for one in (strange, familiar))
    if price is None:
        price = 0.0 if recipe.dollar else _choose_price(by_random or by_family)
    cost_m = price * strange.calls_worth_m
    if recipe.dollar and usd_m is not None:
        cost_m = cost_m + recipe.dollar * usd_m
    unknown = _fit_posterior(strange, cost_m, by_family, (_FIRM,), is_familiar=False)
    known = unknown
    if familiar is not None:
        known = _fit_posterior(familiar, cost_m, by_random, (_NAMED,), is_familiar=True)
    most_m = (~np.isnan(history.samples.credit_qms)).sum(axis=2).max(axis=0)
    return Cascade(
        selector=selector,
        familiar=known,
        strange=unknown,
        most_m=tuple(int(m) for m in most_m),
        cost_m=tuple(float(cost) for cost in cost_m),
        calls_worth_m=tuple(float(worth) for worth in strange.calls_worth_m),
        collisions=strange.collisions,
        calls=calls,
        price=price,
        dollar=recipe.dollar,
        checker=checker,
    )


def mean_usd_m(history: History, *, needed: bool = False) -> Floats | None:
    """Return each worker's mean dollars per call, (m,); None if a worker's are unknown.

    Raises:
        SourceError: a worker's dollars are unknown, and they are `needed`.
    """
    known_qm = ~np.isnan(history.usd_qm)
    unknown = np.flatnonzero(~known_qm.any(axis=0))
    if not len(unknown):
        return np.where(known_qm, history.usd_qm, 0).sum(axis=0) / known_qm.sum(axis=0)
    if needed:
        raise SourceError(
            f"the cost of {history.workers[int(unknown[0])]}'s calls is unknown: write their usd "
            "into the history, or train without a price for dollars"
        )
    return None


def _calls_worth_m(history: History) -> Floats:
    """Return each worker's cost as a multiple of the average call; all 1 if dollars are unknown."""
    usd_m = mean_usd_m(history)
    if usd_m is None or not usd_m.any():
        return np.ones(len(history.workers))
    return usd_m / usd_m.mean()


def _make_lessons(
    history: History, selector: Selector, seed: int, calls: int
) -> tuple[_Lesson | None, _Lesson]:
    """Return the lessons of familiar and strange questions; None if too few are familiar."""
    rng = np.random.Generator(np.random.PCG64(seed))
    values, samples = selector.values, history.samples
    assert samples is not None  # noqa: S101 - fit_cascade refused it
    family_n = family_numbers(history, values.memory_nd, rng)
    strange = _Lesson(
        history=history,
        expected_nm=np.broadcast_to(values.mean_m, (len(family_n), len(values.mean_m))),
        half_n=(grouped_folds(family_n, rng) > 1).astype(int),
        family_n=family_n,
        calls=calls,
        calls_worth_m=_calls_worth_m(history),
        collisions=collision_rate(samples.answers_qms, samples.credit_qms),
    )
    fold_n = random_folds(len(family_n), rng)
    expected_nm, close_n = held_out_values(values, fold_n)
    rows = np.flatnonzero(close_n >= selector.guard.closeness)
    if len(rows) < _MIN_FAMILIAR_QUESTIONS:
        return None, strange
    held_nm = selector.guard.hold_back(expected_nm, int(values.mean_m.argmax()))
    known = replace(strange, expected_nm=held_nm, half_n=fold_n % 2)
    return known.select(rows), strange


def _list_orders(lesson: _Lesson) -> list[DrawOrder]:
    again = _REPEAT_PENALTIES if lesson.history.runs_qm.max() > 1 else _REPEAT_PENALTIES[-1:]
    thrifts = _COST_PENALTIES if np.ptp(lesson.calls_worth_m) > 0 else _COST_PENALTIES[:1]
    return [DrawOrder(again=one, thrift=thrift) for one in again for thrift in thrifts]


def _try_orders(lesson: _Lesson | None, prior: AgreementPrior, seed: int) -> tuple[_Attempt, ...]:
    """Try every order of draws, on a bounded number of questions; empty without a lesson."""
    if lesson is None:
        return ()
    part = _sample_questions(lesson, seed)
    return tuple(_make_attempt(part, order, _FREE, prior) for order in _list_orders(part))


def _sample_questions(lesson: _Lesson, seed: int) -> _Lesson:
    count = len(lesson.half_n)
    if count <= _MAX_TRIED_QUESTIONS:
        return lesson
    drawn = np.random.Generator(np.random.PCG64(seed)).permutation(count)
    return lesson.select(np.sort(drawn[:_MAX_TRIED_QUESTIONS]))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Attempt:
    """An order of draws and a form of the posterior, with probabilities on held-out questions."""

    lesson: _Lesson
    drawn: TrainingDraws
    form: PosteriorForm
    prior: AgreementPrior
    probabilities: tuple[Floats, ...]

    def fit_stopping(self, cost_m: Floats, margin: float = 0.0) -> tuple[Floats, HeldOutCredit]:
        """Return the stopping rule at these costs, and its credit on held-out questions."""
        draws = replace(self.drawn.draws, cost_m=cost_m)
        drawn = TrainingDraws(draws, self.drawn.credit_nk, self.drawn.order)
        form = replace(self.form, margin=margin)
        return drawn.stop(self.probabilities, self.lesson.half_n, form, self.prior)


def _make_attempt(
    lesson: _Lesson, order: DrawOrder, form: PosteriorForm, prior: AgreementPrior
) -> _Attempt:
    drawn = lesson.draw(order, np.zeros(len(lesson.calls_worth_m)))
    return _Attempt(
        lesson=lesson,
        drawn=drawn,
        form=form,
        prior=prior,
        probabilities=drawn.cross_fit(lesson.half_n, form, prior),
    )


def _choose_price(attempts: Sequence[_Attempt]) -> float:
    """Return the highest price that earns about as much as the best price on held-out questions.

    With too few questions, return the default price.
    """
    worth_m = attempts[0].lesson.calls_worth_m
    if len(attempts[0].lesson.half_n) < _MIN_FAMILIAR_QUESTIONS:
        return _DEFAULT_PRICE
    tried = {
        price: max(
            (one.fit_stopping(price * worth_m)[1] for one in attempts),
            key=lambda found: found.value,
        )
        for price in PRICES
    }
    best = max(tried.values(), key=lambda found: float(found.earned_n.mean()))
    for price, found in tried.items():
        less_n = best.earned_n - found.earned_n
        error = float(less_n.std() / np.sqrt(len(less_n)))
        if less_n.mean() <= _PRICE_TOLERANCE * error:
            return price
    return PRICES[-1]


def _fit_posterior(
    lesson: _Lesson,
    cost_m: Floats,
    attempts: Sequence[_Attempt],
    forms: Sequence[PosteriorForm],
    *,
    is_familiar: bool,
) -> AnswerPosterior:
    """Fit the posterior with the order, form and margin that earn most on held-out questions.

    For strange questions the widest of about equally good margins is chosen, so that the best
    worker is rarely overruled. The best worker answers alone if the cascade earns clearly less than
    that worker, or, for strange questions, if the cascade does not win on whole families.
    """
    first = max(attempts, key=lambda one: one.fit_stopping(cost_m)[1].value)
    order, prior = first.drawn.order, first.prior
    ways = [first, *(_make_attempt(first.lesson, order, form, prior) for form in forms)]
    tried = [
        (one.fit_stopping(cost_m, margin)[1].value, one, margin)
        for one in ways
        for margin in _MARGINS
    ]
    most = max(value for value, _, _ in tried)
    candidates = [
        found for found in tried if found[0] >= most - (0 if is_familiar else _MARGIN_TOLERANCE)
    ]
    _, way, margin = max(candidates, key=lambda found: (0 if is_familiar else found[2], found[0]))
    whole = way if way.lesson is lesson else _make_attempt(lesson, order, way.form, prior)
    onward_kg, found = whole.fit_stopping(cost_m, margin)
    best_only = DrawOrder(again=_REPEAT_PENALTIES[-1])
    best = whole.lesson.draw(best_only, cost_m)
    earned_n = found.earned_n - best.credit_nk[:, 0]
    lead_n = earned_n - found.spent_n + best.draw_costs_nk()[:, 0]
    is_doubtful = not is_familiar and not wins_on_families(earned_n, whole.lesson.family_n)
    if is_doubtful or lead_n.mean() <= -lead_n.std() / np.sqrt(len(lead_n)):
        order, onward_kg = best_only, np.zeros_like(onward_kg)  # the best worker alone
    return AnswerPosterior(
        weights_kf=whole.drawn.fit_weights(way.form, prior),
        onward_kg=onward_kg,
        order=order,
        margin=margin,
    )
