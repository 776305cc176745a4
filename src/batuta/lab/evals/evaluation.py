"""The parts and results of an evaluation, and explanations of the choice of the best worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batuta.core import Pool, Worker, WorkerId
from batuta.lab.evals.fitted_methods import FittedMethod
from batuta.lab.evals.matched_budget import MatchedBudget
from batuta.lab.evals.result_log import TrialResult
from batuta.lab.evals.runner import EvalOptions
from batuta.lab.evals.subject import Subject
from batuta.lab.evals.systems import System
from batuta.lab.evals.task_sets import TaskSet
from batuta.lab.learners.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPart:
    """One part of an evaluation: questions, seeds, the subject, and prior outcomes."""

    subject: Subject
    tasks: TaskSet
    seeds: tuple[int, ...] = (0,)
    """Each task is run once with each seed."""
    history: History | None = None
    """Outcomes known beforehand; None to measure `tasks.calibration` if a system needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The measured systems and their results."""

    parts: tuple[EvalPart, ...]
    options: EvalOptions
    systems: tuple[System, ...]
    results: Mapping[str, tuple[TrialResult, ...]]
    """Results by system."""
    strengths: Mapping[WorkerId, float | None] = field(default_factory=dict[WorkerId, float | None])
    """Each worker's accuracy on the questions known beforehand, averaged over the parts; None if
    unknown. Empty if no system needed it, or if there were no such questions."""
    budgets: tuple[MatchedBudget, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Systems that could not be measured here, with the reason."""
    unasked: int = 0
    """Runs that did not start because the budget did not allow them."""
    fitted: Mapping[str, tuple[FittedMethod | None, ...]] = field(
        default_factory=dict[str, tuple[FittedMethod | None, ...]]
    )
    """The method fitted on each part, by system; None if the file of fitted methods lacks it."""

    @property
    def subject(self) -> Subject:
        """The first part's subject; other parts differ in what is known about the workers."""
        return self.parts[0].subject

    @property
    def tasks(self) -> TaskSet:
        """The first part's tasks."""
        return self.parts[0].tasks

    @property
    def outcomes(self) -> History | None:
        """The first part's outcomes of each single worker on the questions known beforehand.

        None for a record, if no worker was measured, or if one of the questions is private.
        """
        known = self.parts[0]
        if known.subject.replay_pool is not None or any(
            task.private for task in known.tasks.calibration
        ):
            return None
        return known.history if known.history and known.history.runs_qm.any() else None


def explain_best(pool: Pool) -> str:
    """Return why the first worker of `pool.ranked()` comes first, as a clause after "because"."""
    best, *others = pool.ranked()
    if not others:
        return "there is no other"
    second = others[0]
    if best.strength is not None:
        return _explain_equal_strength(best, second)
    unrated = [worker for worker in (best, *others) if worker.strength is None]
    families = set(best.measured).intersection(*(worker.measured for worker in unrated))
    if sum(best.measured[one] for one in families) > sum(second.measured[one] for one in families):
        return "its measured skills are the best"
    if best.price and (not second.price or best.price.output > second.price.output):
        return "it is the most expensive"
    if (best.parameters or 0) > (second.parameters or 0):
        return "it is the largest"
    return "it is the first of the pool"


def _explain_equal_strength(best: Worker, second: Worker) -> str:
    """Return why a worker with a strength comes before the second one of the pool."""
    if best.strength != second.strength:
        return "its strength in the pool is the greatest"
    those = "of the workers with the greatest strength in the pool"
    if best.price and (not second.price or best.price.output < second.price.output):
        return f"it is the cheapest {those}"
    if (best.parameters or 0) > (second.parameters or 0):
        return f"it is the largest {those}"
    return f"it is the first {those}"


def warn_unmeasured(pool: Pool) -> str:
    """Return a warning that names the worker taken as the best without a measurement."""
    return (
        f"there are no other questions to measure the workers on: {pool.ranked()[0].id} is taken "
        f"as the best single worker, because {explain_best(pool)}; another worker may be better. "
        "Use fewer questions with --limit (for a record another --split), so that the rest can "
        "measure the workers"
    )
