"""Executes the runs of a tuning run in an executor's processes; the driver makes their calls.

A process on another machine conducts workflows and grades answers but has no provider's key. It
asks the driver to make each call, so that there is one meter, one budget and one journal. If a
process dies, its pending calls finish and are journaled, and the repeated run uses them.
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
from batuta.lab.tune.candidate_runner import (
    CallMeter,
    CandidateResult,
    CandidateRunner,
    Entry,
    Key,
    open_judge,
)

PlannedRun = tuple[Task, Entry]
"""A question, and the workflow or method to run on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCall:
    """A call that a process asks the driver to make."""

    worker: WorkerId
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """The driver's answer to a `RemoteCall`: a reply or an error."""

    reply: Reply | None
    error: ClientError | LimitReachedError | None
    failures: tuple[Failure, ...]
    """The failed attempts that the client retried, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRunJob:
    """The job of a process: conducts and grades runs, and asks the driver to make the calls."""

    pool: Pool
    ranked: Pool
    """The pool whose strengths decide which worker is the best, for methods and fallbacks."""
    unknown: Price
    """The assumed price of workers without a price."""
    seed: int
    grades_steps: bool
    """Whether intermediate answers are graded too."""
    kinds: tuple[Task, ...]
    """One task for each grader that is needed; empty if `grade` grades all questions."""
    grade: AnswerGrader | None
    """The grader of all questions; None if each task names its own grader."""
    judge: WorkerId | None
    """The worker that grades answers that no rule decides; None leaves them undecided."""
    sandbox: str
    """The kind of sandbox in which graders run programs, as in `Sandbox.open`."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Callable[[PlannedRun], Awaitable[CandidateResult]]]:
        """Open the grader, and yield the function that executes a run.

        Raises:
            ConfigError: a grader lacks an extra or a judge in this process.
            SandboxError: programs cannot be isolated on this machine.
            SourceError: a question does not fit its grader.
        """
        limit_blas_to_one_thread()
        meter, clients = (
            CallMeter(self.unknown),
            {one.id: _AskingClient(one.id) for one in self.pool},
        )
        judging = open_judge(self.judge, self.pool, clients, meter, seed=self.seed)
        async with (
            open_answer_grader(self.kinds, judging, self.sandbox)
            if self.grade is None
            else nullcontext(self.grade) as grade
        ):
            runner = CandidateRunner(
                self.pool,
                clients,
                grade,
                meter,
                unknown=self.unknown,
                seed=self.seed,
                grades_steps=self.grades_steps,
            )
            runner.rank_by(self.ranked)

            async def execute(order: PlannedRun) -> CandidateResult:
                return await runner.run_entry(*order)

            yield execute


@final
class _AskingClient:
    """A worker's client in another process, which asks the driver to make the call."""

    def __init__(self, worker: WorkerId) -> None:
        self._worker = worker

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply that the driver received; report its failed attempts to the listener.

        Raises:
            ClientError: the call gave no usable reply.
            LimitReachedError: the driver's budget refused the call.
            ExecutorError: the driver's error cannot be sent to this process.
        """
        order = RemoteCall(worker=self._worker, request=request)
        answer: CallAnswer = await ask_driver(order)
        for failure in answer.failures:  # their cost counts for the run
            await listener.on_failure(failure)
        if answer.reply is None:
            raise answer.error or ClientError("the driver made no call")
        return answer.reply


@dataclass(slots=True)
class _FailureRecorder:
    """Records the attempts that failed before the reply."""

    failures: list[Failure] = field(default_factory=list[Failure])
    streaming: bool = False

    async def before_call(self, request: Request, worker: Worker) -> Request:
        return request

    async def on_delta(self, delta: Delta) -> None:
        """Ignore the fragment."""

    async def on_failure(self, failure: Failure) -> None:
        self.failures.append(failure)


@final
class RemoteRuns:
    """Executes a runner's runs on an executor, and makes the calls for the executor's processes."""

    def __init__(
        self,
        executor: Executor,
        job: TuneRunJob,
        clients: Mapping[WorkerId, Client],
        meter: CallMeter,
    ) -> None:
        """Store the job of the processes, and the driver's clients and meter for their calls."""
        self._executor = executor
        self._job = job
        self._clients = clients
        self._meter = meter
        self._refusal: LimitReachedError | None = None

    async def execute(
        self,
        missing: Mapping[Key, PlannedRun],
        ranked: Pool,
        found: dict[Key, CandidateResult],
        *,
        concurrency: int,
    ) -> None:
        """Execute every run; after a refused call no new call is made.

        Each result is put into `found` as soon as it arrives. `ranked` is the pool whose strengths
        decide which worker is the best, and `concurrency` the maximum number of concurrent runs.

        Raises:
            ExceptionGroup: a run failed; it has the first error.
            ExecutorError: the job cannot be sent to other processes.
        """
        keys = list(missing)
        self._refusal = None

        def keep(index: int, result: CandidateResult) -> None:
            found[keys[index]] = result

        await self._executor.run_all(
            replace(self._job, ranked=ranked),
            [missing[key] for key in keys],
            keep,
            concurrency=concurrency,
            answer=self.make_call,
        )

    async def make_call(self, order: RemoteCall) -> CallAnswer:
        """Make a call, and return the reply or the error, and the failed attempts.

        If the call cannot be journaled, the meter keeps that error, and the answer says that a
        limit was reached.
        """
        recorder = _FailureRecorder()
        worker, client = self._job.pool[order.worker], self._clients[order.worker]
        reply, error = None, None
        try:
            reply = await self._meter.complete(
                worker, _ClientUntilRefusal(client, self._refusal), order.request, recorder
            )
        except LimitReachedError as refused:
            error = refused
            self._refusal = self._refusal or refused
        except ClientError as failed:
            error = failed
        return CallAnswer(reply=reply, error=error, failures=tuple(recorder.failures))


@final
@dataclass(frozen=True, slots=True)
class _ClientUntilRefusal:
    """A client that makes no call after a refusal, because the runs' results will be discarded."""

    client: Client
    refusal: LimitReachedError | None

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        if self.refusal is not None:
            raise self.refusal
        return await self.client.complete(request, listener)
