"""Runs workflows on questions and grades the answers.

The result of each pair of a question and a workflow is kept, and no call that got a reply is made
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b
from typing import Protocol, final

import anyio

from batuta.clients.cache import count_replays
from batuta.clients.replay import request_fingerprint
from batuta.conductors.fixed_workflows import ROUNDS, ContinuedWorkflow
from batuta.core import (
    CallListener,
    Client,
    Cost,
    Failure,
    Finish,
    Limits,
    Pool,
    Question,
    Reply,
    Request,
    Run,
    Sampling,
    Task,
    Usage,
    Worker,
    WorkerId,
    user_message,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.engine import RunSettings, conduct
from batuta.engine.confidence import ConfidenceModel, SampleSetting
from batuta.engine.finalize import complete_reply
from batuta.errors import (
    BatutaError,
    CircuitOpenError,
    ClientError,
    LimitReachedError,
    StoreError,
    WorkerLostError,
)
from batuta.lab.baselines import Solver, SolverContext
from batuta.lab.evals.grading import AnswerGrader
from batuta.lab.evals.outage import SYSTEM_FAULT_CODES, lost_reply, outage_reason
from batuta.lab.tasks.graders import grade_answer
from batuta.lab.tune.library import (
    PREPARING_ROLES,
    Candidate,
    parts_of,
    write_continuation,
    write_workflow,
)
from batuta.lab.tune.spending import BudgetedClient, DollarLimit
from batuta.usage import ZERO_COST, ZERO_USAGE, Price, usage_cost

_SPREAD = 1009
"""The factor that keeps the seeds of two questions apart, because each repetition of a call adds 1
to its question's seed."""
MOST_FAILED = 10
"""The number of consecutive failed calls after which a required worker counts as lost. Five
failures open the worker's breaker, which lets one call through after each of 15, 30, 60, 120 and
240 seconds."""

Entry = Candidate | Solver
"""A workflow of the library, or a method to compare with the workflows."""
Key = tuple[str, Candidate | str]
"""A question's id, and the workflow or the name of the method."""


class RunsElsewhere(Protocol):
    """Executes runs in other processes, with the same code and the same results."""

    async def execute(
        self,
        missing: Mapping[Key, tuple[Task, Entry]],
        ranked: Pool,
        found: dict[Key, CandidateResult],
        *,
        concurrency: int,
    ) -> None:
        """Execute every run, and put each result into `found` as soon as it arrives.

        `ranked` is the pool whose strengths decide which worker is the best.

        Raises:
            ExceptionGroup: a run failed; it has the first error.
        """
        ...


def result_key(task: Task, entry: Entry) -> Key:
    """Return the key of the entry's result on the task."""
    return task.id, entry if isinstance(entry, Candidate) else entry.name


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateResult:
    """The result of one workflow or method on one question."""

    score: float | None
    """The score in [0, 1]; None after an outage or an undecided grade, or if a call was refused and
    there is an answer."""
    usd: Decimal
    """Dollars of all calls of the run, including calls that an earlier run paid for. Calls of
    unknown price count at the assumed price."""
    calls: int
    seconds: float | None
    """Wall-clock seconds of the run, in which repeated calls take no time; None if a reply came
    from the journal."""
    limited: bool = False
    """Whether the budget refused a call."""
    answer: str | None = None
    parts: tuple[tuple[Candidate, float], ...] = ()
    """The shorter workflows within the workflow that have a score, and the score; empty for a
    method, or if steps are not graded."""
    trail: tuple[float | None, ...] = ()
    """The score of each step's answer; None for a step without a graded answer of its own worker.
    Empty for a method, or if steps are not graded."""
    agreed: bool | None = None
    """Whether the first two answers agreed; None if the workflow does not compare them."""


@final
class CallMeter:
    """Makes no call again that got a reply, and counts the replies and their cost.

    A call that is replayed from the journal counts like a new call, so that the counts do not
    depend on when a process was killed.
    """

    def __init__(self, unknown: Price) -> None:
        self._unknown = unknown
        self.limit: DollarLimit | None = None
        """A limit in dollars, which refuses every call that may exceed it; None for no limit."""
        self._replies: dict[tuple[str, bytes], Reply] = {}
        self._pending: dict[tuple[str, bytes], anyio.Event] = {}
        self.usage = ZERO_USAGE
        self.cost = ZERO_COST
        self.refusals = 0
        """The number of refused calls, those of the judge included."""
        self.is_closed = False
        """Whether only earlier replies are returned and no more calls are made."""
        self.broken: BatutaError | None = None
        """The error that ended all calls: the journal cannot be written, or a worker is lost."""
        self._failed: dict[WorkerId, int] = {}
        """The number of consecutive failures of each required worker."""
        self.after_call: Callable[[], None] = lambda: None
        """Called after the reply to each distinct call, to show progress."""

    def rely_on(self, workers: Iterable[WorkerId]) -> None:
        """Require these workers: wait while a breaker is open, and stop if a worker is lost."""
        self._failed = dict.fromkeys(workers, 0)

    @property
    def calls(self) -> int:
        """The number of distinct calls with a reply so far."""
        return len(self._replies)

    @property
    def usd(self) -> Decimal:
        """Dollars of the distinct calls; calls of unknown price count at the assumed price."""
        return self.cost.usd

    async def complete(
        self, worker: Worker, client: Client, request: Request, listener: CallListener
    ) -> Reply:
        """Return the reply of an equal earlier call, or call the client.

        Raises:
            ClientError: the call gave no usable reply.
            LimitReachedError: the budget or the limit forbids the call, or the meter is closed or
                broken.
        """
        try:
            return await self._complete_once(worker, client, request, listener)
        except LimitReachedError:
            self.refusals += 1
            raise

    async def _complete_once(
        self, worker: Worker, client: Client, request: Request, listener: CallListener
    ) -> Reply:
        if self.limit is not None:
            client = BudgetedClient(client, worker, self.limit)
        key = (worker.id, request_fingerprint(request))
        while key in self._pending:
            await self._pending[key].wait()
        known = self._replies.get(key)
        if known is not None:
            return known
        if self.is_closed or self.broken is not None:
            raise LimitReachedError("calls", str(self.calls), str(self.calls))
        is_done = self._pending[key] = anyio.Event()
        try:
            reply = await self._ask(worker.id, client, request, listener)
            self._replies[key] = reply
            self.usage += reply.usage
            self.cost += Cost(_call_usd(reply.usage, reply.cost, self._unknown))
            if worker.id in self._failed:
                self._failed[worker.id] = 0
            self.after_call()
        except StoreError as error:
            self.broken = error
            raise LimitReachedError("calls", str(self.calls), str(self.calls)) from error
        finally:
            del self._pending[key]
            is_done.set()
        return reply

    async def _ask(
        self, worker: WorkerId, client: Client, request: Request, listener: CallListener
    ) -> Reply:
        """Return the client's reply; wait while the breaker of a required worker is open.

        Without the wait, a short outage would deprive all remaining questions of that worker.
        """
        while True:
            try:
                return await client.complete(request, listener)
            except CircuitOpenError as error:
                if worker not in self._failed or self.broken is not None:
                    raise
                await anyio.sleep(error.retry_after or 1.0)
            except ClientError as error:
                self._count_failure(worker, error)
                raise

    def _count_failure(self, worker: WorkerId, error: ClientError) -> None:
        """Count an outage of a required worker, and stop all calls if the worker is lost."""
        if error.code in SYSTEM_FAULT_CODES or worker not in self._failed:
            return
        self._failed[worker] += 1
        if self._failed[worker] >= MOST_FAILED and self.broken is None:
            self.broken = WorkerLostError(
                f"{worker} failed on {self._failed[worker]} consecutive calls ({error}); "
                "paid calls are kept: once the worker answers again, the same command continues"
            )


def _call_usd(usage: Usage, cost: Cost, unknown: Price) -> Decimal:
    """Return the dollars of a call, at the price `unknown` if the call is unpriced."""
    return cost.usd + (usage_cost(usage, unknown).usd if cost.unpriced_calls else 0)


def _run_usd(run: Run, unknown: Price) -> Decimal:
    """Return the dollars of a run; only its unpriced calls count at the price `unknown`."""
    parts = [one for each in run.rounds for one in (*each.conductor_drafts, *each.steps)]
    return sum((_call_usd(one.usage, one.cost, unknown) for one in parts), Decimal(0))


@final
class _RunClient:
    """A worker's client within one run.

    The seed of a call depends on the question and on the number of equal requests that this run has
    made, not on the index of the step. So different workflows share equal calls.
    """

    def __init__(self, worker: Worker, client: Client, meter: CallMeter, seed: int) -> None:
        self._worker = worker
        self._client = client
        self._meter = meter
        self._seed = seed
        self._repeats: dict[bytes, int] = {}

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        bare = replace(request, sampling=Sampling(seed=0).with_defaults(request.sampling))
        key = request_fingerprint(bare)
        times = self._repeats[key] = self._repeats.get(key, -1) + 1
        sampling = Sampling(seed=self._seed + times).with_defaults(request.sampling)
        request = replace(request, sampling=sampling)
        return await self._meter.complete(self._worker, self._client, request, listener)


@final
class JudgeClient:
    """The client of the worker that grades answers.

    Its requests get a seed, so that they are journaled, and the meter counts its calls like those
    of the workflows.
    """

    def __init__(self, worker: Worker, client: Client, meter: CallMeter, seed: int) -> None:
        self._worker = worker
        self._client = client
        self._meter = meter
        self._sampling = Sampling(seed=seed)

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the judge's reply; an equal request gets the earlier reply.

        Raises:
            ClientError: the call gave no usable reply.
            LimitReachedError: the budget refuses the call.
        """
        request = replace(request, sampling=self._sampling.with_defaults(request.sampling))
        return await self._meter.complete(self._worker, self._client, request, listener)


def open_judge(
    judge: WorkerId | None,
    pool: Pool,
    clients: Mapping[WorkerId, Client],
    meter: CallMeter,
    *,
    seed: int,
) -> JudgeClient | None:
    """Return the client of the worker that grades answers; None without such a worker."""
    return None if judge is None else JudgeClient(pool[judge], clients[judge], meter, seed)


@final
class CandidateRunner:
    """Runs candidates on tasks and remembers their results."""

    def __init__(
        self,
        pool: Pool,
        clients: Mapping[WorkerId, Client],
        grade: AnswerGrader,
        meter: CallMeter,
        *,
        unknown: Price,
        concurrency: int = 32,
        seed: int = 0,
        grades_steps: bool = True,
    ) -> None:
        """Start without results; `unknown` is the assumed price of workers without a price.

        `concurrency` is the maximum number of concurrent runs. With `grades_steps` intermediate
        answers are graded too, which may cost calls.
        """
        self.pool = pool
        self.ranked = pool
        """The pool whose strengths decide which worker is the best, for methods and fallbacks."""
        self.meter = meter
        self._clients = clients
        self._grade = grade
        self.unknown = unknown
        self.concurrency = concurrency
        self._seed = seed
        self._grades_steps = grades_steps
        self._known: dict[Key, CandidateResult] = {}
        self.elsewhere: RunsElsewhere | None = None
        """Executes runs in other processes; None executes them in this process."""

    def find_result(self, task: Task, entry: Entry) -> CandidateResult | None:
        """Return the result of the entry on the task, or None if it has not run."""
        return self._known.get(result_key(task, entry))

    async def run_all(self, planned: Iterable[tuple[Task, Entry]]) -> bool:
        """Run the pairs that have no result yet; return False if the budget refused a call.

        After a refusal none of the new results is kept, so that later decisions do not depend on
        which run finished first.

        Raises:
            ExceptionGroup: a run failed; it has the first error.
            StoreError: the journal of paid calls can no longer be written.
            WorkerLostError: a required worker no longer answers.
        """
        missing = {key: one for one in planned if (key := result_key(*one)) not in self._known}
        found: dict[Key, CandidateResult] = {}
        refusals = self.meter.refusals
        if missing and self.elsewhere is not None:
            await self.elsewhere.execute(missing, self.ranked, found, concurrency=self.concurrency)
        else:
            await self._execute_here(missing, found)
        if self.meter.broken is not None:
            raise self.meter.broken
        if len(found) < len(missing) or self.meter.refusals > refusals:
            return False
        self._known.update(found)
        return True

    async def _execute_here(
        self, missing: Mapping[Key, tuple[Task, Entry]], found: dict[Key, CandidateResult]
    ) -> None:
        waiting = iter(missing.items())

        async def work() -> None:
            for key, (task, entry) in waiting:
                found[key] = result = await self.run_entry(task, entry)
                if result.limited:
                    return

        async with anyio.create_task_group() as group:
            for _ in range(min(self.concurrency, len(missing))):
                group.start_soon(work)

    async def run_entry(self, task: Task, entry: Entry) -> CandidateResult:
        """Execute the workflow or method on the task in this process, and return its result."""
        with count_replays() as replays:
            if isinstance(entry, Candidate):
                run = await self.conduct_candidate(task, entry)
            else:
                context = SolverContext(pool=self.ranked, clients=self.open_clients(task))
                run = await entry.answer(Question.of(task.question), context, 0)
        result = await self._judge(task, run, is_timed=not replays.replies)
        if isinstance(entry, Candidate):
            return await self._add_trail(task, entry, run, result)
        return result

    async def conduct_candidate(
        self, task: Task, entry: Candidate, again: SampleSetting | None = None
    ) -> Run:
        """Execute a workflow on the task; equal earlier calls are not made again.

        `again` tells how to ask an answered question again to measure confidence; None for never.
        """
        workers = {step.worker for step in entry.steps}
        settings = RunSettings(fallback=False)
        if again is not None:
            workers |= {again.worker} if again.worker is not None else set()
            model = ConfidenceModel(samples=again, collects=True)
            settings = replace(settings, confidence=model)
        run = await self._conduct(task, entry, self.pool.subset(workers), settings)
        reply = complete_reply(run.rounds)
        has_answer = reply is not None and reply.finish is not Finish.NO_OUTPUT
        if has_answer or run.limit is not None or outage_reason(run) is not None:
            return run
        # Neither an outage nor a limit: a server would ask the best worker the whole question.
        served = replace(settings, fallback=True)
        return await self._conduct(task, entry, self.ranked, served)

    async def _conduct(
        self, task: Task, entry: Candidate, pool: Pool, settings: RunSettings
    ) -> Run:
        return await conduct(
            Question.of(task.question),
            ContinuedWorkflow(
                name=str(entry), first=write_workflow(entry), continuation=write_continuation(entry)
            ),
            pool,
            self.open_clients(task),
            limits=Limits(rounds=ROUNDS if entry.stops else 1),
            seed=0,
            settings=settings,
        )

    async def repeat_run(
        self, task: Task, entry: Candidate, again: SampleSetting | None = None
    ) -> Run | None:
        """Rebuild the run of a scored result from earlier replies.

        Return None without such a result, if the meter still makes calls, or if the answer differs.
        """
        known = self.find_result(task, entry)
        if known is None or known.score is None or not self.meter.is_closed:
            return None
        run = await self.conduct_candidate(task, entry, again)
        return run if run.answer == known.answer else None

    async def ask(self, worker: WorkerId, prompt: str) -> str:
        """Return the text of the worker's reply; an equal prompt gets the earlier reply.

        Raises:
            ClientError: the call gave no usable reply.
            LimitReachedError: the budget refuses the call.
        """
        request = Request(messages=(user_message(prompt),), sampling=Sampling(seed=self._seed))
        known, client = self.pool[worker], self._clients[worker]
        return (await self.meter.complete(known, client, request, NULL_LISTENER)).text

    async def _add_trail(
        self, task: Task, entry: Candidate, run: Run, result: CandidateResult
    ) -> CandidateResult:
        """Return the result with the steps' scores, and whether the first two answers agreed."""
        continued = len(run.rounds) > 1 and run.rounds[1].workflow is not None
        agreed = None if not entry.stops else not continued
        if not self._grades_steps:
            return replace(result, agreed=agreed)
        trail: list[float | None] = [None] * len(entry)
        for number, round_ in enumerate(run.rounds):
            for step in round_.steps:
                at = step.index + number * entry.first_round
                answers = entry.steps[at].role not in PREPARING_ROLES
                if answers and isinstance(step.result, Reply) and step.worker == step.planned:
                    trail[at] = (await grade_answer(self._grade, task, step.result.text)).score
        found = [(part, trail[index]) for part, index in parts_of(entry)]
        parts = tuple((part, score) for part, score in found if score is not None)
        return replace(result, parts=parts, trail=tuple(trail), agreed=agreed)

    async def _judge(self, task: Task, run: Run, *, is_timed: bool) -> CandidateResult:
        """Grade the run's answer, and return the result.

        The score is None if an outage changed the run, if the grade is undecided, or if a limit
        refused a call and there is an answer. Any other run without an answer scores 0.
        """
        score = None
        codes = [one.result.code for one in run.steps if isinstance(one.result, Failure)]
        limited = run.limit is not None or "limit" in codes
        is_outage = outage_reason(run) is not None or lost_reply(run) is not None
        if run.answer is None and not is_outage:
            score = 0.0
        elif run.answer is not None and not is_outage and not limited:
            score = (await grade_answer(self._grade, task, run.answer)).score
        return CandidateResult(
            score=score,
            usd=_run_usd(run, self.unknown),
            calls=run.usage.calls,
            seconds=run.seconds if is_timed else None,
            limited=limited,
            answer=run.answer,
        )

    def rank_by(self, pool: Pool) -> None:
        """Change the pool whose strengths decide which worker is the best."""
        self.ranked = pool

    def open_clients(self, task: Task) -> Mapping[WorkerId, Client]:
        """Return new clients for one run on that task."""
        digest = blake2b(f"{task.id} {self._seed}".encode("utf-8", "replace"), digest_size=3)
        seed = int.from_bytes(digest.digest(), "big") * _SPREAD % 2**31
        return {
            worker.id: _RunClient(worker, self._clients[worker.id], self.meter, seed)
            for worker in self.pool
        }
