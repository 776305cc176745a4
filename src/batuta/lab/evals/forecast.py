"""Forecasts the calls of an evaluation and their cost before any call is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from batuta.conductors import FixedConductor
from batuta.conductors.workflow_selector import WorkflowSelector
from batuta.config.served_systems import ServedSystem
from batuta.core import Conductor, Cost, Question, Step, Worker, Workflow
from batuta.core import Pool as WorkerPool
from batuta.core.conductor import conductor_worker
from batuta.core.formatting import format_usd
from batuta.engine.workflow_estimate import estimate_samples, estimate_workflow
from batuta.lab.baselines import ConductorSolver, SingleWorker
from batuta.lab.baselines.parallel_answers import build_parallel_workflow
from batuta.lab.evals.all_workers import AllWorkers, Vote
from batuta.lab.evals.learned_methods import SKILLS, UnfittedSolver
from batuta.lab.evals.runner import EvalTrial
from batuta.lab.evals.served_solver import ServedSolver
from batuta.usage import usage_cost

USUAL_STEPS = 3
"""The assumed number of steps of a workflow that a model writes."""
_PRICED_RUNS = 40
"""If there are more runs, at least so many are priced; the others are assumed to cost the same."""
_CASCADE_CALLS = 2
"""The assumed mean number of a cascade's calls; a checker makes one more call."""


@dataclass(frozen=True, slots=True)
class ExpectedCalls:
    """The expected number and price of some runs' calls."""

    calls: float = 0.0
    usd: Decimal = Decimal(0)
    unpriced: float = 0.0
    """The number of calls whose price is unknown."""

    def __add__(self, other: ExpectedCalls) -> ExpectedCalls:
        return ExpectedCalls(
            self.calls + other.calls, self.usd + other.usd, self.unpriced + other.unpriced
        )

    def scale(self, factor: float) -> ExpectedCalls:
        """Return all figures times a factor."""
        return ExpectedCalls(
            self.calls * factor, self.usd * Decimal(str(factor)), self.unpriced * factor
        )

    def __str__(self) -> str:
        """Return calls and dollars as text."""
        unknown = f" and {self.unpriced:,.0f} of unknown price" if round(self.unpriced) else ""
        return f"about {self.calls:,.0f} calls, {format_usd(float(self.usd))}{unknown}"


@dataclass(frozen=True, slots=True)
class EvalForecast:
    """The calls still to be made, by system.

    `calibration` comes first if it is needed; `equal` has the systems added for a comparison.
    """

    systems: Mapping[str, ExpectedCalls]
    notes: tuple[str, ...] = ()
    """Further remarks to print before any call is made."""

    @property
    def total(self) -> ExpectedCalls:
        """The calls of all systems together."""
        return sum(self.systems.values(), ExpectedCalls())

    def __str__(self) -> str:
        """Return the forecast in a line."""
        first = self.systems.get("calibration")
        calibrating = f", {first.calls:,.0f} of them to calibrate" if first else ""
        return f"{self.total}{calibrating}"


def expect_calls(trials: Sequence[EvalTrial]) -> ExpectedCalls:
    """Estimate the calls of these runs from some of them, taken at equal distances."""
    if not trials:
        return ExpectedCalls()
    step = max(1, len(trials) // _PRICED_RUNS)
    priced = trials[::step]
    found = sum((_expect_run(trial) for trial in priced), ExpectedCalls())
    return found.scale(len(trials) / len(priced))


def _expect_run(trial: EvalTrial) -> ExpectedCalls:
    solver = trial.system.solver
    if isinstance(solver, ServedSolver):
        system = solver.system
        expected = _expect_conducted(trial, system.conductor, system.limits.rounds)
        return expected + _expect_samples(trial, system)
    if isinstance(solver, SingleWorker) and solver.worker is not None:
        return _price_workflow(trial, Workflow((Step(subtask="", worker=solver.worker),)))
    if isinstance(solver, AllWorkers | Vote):
        samples = solver.samples if isinstance(solver, AllWorkers) else 1
        workers = [worker.id for worker in trial.pool.ranked() for _ in range(samples)]
        return _price_workflow(trial, build_parallel_workflow(workers))
    if isinstance(solver, UnfittedSolver):
        return _price_average(trial, _learned_calls(trial))
    if solver.calls is not None:
        return _price_average(trial, solver.calls)
    if isinstance(solver, ConductorSolver):
        return _expect_conducted(trial, solver.conductor, solver.rounds)
    return _price_average(trial, USUAL_STEPS)


def _learned_calls(trial: EvalTrial) -> int:
    if trial.system.uses_all_answers:
        return len(trial.pool.ranked())
    if trial.system.name == SKILLS:
        return 2  # one call finds the skills, and one asks a worker
    if trial.system.name.startswith("cascade"):
        return _CASCADE_CALLS + trial.system.name.endswith("checker")
    return 1


def _expect_conducted(trial: EvalTrial, conductor: Conductor, rounds: int) -> ExpectedCalls:
    """Price the workflow that the conductor would write, or a typical workflow and its drafts."""
    if isinstance(conductor, FixedConductor):
        return _price_workflow(trial, conductor.build_workflow(trial.pool))
    if isinstance(conductor, WorkflowSelector):
        most = trial.subject.limits.steps
        return _price_workflow(trial, conductor.choose(trial.task.question, trial.pool, most))
    steps = _price_average(trial, min(USUAL_STEPS, trial.subject.limits.steps))
    worker = conductor_worker(conductor)
    if worker is None:  # no model drafts, or a model in this process, whose drafts are not calls
        return steps
    return steps + _price_workers(trial, [worker]).scale(rounds)


def _expect_samples(trial: EvalTrial, system: ServedSystem) -> ExpectedCalls:
    """Price the confidence samples of a run.

    If the worker of the answer is to be sampled, the price of the best worker is used.
    """
    model, best = system.settings.confidence, trial.pool.ranked()[0].id
    again = None if model is None else model.find_samples(system.conductor.name, best)
    worker = None if again is None else again.find_worker(trial.pool, best)
    if again is None or worker is None:
        return ExpectedCalls()
    samples = estimate_samples(Question.of(trial.task.question), worker, again.count)
    return _sum_up(again.count, usage_cost(samples, worker.price))


def _price_workflow(trial: EvalTrial, workflow: Workflow) -> ExpectedCalls:
    found = estimate_workflow(Question.of(trial.task.question), workflow, trial.pool)
    return _sum_up(len(workflow), found.cost)


def _price_average(trial: EvalTrial, calls: int) -> ExpectedCalls:
    """Price that many calls with the bare question, each at the mean price of all workers."""
    return _price_workers(trial, list(trial.pool)).scale(calls)


def _price_workers(trial: EvalTrial, workers: Sequence[Worker]) -> ExpectedCalls:
    """Price a call with the bare question, averaged over these workers."""
    asked = Question.of(trial.task.question)
    flow = build_parallel_workflow([worker.id for worker in workers])
    found = estimate_workflow(asked, flow, WorkerPool(tuple(workers)))
    return _sum_up(len(workers), found.cost).scale(1 / len(workers))


def _sum_up(calls: int, cost: Cost) -> ExpectedCalls:
    return ExpectedCalls(calls, cost.usd, cost.unpriced_calls)
