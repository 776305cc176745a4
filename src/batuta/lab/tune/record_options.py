"""Options for using the workers of a record, and a trial of each option on held-out families.

A record has only answers to whole questions. So an option can choose which worker to ask, and
whether to ask another after seeing the answer. An option replaces the best single worker only if
the option was better on whole families that it was not fitted to.

Axes: n or q questions, m workers, k calls, s samples, f families.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.selector import Selector
from batuta.lab.baselines.cascade import CALLS, Cascade
from batuta.lab.baselines.cascade_training import fit_cascade
from batuta.lab.learners.cached_features import CachedFeatures
from batuta.lab.learners.history import History
from batuta.lab.learners.selector_training import SelectorRecipe, fit_selector

SINGLE, VOTE, AGAIN, MINI, CASCADE = "best single", "vote", "self-consistency", "mini", "cascade"
FEWEST_FAMILIES = 5
"""Minimum number of families for trials, whose conclusions are about unseen families."""
_ALONE, _PARTS = 8, 5
"""Up to `_ALONE` families are held out one by one; more families are held out in `_PARTS` parts."""
_VOTERS = 3
"""The number of answers that a vote compares."""
_FITTED_ON = 1000
"""Maximum number of questions to which an option is fitted for a trial."""
_LEAST_QUESTIONS = 40
"""Minimum number of questions that remain for fitting when a part is held out."""
_FEATURES = CachedFeatures()
"""Features of questions, cached because the trials' training sets overlap."""
_CONFIDENCE = 0.95
"""The confidence of the lower bounds."""
_NEW_SHARE = 0.25
"""The number of new families for which a gain is predicted, as a share of the tried families."""
_MOST_LOST = 0.003
"""Maximum loss of credit on the new families, at the lower bound of the prediction."""

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings:
    """The settings of a tuning run on a record."""

    call_weight: float = 0.01
    """The price of a call: the gain in credit that justifies one more call."""
    worth: float | None = None
    """Dollars that a correct answer is worth; None: dollars do not count."""
    only_proven: bool = False
    """Whether only systems with one of the verdicts in `decision.PROVEN` are recommended."""
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OptionReplay:
    """The result of an option on the questions of a history."""

    earned_n: Floats
    """The credit: the score of the answer, in [0, 1]."""
    calls_n: Indices
    usd_n: Floats
    """The dollars of the calls; NaN if the record lacks the cost of a call."""

    def merit_n(self, settings: RecordSettings) -> Floats:
        """Return the credit less the price of calls and dollars, (n,)."""
        dollars = self.usd_n / settings.worth if settings.worth else 0.0
        return self.earned_n - settings.call_weight * self.calls_n - dollars


class FittedOption(Protocol):
    """An option fitted to a history."""

    def __call__(self, history: History) -> OptionReplay:
        """Replay the option on these questions."""
        ...


def first_credit(history: History) -> Floats:
    """Return the credit of each worker's first answer, (n, m); a missing answer earns 0.

    In a history without answers it is the mean credit of the worker's runs.
    """
    if history.samples is None:
        return np.nan_to_num(history.scores_qm)
    return np.nan_to_num(history.samples.credit_qms[:, :, 0])


def best_worker_index(history: History) -> int:
    """Return the index of the worker with the greatest mean credit; of equal workers the first."""
    return int(first_credit(history).mean(axis=0).argmax())


@dataclass(frozen=True, slots=True)
class AskOne:
    """The option that asks one worker all questions."""

    worker: int
    """The worker's index."""

    def __call__(self, history: History) -> OptionReplay:
        """Replay the worker's first answers."""
        asked_nk = np.full((len(history.questions), 1), self.worker)
        return _replay_asked(history, first_credit(history)[:, self.worker], asked_nk)


@dataclass(frozen=True, slots=True)
class AskSome:
    """The option that asks several times and takes the most common answer.

    Of equally common answers, it takes the answer of the worker named first.
    """

    workers: tuple[int, ...]
    """The indices of the workers to ask, best first; a worker that occurs twice answers twice."""

    def __call__(self, history: History) -> OptionReplay:
        """Replay the most common answer."""
        samples = history.samples
        assert samples is not None  # noqa: S101 - see `list_options`
        seen: dict[int, int] = {}
        columns: list[tuple[int, int]] = []
        for worker in self.workers:
            columns.append((worker, seen.setdefault(worker, 0)))
            seen[worker] += 1
        who, which = (list(each) for each in zip(*columns, strict=True))
        codes_nk = samples.answers_qms[:, who, which]
        credit_nk = np.nan_to_num(samples.credit_qms[:, who, which])
        same_nkk = (codes_nk[:, :, None] == codes_nk[:, None, :]) & (codes_nk >= 0)[:, :, None]
        leader_n = same_nkk.sum(axis=2).argmax(axis=1)
        earned_n = credit_nk[np.arange(len(leader_n)), leader_n]
        return _replay_asked(history, earned_n, np.tile(np.asarray(who), (len(earned_n), 1)))


@dataclass(frozen=True, slots=True, eq=False)
class AskChosen:
    """The option that asks the worker that a selector chooses for each question."""

    selector: Selector

    def __call__(self, history: History) -> OptionReplay:
        """Replay the chosen workers' first answers."""
        chosen_n = np.asarray(self.selector.choose_indices(history.questions))
        earned_n = first_credit(history)[np.arange(len(chosen_n)), chosen_n]
        return _replay_asked(history, earned_n, chosen_n[:, None])


@dataclass(frozen=True, slots=True, eq=False)
class AskOn:
    """The option that asks another worker as long as the next answer is worth its price."""

    cascade: Cascade

    def __call__(self, history: History) -> OptionReplay:
        """Replay the cascade's answers."""
        return _replay_asked(history, *self.cascade.replay_draws(history))


def _replay_asked(history: History, earned_n: Floats, asked_nk: Indices) -> OptionReplay:
    rows = np.arange(len(asked_nk))[:, None]
    usd_nk = np.where(asked_nk >= 0, history.usd_qm[rows, asked_nk], 0.0)
    return OptionReplay(
        earned_n=np.asarray(earned_n, np.float64),
        calls_n=(asked_nk >= 0).sum(axis=1),
        usd_n=usd_nk.sum(axis=1),
    )


def fit_options(
    names: Sequence[str], history: History, settings: RecordSettings
) -> dict[str, FittedOption]:
    """Fit the options of those names, and the best single worker; `CASCADE` brings `MINI` too.

    Raises:
        SourceError: the history has too few questions, or dollars count and a cost is unknown.
    """
    best = best_worker_index(history)
    fitted: dict[str, FittedOption] = {SINGLE: AskOne(best)}
    if VOTE in names:
        order = np.argsort(-first_credit(history).mean(axis=0), kind="stable")
        fitted[VOTE] = AskSome(tuple(int(index) for index in order[:_VOTERS]))
    if AGAIN in names:
        fitted[AGAIN] = AskSome((best,) * _VOTERS)
    if MINI in names or CASCADE in names:
        dollar = 1 / settings.worth if settings.worth else 0.0
        recipe = SelectorRecipe(features=_FEATURES, dollar=dollar)
        selector = fit_selector(history, recipe, seed=settings.seed)
        fitted[MINI] = AskChosen(selector)
        if CASCADE in names:
            price, seed = settings.call_weight, settings.seed
            fitted[CASCADE] = AskOn(
                fit_cascade(history, recipe, seed=seed, price=price, calls=CALLS, selector=selector)
            )
    return fitted


def list_options(history: History) -> tuple[str, ...]:
    """Return the names of the options, besides the best single worker, that the record allows."""
    names = [MINI]
    if history.samples is not None:
        names.append(CASCADE)
        if len(history.workers) >= _VOTERS:
            names.append(VOTE)
        best = best_worker_index(history)
        if int(history.runs_qm[:, best].min()) >= _VOTERS:
            names.append(AGAIN)
    return tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTrial:
    """The trial of an option against the best single worker, on families held out from fitting."""

    name: str
    families: int
    """The number of families, each of which was held out once."""
    questions: int
    gain: float
    """Mean gain in credit per question."""
    merit: float
    """The mean gain less the price of the option's additional calls and dollars."""
    low: float
    """The lower bound of `merit` over families, which holds for all options together."""
    foreseen: float
    """The lower prediction bound of the gain on a quarter as many new families."""
    calls: float
    """The option's mean calls per question."""

    @property
    def is_shown(self) -> bool:
        """Whether the option is shown to be better, and unlikely to lose on new families."""
        return self.low > 0 and self.foreseen >= -_MOST_LOST


def try_options(
    history: History, family_n: Indices, names: Sequence[str], settings: RecordSettings
) -> tuple[OptionTrial, ...]:
    """Try each option on whole families that are held out of its fitting.

    `family_n` numbers the families from 0; `names` does not include the best single worker. The
    result is empty if there are too few families, or too few questions to fit without a part.

    Raises:
        SourceError: the history has too few questions, or dollars count and a cost is unknown.
    """
    families = int(family_n.max()) + 1
    part_n = _divide_families(family_n, np.random.default_rng(settings.seed))
    smallest_rest = len(part_n) - int(np.bincount(part_n).max())
    if families < FEWEST_FAMILIES or smallest_rest < _LEAST_QUESTIONS:
        return ()
    replays: Mapping[str, list[tuple[Indices, OptionReplay, OptionReplay]]] = {
        name: [] for name in names
    }
    for part in np.unique(part_n):
        others, out = np.flatnonzero(part_n != part), np.flatnonzero(part_n == part)
        rng = np.random.default_rng([settings.seed, int(part)])
        some = np.sort(rng.permutation(others)[:_FITTED_ON])
        asked, learned = history.select(out), history.select(some)
        single = AskOne(best_worker_index(history.select(others)))(asked)
        fitted = fit_options(names, learned, settings)
        for name in names:
            replays[name].append((out, fitted[name](asked), single))
    return tuple(
        _judge_trial(name, found, family_n, settings=settings, options=len(names))
        for name, found in replays.items()
    )


def _divide_families(family_n: Indices, rng: np.random.Generator) -> Indices:
    """Return the part in which each question is held out, (n,): one family or several families."""
    sizes = np.bincount(family_n)
    if len(sizes) <= _ALONE:
        return family_n
    part_f, filled = np.zeros(len(sizes), np.intp), np.zeros(_PARTS)
    drawn = rng.permutation(len(sizes))
    for family in drawn[np.argsort(-sizes[drawn], kind="stable")]:
        part_f[family] = filled.argmin()
        filled[part_f[family]] += sizes[family]
    return part_f[family_n]


def _judge_trial(
    name: str,
    found: Sequence[tuple[Indices, OptionReplay, OptionReplay]],
    family_n: Indices,
    *,
    settings: RecordSettings,
    options: int,
) -> OptionTrial:
    total = {key: np.zeros(len(family_n)) for key in ("gain", "merit", "calls")}
    for rows, one, single in found:
        total["gain"][rows] = one.earned_n - single.earned_n
        total["merit"][rows] = one.merit_n(settings) - single.merit_n(settings)
        total["calls"][rows] = one.calls_n
    sizes = np.bincount(family_n)
    gain, gain_error = _mean_over_families(total["gain"], family_n)
    merit, merit_error = _mean_over_families(total["merit"], family_n)
    families = len(sizes)
    new = max(1.0, _NEW_SHARE * families)
    simultaneous_t = student_quantile(1 - (1 - _CONFIDENCE) / 2 / options, families - 1)
    single_t = student_quantile(_CONFIDENCE, families - 1)
    return OptionTrial(
        name=name,
        families=families,
        questions=len(family_n),
        gain=gain,
        merit=merit,
        low=merit - simultaneous_t * merit_error,
        foreseen=gain - single_t * gain_error * math.sqrt(1 + families / new),
        calls=float(total["calls"].mean()),
    )


def _mean_over_families(value_n: Floats, family_n: Indices) -> tuple[float, float]:
    """Return the mean over questions, and the standard error with whole families as clusters."""
    sizes, sums = np.bincount(family_n), np.bincount(family_n, value_n)
    mean = float(sums.sum() / sizes.sum())
    spread = float(((sums - mean * sizes) ** 2).sum())
    families = len(sizes)
    return mean, math.sqrt(families / (families - 1) * spread) / float(sizes.sum())


def student_quantile(probability: float, freedom: int) -> float:
    """Return Student's t quantile by the Cornish-Fisher expansion.

    With four or more degrees of freedom the error is at most 1 % up to a probability of 0.993.
    """
    z, v = NormalDist().inv_cdf(probability), freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def choose_option(
    trials: Sequence[OptionTrial], is_allowed: Callable[[str], bool] = lambda _: True
) -> OptionTrial | None:
    """Return the trial with the greatest lower bound among shown options; None if none is shown."""
    shown = [one for one in trials if one.is_shown and is_allowed(one.name)]
    return max(shown, key=lambda one: one.low, default=None)
