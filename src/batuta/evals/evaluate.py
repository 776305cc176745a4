"""Systems on questions, one after another: calibrate, learn, play, collect."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from batuta.baselines import Single
from batuta.core import Pool, WorkerId
from batuta.errors import ConfigError, SourceError
from batuta.evals.fitted import digest, measured_history, on_record
from batuta.evals.ledger import Ledger, Result
from batuta.evals.progress import Bar
from batuta.evals.runner import Terms, Trial, play_all, trials
from batuta.evals.stats import mean
from batuta.evals.subject import Subject
from batuta.evals.systems import ALL as ALL_SYSTEMS
from batuta.evals.systems import BEST_SINGLE, ULTRA, System, everything, system
from batuta.evals.tasksets import TaskSet
from batuta.solvers.history import History

Equal = Literal["calls", "cost"]
"""What others get as much of as the first system took."""

SLACK = 0.05
"""Of a sample: so little more is not worth another one."""


@dataclass(frozen=True, slots=True)
class Part:
    """Who is asked what, with which seeds, and what is known beforehand."""

    subject: Subject
    tasks: TaskSet
    seeds: tuple[int, ...] = (0,)
    """Each task is run once with each."""
    history: History | None = None
    """None: measured on `tasks.calibration` where a system needs it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the systems were given that were added for an equal comparison."""

    of: str
    """Whose mean they match."""
    what: Literal["calls", "dollars", "tokens"]
    amount: float
    """Its mean."""
    k: int
    """Samples that come to as much, rounded up."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was measured."""

    parts: tuple[Part, ...]
    terms: Terms
    systems: tuple[System, ...]
    results: Mapping[str, tuple[Result, ...]]
    """By the system's name."""
    strengths: Mapping[WorkerId, float | None] = field(default_factory=dict[WorkerId, float | None])
    """Each worker's accuracy on the questions known beforehand, the mean over the parts; empty:
    none was needed or possible."""
    budgets: tuple[Budget, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Systems that `all` meant and that could not learn here, with the reason."""

    @property
    def subject(self) -> Subject:
        """The first part's; the others differ by what is known of the workers."""
        return self.parts[0].subject

    @property
    def tasks(self) -> TaskSet:
        """The first part's."""
        return self.parts[0].tasks

    @property
    def outcomes(self) -> History | None:
        """What each worker earned alone on the questions known beforehand.

        None: nobody was asked them here, or their texts are private.
        """
        known = self.parts[0]
        if known.subject.deck is not None or any(task.private for task in known.tasks.calibration):
            return None
        return known.history


async def evaluate(
    subject: Subject,
    tasks: TaskSet,
    names: Sequence[str],
    terms: Terms,
    ledger: Ledger,
    bar: Bar = lambda _, __: lambda: None,
    *,
    equal: Sequence[Equal] = (),
) -> Evaluation:
    """Measure the systems of those names on one task set; see `measure`."""
    return await measure((Part(subject, tasks, terms.seeds),), names, terms, ledger, bar, equal)


async def measure(
    parts: Sequence[Part],
    names: Sequence[str],
    terms: Terms,
    ledger: Ledger,
    bar: Bar = lambda _, __: lambda: None,
    equal: Sequence[Equal] = (),
) -> Evaluation:
    """Measure the systems of those names.

    Args:
        parts: who is asked what; all with the same grader.
        names: of the systems, each once; `all`: those that can be played.
        terms: concurrency, sub-pools.
        ledger: what was measured before, and where results go.
        bar: shows how far each system is.
        equal: also self-consistency and best-of-N with as many calls, or as much money, as
            `ultra` takes on average, which is measured first; where nobody conducts, the first
            system.

    Raises:
        ConfigError: there is no system of that name, or nothing that it could learn from.
        SourceError: a system that was named cannot learn from these outcomes.
        ExceptionGroup: of the StoreError, where a result could not be written.
    """
    subject = parts[0].subject
    wanted = [system(name, subject) for name in _expanded(names, subject)]
    if equal and subject.conductor is not None:
        first = system(ULTRA, subject)
        wanted = [first, *(other for other in wanted if other.name != ULTRA)]
    known = all(part.history is not None or part.tasks.calibration for part in parts)
    if not known and (unable := [one.name for one in wanted if one.fitted is not None]):
        raise ConfigError(
            f"{', '.join(unable)} must learn from other questions and there are none left: "
            "ask fewer with --limit"
        )
    stage = _Stage(parts, terms, ledger, bar)
    for group in _together(wanted, subject):
        await stage.measure(*group, needed=names)
    budgets = [await stage.equalise(wanted[0].name, what) for what in dict.fromkeys(equal)]
    order = [one.name for one in wanted]
    measured = {one.name: one for one in stage.systems}
    kept = dict.fromkeys(name for name in (*order, *measured) if name in measured)
    return Evaluation(
        tuple(stage.known),
        terms,
        tuple(measured[name] for name in kept),
        {name: stage.results[name] for name in kept},
        stage.strengths(),
        tuple(budget for budget in budgets if budget),
        stage.left_out,
    )


def _expanded(names: Sequence[str], subject: Subject) -> list[str]:
    found = [
        each for name in names for each in (everything(subject) if name == ALL_SYSTEMS else (name,))
    ]
    return list(dict.fromkeys(found))


def _together(wanted: Sequence[System], subject: Subject) -> Iterator[list[System]]:
    """The systems in order; over a record, those that look at everybody's replies side by side."""
    shared = [one for one in wanted if one.chorus and subject.chorus is not None]
    for one in wanted:
        if one not in shared:
            yield [one]
        elif one is shared[0]:
            yield shared


class _Stage:
    """The systems measured so far."""

    def __init__(self, parts: Sequence[Part], terms: Terms, ledger: Ledger, bar: Bar) -> None:
        self.parts = tuple(parts)
        self.known = list(parts)
        """The same with what was measured of the workers, for the systems that may know it."""
        self.terms = terms
        self.ledger = ledger
        self.bar = bar
        self.systems: list[System] = []
        self.results: dict[str, tuple[Result, ...]] = {}
        self.left_out: dict[str, str] = {}
        self._calibrated = False

    async def measure(self, *systems: System, needed: Sequence[str] | None = None) -> None:
        """Play the systems on every part, unless they were played before.

        Args:
            systems: each question is played by all of them, one after another.
            needed: of the other ones, those that cannot learn from these outcomes are left out;
                None: all are needed.
        """
        planned: dict[str, list[Trial]] = {}
        for one in systems:
            if one.name in self.results:
                continue
            if one.calibrated:
                await self._calibrate()
            parts = self.known if one.calibrated else self.parts
            try:
                found = [trial for part in parts for trial in self._planned(one, part)]
            except (ConfigError, SourceError) as error:
                if needed is None or one.name in needed:
                    raise
                self.left_out[one.name] = str(error)
                continue
            self.systems.append(one)
            planned[one.name] = found
        bars = {name: self.bar(name, len(found)) for name, found in planned.items()}
        in_turn = [trial for row in zip_longest(*planned.values()) for trial in row if trial]
        played = await self._play(in_turn, lambda name: bars[name]())
        for name in planned:
            self.results[name] = tuple(run for run in played if run.system == name)

    def _planned(self, one: System, part: Part) -> tuple[Trial, ...]:
        """The part's trials; what must learn learns if one of them is still to be played."""
        terms = replace(self.terms, seeds=part.seeds)
        tasks = [(task, part.tasks.family(task)) for task in part.tasks.tasks]
        if one.fitted is None:
            return trials(one, tasks, part.subject, terms)
        assert part.history is not None  # noqa: S101 - told before anything was played
        found = trials(one, tasks, part.subject, terms, digest(part.history))
        if all(self.ledger.done(trial.key) for trial in found):
            return found
        solver, deck = one.fitted(part.history, seed=part.seeds[0]), part.subject.deck
        taught = replace(one, solver=on_record(solver, deck.record) if deck else solver)
        return tuple(replace(trial, system=taught) for trial in found)

    async def _play(
        self, planned: Sequence[Trial], tell: Callable[[str], None]
    ) -> tuple[Result, ...]:
        grade = self.parts[0].tasks.grade
        return await play_all(planned, grade, self.ledger, self.terms.concurrency, tell)

    def strengths(self) -> dict[WorkerId, float | None]:
        """Each worker's, as known beforehand."""
        if not self._calibrated:
            return {}
        found: dict[WorkerId, float | None] = {}
        for worker in self.parts[0].subject.pool:
            own = [part.subject.pool[worker.id].strength for part in self.known]
            found[worker.id] = mean([strength for strength in own if strength is not None])
        return found

    async def equalise(self, name: str, what: Equal) -> Budget | None:
        """Measure self-consistency and best-of-N with as much as that system took."""
        budget = await self._budget(name, what)
        if budget is None:
            return None
        deck = self.parts[0].subject.deck
        k = budget.k if deck is None else min(budget.k, deck.record.scores_qms.shape[2])
        subject = self.parts[0].subject
        methods = (f"self-consistency@{k}", f"best-of-{k}")
        for method in methods if deck is None or deck.simulate else methods[:1]:
            await self.measure(system(method, subject))
        return replace(budget, k=k)

    async def _budget(self, name: str, what: Equal) -> Budget | None:
        """Samples of the best worker that come to what that system took; None: it is not known."""
        scored = [run for run in self.results[name] if run.unscored != "outage"]
        if what == "calls":
            calls = mean([run.calls for run in scored])
            return Budget(name, "calls", calls, max(1, math.ceil(calls))) if calls else None
        if not scored:
            return None
        await self.measure(system(BEST_SINGLE, self.parts[0].subject))
        single = [run for run in self.results[BEST_SINGLE] if run.unscored != "outage"]
        for unit, of in _UNITS.items():
            took, one = _mean_of(scored, of), _mean_of(single, of)
            if took and one:
                return Budget(name, unit, took, max(1, math.ceil(took / one - SLACK)))
        return None

    async def _calibrate(self) -> None:
        """Measure every worker alone on the calibration questions, once."""
        if self._calibrated:
            return
        for place, part in enumerate(self.parts):
            if part.history is None and part.tasks.calibration:
                self.known[place] = await self._alone(part)
        self._calibrated = any(part.history is not None for part in self.known)

    async def _alone(self, part: Part) -> Part:
        """The part with its workers' measured strengths in the place of believed ones."""
        terms = replace(self.terms, seeds=part.seeds[:1], sub_pool=None)
        tasks = [(task, part.tasks.family(task)) for task in part.tasks.calibration]
        alone = {
            worker.id: System(f"calibration/{worker.id}", Single(worker.id), worker=worker.id)
            for worker in part.subject.pool
        }
        planned = [
            trial for one in alone.values() for trial in trials(one, tasks, part.subject, terms)
        ]
        step = self.bar("calibration", len(planned))
        ran = await self._play(planned, lambda _: step())
        found = {(run.system, run.task): run for run in ran}
        history = measured_history(
            part.tasks.calibration,
            tuple(alone),
            lambda worker, task: found.get((alone[worker].name, task.id)),
            part.tasks.family,
        )
        strengths = {
            worker: mean([r.score for r in ran if r.system == one.name and r.score is not None])
            for worker, one in alone.items()
        }
        pool = Pool(tuple(replace(w, strength=strengths[w.id]) for w in part.subject.pool))
        return replace(part, subject=replace(part.subject, pool=pool), history=history)


def _usd(run: Result) -> float | None:
    return None if run.usd is None else float(run.usd)


def _tokens(run: Result) -> float | None:
    return run.tokens


_UNITS: Mapping[Literal["dollars", "tokens"], Callable[[Result], float | None]] = {
    "dollars": _usd,
    "tokens": _tokens,
}
"""What a cost is measured in: the first that is known."""


def _mean_of(runs: Sequence[Result], of: Callable[[Result], float | None]) -> float | None:
    """The mean of a figure; None if it is not known of every run."""
    values = [value for run in runs if (value := of(run)) is not None]
    return mean(values) if len(values) == len(runs) else None
