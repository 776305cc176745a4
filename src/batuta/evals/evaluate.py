"""Systems on a task set, one after another: calibrate, play, collect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from batuta.baselines import Single
from batuta.core import Pool, WorkerId
from batuta.evals.ledger import Ledger, Result
from batuta.evals.progress import Bar
from batuta.evals.runner import Terms, play_all, trials
from batuta.evals.stats import mean
from batuta.evals.systems import ULTRA, Subject, System, system
from batuta.evals.tasksets import TaskSet


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was measured."""

    subject: Subject
    tasks: TaskSet
    terms: Terms
    systems: tuple[System, ...]
    results: Mapping[str, tuple[Result, ...]]
    """By the system's name."""
    strengths: Mapping[WorkerId, float | None]
    """Each worker's accuracy on the calibration questions; empty: none was needed or possible."""
    equal_calls: int | None = None
    """Mean calls of `ultra`, rounded up, where other systems were given as many."""


async def evaluate(
    subject: Subject,
    tasks: TaskSet,
    names: Sequence[str],
    terms: Terms,
    ledger: Ledger,
    bar: Bar = lambda _, __: lambda: None,
    *,
    equal_calls: bool = False,
) -> Evaluation:
    """Measure the systems of those names.

    Args:
        subject: the pool and its conductor.
        tasks: what is asked.
        names: of the systems; each once.
        terms: seeds, concurrency, sub-pools.
        ledger: what was measured before, and where results go.
        bar: shows how far each system is.
        equal_calls: also self-consistency and best-of-N with the mean calls of `ultra`, which is
            measured first.

    Raises:
        ConfigError: there is no system of that name.
        ExceptionGroup: of the StoreError, where a result could not be written.
    """
    wanted = [system(name, subject) for name in dict.fromkeys(names)]
    if equal_calls:
        first = system(ULTRA, subject)
        wanted = [first, *(other for other in wanted if other.name != ULTRA)]
    stage = _Stage(subject, tasks, terms, ledger, bar)
    for one in wanted:
        await stage.measure(one)
    k = stage.mean_calls(ULTRA) if equal_calls else None
    if k:
        for name in (f"self-consistency@{k}", f"best-of-{k}"):
            await stage.measure(system(name, subject))
    return Evaluation(
        subject, tasks, terms, tuple(stage.systems), stage.results, stage.strengths, k
    )


class _Stage:
    """The systems measured so far."""

    def __init__(
        self, subject: Subject, tasks: TaskSet, terms: Terms, ledger: Ledger, bar: Bar
    ) -> None:
        self.subject = subject
        self.tasks = tasks
        self.terms = terms
        self.ledger = ledger
        self.bar = bar
        self.systems: list[System] = []
        self.results: dict[str, tuple[Result, ...]] = {}
        self.strengths: dict[WorkerId, float | None] = {}

    async def measure(self, one: System) -> None:
        """Play the system, unless it was played before."""
        if one.name in self.results:
            return
        subject = self.subject
        if one.calibrated:
            await self._calibrate()
            subject = replace(subject, pool=measured(subject.pool, self.strengths))
        planned = trials(one, self.tasks.tasks, subject, self.terms)
        tell = self.bar(one.name, len(planned))
        self.systems.append(one)
        self.results[one.name] = await play_all(
            planned, self.tasks.grade, self.ledger, self.terms.concurrency, tell
        )

    def mean_calls(self, name: str) -> int | None:
        """Mean calls of a measured system, rounded up; None if all its runs met an outage."""
        scored = [result.calls for result in self.results[name] if result.unscored != "outage"]
        found = mean(scored)
        return None if found is None else max(1, math.ceil(found))

    async def _calibrate(self) -> None:
        """Measure every worker alone on the calibration questions, once."""
        questions, pool = self.tasks.calibration, self.subject.pool
        if self.strengths or not questions:
            return
        terms = replace(self.terms, seeds=self.terms.seeds[:1], sub_pool=None)
        planned = [
            trial
            for worker in pool
            for trial in trials(
                System(f"calibration/{worker.id}", Single(worker.id), worker=worker.id),
                questions,
                self.subject,
                terms,
            )
        ]
        tell = self.bar("calibration", len(planned))
        ran = await play_all(planned, self.tasks.grade, self.ledger, terms.concurrency, tell)
        for worker in pool:
            own = [r.score for r in ran if r.system == f"calibration/{worker.id}"]
            self.strengths[worker.id] = mean([score for score in own if score is not None])


def measured(pool: Pool, strengths: Mapping[WorkerId, float | None]) -> Pool:
    """The pool with measured strengths in the place of believed ones, if any were measured."""
    if not strengths:
        return pool
    return Pool(tuple(replace(worker, strength=strengths.get(worker.id)) for worker in pool))
