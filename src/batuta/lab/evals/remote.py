"""Runs trials in an executor's processes, on this or other machines.

A process receives names, questions and pools, and fitted methods as objects. It opens the pool, the
conductor, the journal and the grader itself, with the same code.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import final

from batuta.core import Pool, Task
from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.lab.baselines import Solver
from batuta.lab.evals.grading import AnswerGrader
from batuta.lab.evals.run_archive import MeasuredRun
from batuta.lab.evals.runner import EvalTrial, TrialListener, run_trial
from batuta.lab.evals.setup import SubjectSetup
from batuta.lab.evals.subject import Subject
from batuta.lab.evals.systems import CALIBRATION, System, calibration_system, find_system
from batuta.lab.executor import Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """A trial without the objects that cannot be sent."""

    key: str
    system: str
    task: Task
    family: str
    seed: int
    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrders:
    """The job of a process: opens a subject and runs orders on it."""

    setup: SubjectSetup
    kinds: tuple[Task, ...]
    """One task of each grader that is needed."""
    grade: AnswerGrader | None
    """None for the tasks' own graders."""
    solvers: Mapping[str, Solver] = field(default_factory=dict[str, Solver])
    """Fitted solvers, by system."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Callable[[TrialOrder], Awaitable[MeasuredRun | None]]]:
        """Open what runs an order.

        Raises:
            BatutaError: the pool, the journal or the grader cannot be opened here.
        """
        limit_blas_to_one_thread()
        async with AsyncExitStack() as stack:
            opened = await self.setup.open_subject(stack)
            subject = await self.setup.open_journal(opened, stack)
            grade = self.grade or await self.setup.open_marking(self.kinds, subject, stack)
            systems: dict[str, System] = {}

            async def execute(order: TrialOrder) -> MeasuredRun | None:
                if order.system not in systems:
                    systems[order.system] = self._find_system(order.system, subject)
                trial = EvalTrial(
                    key=order.key,
                    system=systems[order.system],
                    task=order.task,
                    family=order.family,
                    seed=order.seed,
                    pool=order.pool,
                    subject=subject,
                )
                return await run_trial(trial, grade)

            yield execute

    def _find_system(self, name: str, subject: Subject) -> System:
        found = _named_system(name, subject)
        solver = self.solvers.get(name)
        return found if solver is None else replace(found, solver=solver)


@final
@dataclass(frozen=True, slots=True)
class RemoteTrials:
    """Runs trials on an executor with other processes."""

    executor: Executor
    setup: SubjectSetup
    grade: AnswerGrader | None
    """The grader of a task set, as a function that other processes can import; None for the tasks'
    own graders, opened by each process."""

    async def __call__(
        self,
        trials: Sequence[EvalTrial],
        grade: AnswerGrader,
        deliver: TrialListener,
        concurrency: int,
    ) -> None:
        """Run every trial as `TrialRunner` says, with its own grader instead of `grade`."""
        kinds = {trial.task.grader: trial.task for trial in trials} if self.grade is None else {}
        one_of_each = {trial.system.name: trial for trial in trials}
        learned = {
            name: trial.system.solver
            for name, trial in one_of_each.items()
            if _named_system(name, trial.subject).fitter is not None
        }
        job = TrialOrders(
            setup=self.setup, kinds=tuple(kinds.values()), grade=self.grade, solvers=learned
        )
        await self.executor.run_all(
            job,
            [_order_of(trial) for trial in trials],
            lambda _, result: deliver(result),
            concurrency=concurrency,
        )


def _named_system(name: str, subject: Subject) -> System:
    if name.startswith(CALIBRATION):
        return calibration_system(subject.pool[name.removeprefix(CALIBRATION)].id)
    return find_system(name, subject)


def _order_of(trial: EvalTrial) -> TrialOrder:
    return TrialOrder(
        key=trial.key,
        system=trial.system.name,
        task=trial.task,
        family=trial.family,
        seed=trial.seed,
        pool=trial.pool,
    )
