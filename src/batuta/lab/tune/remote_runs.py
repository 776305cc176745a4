"""Runs of a tuning that an executor's processes execute; their calls are made here.

A process on another machine conducts a workflow and grades its answers, and has no key of a
provider: it asks the driver for each call. So there is one meter, one budget and one journal,
however many processes work, and one that dies loses no call: what it had asked for is finished,
written down, and given to whoever executes the run again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import final

from batuta.core import (
    CallListener,
    Client,
    Delta,
    Failure,
    Pool,
    Price,
    Reply,
    Request,
    Task,
    Worker,
    WorkerId,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.errors import ClientError, LimitReachedError
from batuta.lab.evals.grading import AnswerGrader, open_answer_grader
from batuta.lab.executor import Executor, ask_driver
from batuta.lab.tune.candidate_runner import CallMeter, CandidateResult, CandidateRunner, Entry, Key

RunOrder = tuple[Task, Entry]
"""A question, and the workflow or method that is run on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOrder:
    """A call that a process asks the driver to make."""

    worker: WorkerId
    request: Request
    grades: bool = False
    """Whether it judges an answer: such calls are not of a run and not counted as its."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """What came of it."""

    reply: Reply | None
    """None: there is an error."""
    error: ClientError | LimitReachedError | None
    failures: tuple[Failure, ...]
    """Of attempts that the client made again, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRunJob:
    """The job: conducts and grades; calls nobody itself."""

    pool: Pool
    ranked: Pool
    """Methods that ask the best worker ask the best of this pool."""
    unknown: Price
    seed: int
    grades_steps: bool
    kinds: tuple[Task, ...]
    """A task of each grader."""
    grade: AnswerGrader | None
    """Of questions with a grader of their own; None: the tasks' graders, opened by the job."""
    judge: WorkerId | None
    sandbox: str

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Callable[[RunOrder], Awaitable[CandidateResult]]]:
        """What executes a run.

        Raises:
            ConfigError: a grader lacks an extra here.
            SandboxError: programs cannot be run apart from the machine here.
        """
        limit_blas_to_one_thread()
        judging = None if self.judge is None else _AskingClient(self.judge, grades=True)
        async with (
            open_answer_grader(self.kinds, judging, self.sandbox)
            if self.grade is None
            else nullcontext(self.grade) as grade
        ):
            runner = CandidateRunner(
                self.pool,
                {worker.id: _AskingClient(worker.id) for worker in self.pool},
                grade,
                CallMeter(self.unknown),
                unknown=self.unknown,
                seed=self.seed,
                grades_steps=self.grades_steps,
            )
            runner.rank_by(self.ranked)

            async def execute(order: RunOrder) -> CandidateResult:
                return await runner.run_entry(*order)

            yield execute


@final
class _AskingClient:
    """A worker's client in another process: the driver makes the call."""

    def __init__(self, worker: WorkerId, *, grades: bool = False) -> None:
        self._worker = worker
        self._grades = grades

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """The reply that the driver got.

        Raises:
            ClientError: the call gave no usable reply.
            LimitReachedError: the budget forbids it.
            StoreError: it cannot be written down.
        """
        order = CallOrder(worker=self._worker, request=request, grades=self._grades)
        answer: CallAnswer = await ask_driver(order)
        for failure in answer.failures:  # heard late, so that what they cost counts for the run
            await listener.on_failure(failure)
        if answer.reply is None:
            raise answer.error or ClientError("the driver made no call")
        return answer.reply


@dataclass(slots=True)
class _FailureRecorder:
    """Hears the attempts that failed before the reply."""

    failures: list[Failure] = field(default_factory=list[Failure])
    streaming: bool = False

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """The request as it is."""
        return request

    async def on_delta(self, delta: Delta) -> None:
        """Nobody sees fragments."""

    async def on_failure(self, failure: Failure) -> None:
        """An attempt failed and another one follows."""
        self.failures.append(failure)


@final
class RemoteRuns:
    """Executes a runner's runs on an executor, and makes the calls that they ask for."""

    def __init__(
        self,
        executor: Executor,
        job: TuneRunJob,
        clients: Mapping[WorkerId, Client],
        meter: CallMeter,
    ) -> None:
        """Executes nothing yet.

        Args:
            executor: whose processes execute runs.
            job: what they open.
            clients: the workers', within the budget and the journal.
            meter: counts the calls of runs, each once.
        """
        self._executor = executor
        self._job = job
        self._clients = clients
        self._meter = meter
        self._refusal: LimitReachedError | None = None

    async def execute(
        self,
        missing: Mapping[Key, RunOrder],
        ranked: Pool,
        found: dict[Key, CandidateResult],
        *,
        concurrency: int,
    ) -> None:
        """Execute every run; once a call was refused no new one is made for the others.

        Args:
            missing: what to execute.
            ranked: methods that ask the best worker ask the best of this pool.
            found: where results go as soon as they are there.
            concurrency: runs at the same time at most.

        Raises:
            ExceptionGroup: of the first error.
        """
        keys = list(missing)
        self._refusal = None

        def keep(place: int, result: CandidateResult) -> None:
            found[keys[place]] = result

        await self._executor.run_all(
            replace(self._job, ranked=ranked),
            [missing[key] for key in keys],
            keep,
            concurrency=concurrency,
            answer=self.make_call,
        )

    async def make_call(self, order: CallOrder) -> CallAnswer:
        """The reply or the error, and what failed before it.

        Raises:
            StoreError: the call cannot be written down.
        """
        heard = _FailureRecorder()
        worker, client = self._job.pool[order.worker], self._clients[order.worker]
        reply, error = None, None
        try:
            if order.grades:
                reply = await client.complete(order.request, heard)
            else:
                reply = await self._meter.complete(
                    worker, _Refusable(client, self._refusal), order.request, heard
                )
        except LimitReachedError as refused:
            error = refused
            if not order.grades:
                self._refusal = self._refusal or refused
        except ClientError as failed:
            error = failed
        return CallAnswer(reply=reply, error=error, failures=tuple(heard.failures))


@final
@dataclass(frozen=True, slots=True)
class _Refusable:
    """A client that makes no new call once one was refused: what it would buy is thrown away."""

    client: Client
    refusal: LimitReachedError | None

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        if self.refusal is not None:
            raise self.refusal
        return await self.client.complete(request, listener)
