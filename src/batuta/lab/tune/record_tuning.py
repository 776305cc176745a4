"""A tuning run on a record: the nominees, their test on held-out questions, and the report.

No worker is called, because the record has all answers.

Axes: q questions of the record, n questions of a part, m workers, s samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.selector import save_selector
from batuta.core import WorkerId
from batuta.errors import SourceError
from batuta.lab.baselines.cascade_folder import save_cascade
from batuta.lab.evals.report_files import write_files
from batuta.lab.evals.stats import score_interval
from batuta.lab.learners.history import History, history_from_record
from batuta.lab.tasks.recorded import RecordedOutcomes, random_split, unseen_family_split
from batuta.lab.tune.calibrate import WorkerCard, share_of
from batuta.lab.tune.decision import PROVEN, SELECTOR, SINGLES_SELECTOR, format_probability
from batuta.lab.tune.expected_gain import SURE_ENOUGH, ExpectedGain, update_gain
from batuta.lab.tune.grouping import group_questions
from batuta.lab.tune.judge import Comparison, SystemFigures, compare_nominees
from batuta.lab.tune.parts import FEWEST
from batuta.lab.tune.record_options import (
    CASCADE,
    FEWEST_FAMILIES,
    MINI,
    SINGLE,
    AskChosen,
    AskOn,
    FittedOption,
    OptionReplay,
    OptionTrial,
    RecordSettings,
    best_worker_index,
    choose_option,
    first_credit,
    fit_options,
    list_options,
    try_options,
)
from batuta.lab.tune.report import card_json, report_files
from batuta.lab.tune.stages import BEST_SINGLE, ULTRA
from batuta.lab.tune.stages import MINI as NOMINATED_MINI

Json = dict[str, Any]
Indices = NDArray[np.signedinteger[Any]]

_FAMILIES = 3
"""Minimum number of families for holding out whole families instead of random questions."""
_SHOWN = 12
"""Maximum number of families for which the report has a column each."""
_GROUPS = 8
"""Maximum number of groups of similar texts, which replace families without labels."""
_TRIAL_Z, _LEAST_DEVIATION = 1.645, 0.005
"""The assumed distance of a trial's lower bound from its merit, in standard deviations, and the
minimum standard deviation of a merit."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordParts:
    """The indices of the questions for fitting, and of the held-out questions."""

    known: Indices
    judged: Indices
    has_new_families: bool
    """Whether whole families were held out."""

    def known_families(self, record: RecordedOutcomes) -> list[str]:
        """Return the sorted families of the questions for fitting."""
        indices: list[int] = self.known.tolist()
        return sorted({record.families[q] for q in indices})

    def judged_families(self, record: RecordedOutcomes) -> list[str]:
        """Return the sorted families of the held-out questions."""
        indices: list[int] = self.judged.tolist()
        return sorted({record.families[q] for q in indices})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordNominees:
    """The options nominated for ultra and mini, and the trials that decided."""

    best: WorkerId
    """The best single worker on the questions for fitting."""
    families: int
    """The number of families, or of groups of similar texts, of the questions for fitting."""
    trials: tuple[OptionTrial, ...]
    """The trials of all options; empty if there are too few families or questions."""
    ultra: str
    mini: str
    """The names of the nominated options."""
    fitted: dict[str, FittedOption]
    """The nominated options and the best single worker, by name, fitted to the known questions."""


def split_record(record: RecordedOutcomes, seed: int) -> RecordParts:
    """Hold out about a fifth of the questions, as whole families if there are at least three.

    With whole families, some near-duplicates of other families' questions are in neither part.

    Raises:
        SourceError: there are too few questions.
    """
    if len(record.tasks) < FEWEST:
        raise SourceError(
            f"the record has {len(record.tasks)} questions that every worker answered, too few "
            f"for a tuning: it needs at least {FEWEST}, better 300 or more"
        )
    whole = len(set(record.families)) >= _FAMILIES
    division = (unseen_family_split if whole else random_split)(record, seed)
    known = np.concatenate([division.train, division.calibration])
    return RecordParts(known=known, judged=division.test, has_new_families=whole)


def nominate_options(
    record: RecordedOutcomes, known: Indices, settings: RecordSettings, *, labelled: bool = True
) -> RecordNominees:
    """Nominate an option for ultra, and an option that calls one worker for mini.

    An option is nominated only if its trial shows a gain on held-out families; otherwise the best
    single worker is nominated. Unless `labelled`, groups of similar texts replace the families.

    Raises:
        SourceError: there are too few questions, or dollars count and a worker's cost is unknown.
    """
    history = history_from_record(record, known)
    family_n = _number_families(record, known, settings.seed, labelled=labelled)
    trials = try_options(history, family_n, list_options(history), settings)
    ultra, mini = choose_option(trials), choose_option(trials, lambda name: name == MINI)
    names = {one.name for one in (ultra, mini) if one is not None}
    return RecordNominees(
        best=WorkerId(record.models[best_worker_index(history)]),
        families=int(family_n.max()) + 1,
        trials=trials,
        ultra=ultra.name if ultra else SINGLE,
        mini=mini.name if mini else SINGLE,
        fitted=fit_options(sorted(names), history, settings),
    )


def _number_families(
    record: RecordedOutcomes, known: Indices, seed: int, *, labelled: bool
) -> Indices:
    indices: list[int] = known.tolist()
    if labelled:
        names = np.asarray([record.families[q] for q in indices])
        return np.unique(names, return_inverse=True)[1]
    tasks = [record.tasks[q] for q in indices]
    found = group_questions(tasks, lambda _: "", labelled=False, most=_GROUPS, seed=seed)
    group_n, _, _ = found.reader([task.question for task in tasks])
    return np.unique(group_n, return_inverse=True)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordJudgement:
    """The results of the nominees on the held-out questions."""

    figures: tuple[SystemFigures, ...]
    comparisons: tuple[Comparison, ...]
    expected: Mapping[str, ExpectedGain]
    """The gain of each nominee over the best single worker, from the trials and the held-out
    questions; without nominees that are the best single worker."""


def judge_options(
    record: RecordedOutcomes, judged: Indices, nominees: RecordNominees, settings: RecordSettings
) -> RecordJudgement:
    """Compare the nominees with the best single worker on the held-out questions."""
    history = history_from_record(record, judged)
    chosen = {ULTRA: nominees.ultra, NOMINATED_MINI: nominees.mini, BEST_SINGLE: SINGLE}
    replays = {name: nominees.fitted[option](history) for name, option in chosen.items()}
    figures = {name: _figures_of(name, one) for name, one in replays.items()}
    indices: list[int] = judged.tolist()
    ids = [str(record.tasks[q].id) for q in indices]
    scores = {
        name: {key: float(each) for key, each in zip(ids, one.earned_n, strict=True)}
        for name, one in replays.items()
    }
    pairs = [(figures[name], figures[BEST_SINGLE]) for name in (ULTRA, NOMINATED_MINI)]
    trials = {one.name: one for one in nominees.trials}
    single_n = replays[BEST_SINGLE].merit_n(settings)
    return RecordJudgement(
        figures=tuple(figures.values()),
        comparisons=compare_nominees(pairs, scores),
        expected={
            name: _expect_gain(trials[option], replays[name].merit_n(settings) - single_n)
            for name, option in chosen.items()
            if option in trials
        },
    )


def _expect_gain(trial: OptionTrial, gain_n: NDArray[Any]) -> ExpectedGain:
    deviation = max((trial.merit - trial.low) / _TRIAL_Z, _LEAST_DEVIATION)
    return update_gain(trial.merit, deviation, gain_n.tolist())


def _figures_of(name: str, replay: OptionReplay) -> SystemFigures:
    low, high = score_interval([[score] for score in replay.earned_n.tolist()])
    return SystemFigures(
        name=name,
        questions=len(replay.earned_n),
        share=float(replay.earned_n.mean()),
        low=low,
        high=high,
        usd=float(np.mean(replay.usd_n)),
        calls=float(replay.calls_n.mean()),
        failed=0,
    )


def describe_record_tuning(
    record: RecordedOutcomes, parts: RecordParts, nominees: RecordNominees, settings: RecordSettings
) -> Json:
    """Return the results in the form of a tuning run's report."""
    judgement = judge_options(record, parts.judged, nominees, settings)
    figures, comparisons = judgement.figures, judgement.comparisons
    families = parts.known_families(record)
    shown = families if 1 < len(families) <= _SHOWN else []
    return {
        "kind": "tuning",
        "record": record.name,
        "budget": {"usd": None, "calls": None, "minutes": None},
        "spent": {"usd": 0.0, "calls": 0},
        "settings": asdict(settings),
        "questions": {
            "search": len(parts.known),
            "selection": 0,
            "finalists": 0,
            "judgement": len(parts.judged),
            "doubles": 0,
        },
        "groups": shown,
        "workers": [card_json(one) for one in describe_workers(record, parts.known, shown)],
        "left_out": [],
        "team": None,
        "tried": len(nominees.trials) + 1,
        "expected": None,
        "workflows": [],
        "rewritten": None,
        "options": [asdict(one) | {"shown": one.is_shown} for one in nominees.trials],
        "selection": [],
        "finalists": [],
        "judged": [_without_unknown(asdict(one)) for one in figures],
        "comparisons": [_without_unknown(asdict(one)) for one in comparisons],
        "break_even": {one.nominee: None for one in comparisons},
        "recommendation": _recommend_options(
            nominees, judgement, parts, only_proven=settings.only_proven
        ),
    }


def _without_unknown(figures: Json) -> Json:
    """Return the figures with None instead of NaN, which stands for dollars not recorded."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in figures.items()
    }


def describe_workers(
    record: RecordedOutcomes, known: Indices, families: Sequence[str]
) -> tuple[WorkerCard, ...]:
    """Return the card of each worker, measured alone on the questions for fitting.

    The cards have an accuracy for each of the `families`.
    """
    history = history_from_record(record, known)
    credit_nm = first_credit(history)
    of_n = np.asarray(history.families)
    return tuple(
        _card_of(worker, history, at, credit_nm[:, at], families=[of_n == one for one in families])
        for at, worker in enumerate(history.workers)
    )


def _card_of(
    worker: WorkerId,
    history: History,
    at: int,
    credit_n: NDArray[Any],
    *,
    families: Sequence[NDArray[np.bool_]],
) -> WorkerCard:
    mean, usd_n = float(credit_n.mean()), history.usd_qm[:, at]
    return WorkerCard(
        worker=worker,
        overall=share_of(credit_n.tolist(), mean),
        by_group=tuple(share_of(credit_n[here].tolist(), mean) for here in families),
        usd=None if np.isnan(usd_n).any() else float(usd_n.mean()),
        seconds=None,
        failed=0,
    )


def _recommend_options(
    nominees: RecordNominees, judgement: RecordJudgement, parts: RecordParts, *, only_proven: bool
) -> Json:
    chosen = {ULTRA: nominees.ultra, NOMINATED_MINI: nominees.mini}
    found: Json = {}
    reasons: list[str] = []
    for one in judgement.comparisons:
        option, gain = chosen[one.nominee], judgement.expected.get(one.nominee)
        good = gain is not None and gain.probability >= SURE_ENOUGH
        good = good and (one.verdict in PROVEN or not only_proven)
        served = _folder_of(option, nominees) if option in {MINI, CASCADE} else option
        found[one.nominee] = served if good else None
        reasons.append(_explain_option(one, option, nominees, parts=parts, gain=gain, good=good))
    expected = {
        f"{name} over {BEST_SINGLE}": gain.as_json() for name, gain in judgement.expected.items()
    }
    return {**found, "best": nominees.best, "expected": expected, "why": reasons}


def _folder_of(option: str, nominees: RecordNominees) -> str:
    """Return the folder in which a nominated selector or cascade is saved."""
    return SELECTOR if option == nominees.ultra else SINGLES_SELECTOR


def _explain_option(
    one: Comparison, option: str, nominees: RecordNominees, *, parts: RecordParts,
    gain: ExpectedGain | None, good: bool,
) -> str:  # fmt: skip
    single = f"batuta-{one.nominee}: the best single worker, {nominees.best}"
    if gain is None:
        return f"{single}; {_explain_nothing(one.nominee, nominees)}."
    trial = next(each for each in nominees.trials if each.name == option)
    shown = (
        f"{100 * trial.gain:+.1f} points with {trial.calls:.2f} calls on {trial.families} families "
        "left out in turn"
    )
    kind = "questions of held-out families" if parts.has_new_families else "held-out questions"
    gained = "nothing" if one.difference is None else f"{100 * one.difference:+.1f} points"
    judged = f"{gained} on {one.questions} {kind} ({one.verdict})"
    sure = (
        f"probability of a gain {format_probability(gain.probability)}, net of the price of its "
        "calls"
    )
    return f"batuta-{one.nominee}: {option}; {sure}: {shown}, {judged}." if good else (
        f"{single}; {option} had {shown}, but {judged}: {sure}."
    )  # fmt: skip


def _explain_nothing(nominee: str, nominees: RecordNominees) -> str:
    tried = [one for one in nominees.trials if nominee == ULTRA or one.name == MINI]
    if not tried:
        return (
            f"{nominees.families} families, or their questions, are too few to show a gain on "
            f"unseen families: at least {FEWEST_FAMILIES} families are needed"
        )
    first = max(tried, key=lambda each: each.low)
    return (
        f"no other option is shown to gain on families left out: {first.name} has "
        f"{100 * first.merit:+.1f} points, net of the price of its calls, with a lower bound of "
        f"{100 * first.low:+.1f}"
    )


def write_record_results(folder: Path, found: Json, nominees: RecordNominees) -> None:
    """Write the report, and the folder of each nominee that is a selector or a cascade.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_files(folder, report_files(found))
    for name in dict.fromkeys((nominees.ultra, nominees.mini)):
        option, place = nominees.fitted.get(name), folder / _folder_of(name, nominees)
        if isinstance(option, AskOn):
            save_cascade(option.cascade, place)
        elif isinstance(option, AskChosen):
            save_selector(option.selector, place)


def limit_record(record: RecordedOutcomes, limit: int, seed: int) -> RecordedOutcomes:
    """Return the record with at most `limit` random questions that every worker answered."""
    complete = record.drop_incomplete()
    if len(complete.tasks) <= limit:
        return complete
    drawn = np.random.default_rng(seed).permutation(len(complete.tasks))[:limit]
    left_out = len(record.tasks) - limit
    return replace(complete.select(np.sort(drawn)), incomplete=left_out)
