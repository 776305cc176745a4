"""Opens a subject and its grader from names, so that trials can run on any machine.

A process of an executor receives names, questions, pools and fitted methods. The process then opens
the pool, the conductor, the journal and the grader with the same code as the main process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from batuta.clients import HttpTransport
from batuta.clients.cache_shared import open_call_journal
from batuta.clients.providers import Identity, client_identity, identity_digest
from batuta.conductors import LLMConductor
from batuta.config.load import load_config
from batuta.config.loaded import LoadedConfig
from batuta.config.served_systems import LOCAL_TENANT
from batuta.core import Client, Conductor, Pool, Task, WorkerId
from batuta.core.suggestions import suggest_names
from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.errors import ConfigError
from batuta.lab.baselines import Solver
from batuta.lab.evals.grading import PROGRAM_PREFIX, AnswerGrader, open_answer_grader
from batuta.lab.evals.pool_record import note_identities
from batuta.lab.evals.run_archive import MeasuredRun
from batuta.lab.evals.runner import EvalTrial, TrialListener, run_trial
from batuta.lab.evals.subject import Subject
from batuta.lab.evals.systems import CALIBRATION, System, calibration_system, find_system
from batuta.lab.executor import Executor
from batuta.lab.tasks.graders.question_tests import QuestionTestRunner, find_question_tests
from batuta.sandbox import Sandbox, SandboxBackend

JUDGE = "the judge"
"""The name under which the identity of the judge's model is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectSetup:
    """The names from which a subject is opened; named files must be equal on every machine."""

    pool: str | None = None
    """The pool and the conductor are named as for `load_config`; None for the defaults."""
    rehearses: bool = False
    """Whether the questions are the rehearsal's, so that the rehearsal's pool is the default."""
    conductor: str | None = None
    journal: str | None = None
    """A file, or the URL of a PostgreSQL database; None if calls are not stored."""
    scope: str = ""
    """The evaluation's name; calls in a database are shared among evaluations of one name."""
    judge: str | None = None
    """The worker that grades answers that no rule decides; None: no worker does."""
    sandbox: str = SandboxBackend.AUTO.value
    calibrates: bool = False
    """Whether confidence is fitted to the runs; samples in the settings are then always taken."""

    async def open_subject(self, stack: AsyncExitStack) -> Subject:
        """Open the pool and its conductors; the connections close with the stack.

        Raises:
            ConfigError: there is no such pool or conductor, or a key is missing.
        """
        http = await stack.enter_async_context(HttpTransport())
        loaded = await load_config(
            http,
            pool=self.pool,
            conductor=self.conductor,
            time_scale=0.0,
            rehearses=self.rehearses,
        )
        subject = subject_of(loaded)
        if not self.calibrates or subject.confidence is None:
            return subject
        return replace(subject, confidence=replace(subject.confidence, collects=True))

    def note_pool(
        self, subject: Subject, folder: Path, *, write: bool = True
    ) -> tuple[Subject, str]:
        """Compare the pool with the folder's record, and update the record if `write` is set.

        Returns:
            The subject with `replaced` filled in, and a sentence about the changes since the folder
            was last used; empty if there are none.

        Raises:
            StoreError: the record is damaged, or it cannot be read or written.
        """
        judge: Identity = {"worker": self.judge or "nobody"}
        if self.judge and (client := subject.clients.get(WorkerId(self.judge))):
            judge = {**judge, "reached": identity_digest(client_identity(client))}
        found = note_identities(folder, {**subject.identities, JUDGE: judge}, write=write)
        return replace(subject, replaced=found.replaced), found.sentence

    async def open_journal(self, subject: Subject, stack: AsyncExitStack) -> Subject:
        """Return the subject with a journal of finished calls, if the setup names one.

        Raises:
            ConfigError: the extra for PostgreSQL is not installed.
            StoreError: the journal cannot be opened.
        """
        if self.journal is None:
            return subject
        opened = await stack.enter_async_context(open_call_journal(self.journal, self.scope))
        return subject.with_call_cache(opened)

    async def open_tests(
        self, tasks: Sequence[Task], subject: Subject, stack: AsyncExitStack
    ) -> Subject:
        """Return the subject with a runner for the tests that questions show, if any question does.

        Raises:
            SandboxError: programs cannot be isolated here.
        """
        programs = (task for task in tasks if task.grader.startswith(PROGRAM_PREFIX))
        if not any(find_question_tests(task.question) for task in programs):
            return subject
        sandbox = await stack.enter_async_context(Sandbox.open(self.sandbox))
        return replace(subject, run_tests=QuestionTestRunner(sandbox))

    async def open_grader(
        self, tasks: Sequence[Task], subject: Subject, stack: AsyncExitStack
    ) -> AnswerGrader:
        """Open the grader of those tasks.

        Raises:
            ConfigError: there is no such grader, kind of sandbox or judge.
            SandboxError: programs cannot be isolated here.
            SourceError: a task's data or answer do not fit its grader.
        """
        if self.sandbox not in set(SandboxBackend):
            raise ConfigError(
                f"no sandbox {self.sandbox!r}; choose among: {', '.join(SandboxBackend)}"
            )
        judge = _find_judge(self.judge, subject)
        return await stack.enter_async_context(open_answer_grader(tasks, judge, self.sandbox))


def subject_of(loaded: LoadedConfig) -> Subject:
    """Return the subject of a pool and its conductors, with the settings that a server uses."""
    return Subject(
        pool=loaded.pool,
        clients=loaded.clients,
        conductor=_without_breaker(loaded.conductor),
        mini=loaded.mini and _without_breaker(loaded.mini),
        limits=loaded.limits,
        max_rounds=loaded.max_rounds,
        presets=tuple(
            replace(one, conductor=one.conductor and _without_breaker(one.conductor))
            for one in loaded.presets
        ),
        confidence=loaded.confidence,
        timeouts=loaded.timeouts,
        guardrails=loaded.guardrails,
        plan_rules=loaded.plan_rules.of_tenant(LOCAL_TENANT),
        terms=loaded.terms,
        notes=loaded.notes,
        source=loaded.source,
        simulated=loaded.simulated,
    )


def _without_breaker(conductor: Conductor) -> Conductor:
    """Return the conductor without its breaker, so that it is measured on every question.

    A server skips a conductor that wrote no workflow for several questions in a row. In an
    evaluation, that would leave out later questions, depending on the timing.
    """
    if isinstance(conductor, LLMConductor):
        return replace(conductor, health=None)
    return conductor


def _find_judge(name: str | None, subject: Subject) -> Client | None:
    if name is None:
        return None
    if name not in subject.pool:
        known = suggest_names(name, (worker.id for worker in subject.pool))
        raise ConfigError(f"there is no worker {name!r} for the judge; {known}")
    return subject.clients[WorkerId(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """An `EvalTrial` in a form that can be sent to another process: its system is a name."""

    key: str
    system: str
    task: Task
    family: str
    seed: int
    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrders:
    """The job of a process: opens a subject and runs trials on it."""

    setup: SubjectSetup
    kinds: tuple[Task, ...]
    """One task for each grader that is needed; empty if there is a grader for all tasks."""
    grade: AnswerGrader | None
    """The grader of all tasks; None if each task names its grader."""
    solvers: Mapping[str, Solver] = field(default_factory=dict[str, Solver])
    """The fitted solvers, by system; other systems are opened by their names."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Callable[[TrialOrder], Awaitable[MeasuredRun | None]]]:
        """Open the subject, and yield a function that runs a trial on it.

        Raises:
            BatutaError: the pool, the journal or the grader cannot be opened here.
        """
        limit_blas_to_one_thread()
        async with AsyncExitStack() as stack:
            opened = await self.setup.open_subject(stack)
            subject = await self.setup.open_journal(opened, stack)
            grade = self.grade or await self.setup.open_grader(self.kinds, subject, stack)
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
    """Runs trials in an executor's processes, which do not execute the tests in questions."""

    executor: Executor
    setup: SubjectSetup
    grade: AnswerGrader | None
    """The grader of all tasks, a function that other processes can import; None if each task names
    its grader, which each process then opens."""

    async def __call__(
        self,
        trials: Sequence[EvalTrial],
        grade: AnswerGrader,
        deliver: TrialListener,
        concurrency: int,
    ) -> None:
        """Run every trial, as a `TrialRunner`.

        The argument `grade` is ignored, because it may not be importable in other processes.
        """
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
