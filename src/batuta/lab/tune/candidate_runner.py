"""Runs workflows on questions: each once, no call made twice, every answer graded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b
from typing import Protocol, final

import anyio

from batuta.clients.replay import request_fingerprint
from batuta.conductors.fixed_workflows import ROUNDS, ContinuedWorkflow
from batuta.core import (
    CallListener,
    Client,
    Cost,
    Failure,
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
from batuta.lab.baselines import Solver, SolverContext
from batuta.lab.evals.grading import AnswerGrader
from batuta.lab.evals.outage import outage_reason
from batuta.lab.tasks.graders import grade_answer
from batuta.lab.tune.library import (
    Candidate,
    StepRole,
    parts_of,
    write_continuation,
    write_workflow,
)
from batuta.lab.tune.spending import BudgetedClient, DollarLimit
from batuta.usage import ZERO_COST, ZERO_USAGE, Price, usage_cost

_SPREAD = 1009
"""Between the seeds of two questions, so that their repeated calls do not share one."""


Entry = Candidate | Solver
"""What can be run on a question: a workflow of the library, or a method to compare it with."""
Key = tuple[str, Candidate | str]


class RunsElsewhere(Protocol):
    """Executes runs in other processes, by the same code and with the same results."""

    async def execute(
        self,
        missing: Mapping[Key, tuple[Task, Entry]],
        ranked: Pool,
        found: dict[Key, CandidateResult],
        *,
        concurrency: int,
    ) -> None:
        """Execute every run and put its result into `found`.

        Raises:
            ExceptionGroup: of the first error.
        """
        ...


def _score_key(task: Task, entry: Entry) -> Key:
    return task.id, entry if isinstance(entry, Candidate) else entry.name


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateResult:
    """What one workflow did on one question."""

    score: float | None
    """None: an outage or an undecided grade, which is no wrong answer."""
    usd: Decimal
    """Dollars of all its calls, as if none had been made before; unknown prices as assumed."""
    calls: int
    seconds: float
    """On the longest chain of steps."""
    limited: bool = False
    """The budget forbade a call."""
    answer: str | None = None
    parts: tuple[tuple[Candidate, float], ...] = ()
    """The shorter workflows that it ran on its way, and their scores."""
    trail: tuple[float | None, ...] = ()
    """The score of each step's answer; None: it was not run, or is no answer."""
    agreed: bool | None = None
    """Whether its first two answers agreed; None: it does not look at them."""


@final
class CallMeter:
    """Every different call once, whoever asks for it: its reply, and what all have cost.

    What it counts does not depend on when a process was killed: a call that is read from the
    journal counts as one that is made.
    """

    def __init__(self, unknown: Price) -> None:
        self._unknown = unknown
        self.limit: DollarLimit | None = None
        """Dollars that the calls from now on may cost; what may not fit is refused."""
        self._replies: dict[tuple[str, bytes], Reply] = {}
        self._pending: dict[tuple[str, bytes], anyio.Event] = {}
        self.usage = ZERO_USAGE
        self.cost = ZERO_COST

    @property
    def calls(self) -> int:
        """Different calls so far."""
        return len(self._replies)

    @property
    def usd(self) -> Decimal:
        """What they cost, those without a price as assumed."""
        return self.cost.usd

    async def complete(
        self, worker: Worker, client: Client, request: Request, listener: CallListener
    ) -> Reply:
        """The reply of an equal call before, else of the client.

        Raises:
            ClientError: the call gave no usable reply.
            LimitReachedError: the budget or the limit forbids it.
        """
        if self.limit is not None:
            client = BudgetedClient(client, worker, self.limit)
        key = (worker.id, request_fingerprint(request))
        while key in self._pending:
            await self._pending[key].wait()
        known = self._replies.get(key)
        if known is not None:
            return known
        arrived = self._pending[key] = anyio.Event()
        try:
            reply = await client.complete(request, listener)
            self._replies[key] = reply
            self.usage += reply.usage
            self.cost += Cost(usd_of(reply.usage, reply.cost, self._unknown))
        finally:
            del self._pending[key]
            arrived.set()
        return reply


def usd_of(usage: Usage, cost: Cost, unknown: Price) -> Decimal:
    """Dollars, calls without a price as assumed."""
    return cost.usd + (usage_cost(usage, unknown).usd if cost.unpriced_calls else 0)


@final
class _RunClient:
    """A worker's client within one run.

    The seed of a call says how often this run has asked this worker just this before, not where
    in the workflow the step stands: so workflows share the calls that they have in common.
    """

    def __init__(self, worker: Worker, client: Client, meter: CallMeter, seed: int) -> None:
        self._worker = worker
        self._client = client
        self._meter = meter
        self._seed = seed
        self._asked: dict[bytes, int] = {}

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        bare = replace(request, sampling=Sampling(seed=0).with_defaults(request.sampling))
        key = request_fingerprint(bare)
        times = self._asked[key] = self._asked.get(key, -1) + 1
        sampling = Sampling(seed=self._seed + times).with_defaults(request.sampling)
        request = replace(request, sampling=sampling)
        return await self._meter.complete(self._worker, self._client, request, listener)


@final
class CandidateRunner:
    """Runs candidates on tasks and remembers how each did."""

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
        """Learns who can be called.

        Args:
            pool: the workers.
            clients: how each is called.
            grade: judges an answer.
            meter: counts the calls.
            unknown: the price that counts where a worker has none.
            concurrency: runs at the same time.
            seed: of the workers' sampling.
            grades_steps: whether the answers on the way are graded too; not where that costs calls.
        """
        self.pool = pool
        self.ranked = pool
        """Methods that ask the best worker ask the best of this pool."""
        self.meter = meter
        self._clients = clients
        self._grade = grade
        self.unknown = unknown
        self._concurrency = concurrency
        self._seed = seed
        self._grades_steps = grades_steps
        self._known: dict[Key, CandidateResult] = {}
        self.elsewhere: RunsElsewhere | None = None
        """Where runs are executed; None: in this process."""

    def find_result(self, task: Task, entry: Entry) -> CandidateResult | None:
        """How it did on the task, if it was run."""
        return self._known.get(_score_key(task, entry))

    async def run_all(self, planned: Iterable[tuple[Task, Entry]]) -> bool:
        """Runs what was not run before; False if the budget forbade a part of it.

        Then nothing of these is remembered, so that what follows does not depend on which of
        them came first.
        """
        missing = {key: one for one in planned if (key := _score_key(*one)) not in self._known}
        found: dict[Key, CandidateResult] = {}
        if missing and self.elsewhere is not None:
            await self.elsewhere.execute(missing, self.ranked, found, concurrency=self._concurrency)
        else:
            await self._execute_here(missing, found)
        if len(found) < len(missing) or any(result.limited for result in found.values()):
            return False
        self._known.update(found)
        return True

    async def _execute_here(
        self, missing: Mapping[Key, tuple[Task, Entry]], found: dict[Key, CandidateResult]
    ) -> None:
        """Executes the runs in this process."""
        waiting = iter(missing.items())

        async def work() -> None:
            for key, (task, entry) in waiting:
                found[key] = result = await self.run_entry(task, entry)
                if result.limited:
                    return

        async with anyio.create_task_group() as group:
            for _ in range(min(self._concurrency, len(missing))):
                group.start_soon(work)

    async def run_entry(self, task: Task, entry: Entry) -> CandidateResult:
        """What the workflow or method does on the task, executed here."""
        if isinstance(entry, Candidate):
            run = await self.conduct_candidate(task, entry)
            return await self._add_trail(task, entry, run, await self._judge(task, run))
        context = SolverContext(pool=self.ranked, clients=self.open_clients(task))
        return await self._judge(task, await entry.answer(Question.of(task.question), context, 0))

    async def conduct_candidate(self, task: Task, entry: Candidate) -> Run:
        """The run of a workflow on the task; calls that were made before are not made again."""
        return await conduct(
            Question.of(task.question),
            ContinuedWorkflow(
                name=str(entry),
                first=write_workflow(entry),
                continuation=write_continuation(entry),
            ),
            self.pool.subset(step.worker for step in entry.steps),
            self.open_clients(task),
            limits=Limits(rounds=ROUNDS if entry.stops else 1),
            seed=0,
            settings=RunSettings(fallback=False),
        )

    async def ask(self, worker: WorkerId, prompt: str) -> str:
        """What the worker answers, one call for all who ask it just this.

        Raises:
            ClientError: the call gave no usable reply.
            LimitReachedError: the budget forbids it.
        """
        request = Request(messages=(user_message(prompt),), sampling=Sampling(seed=self._seed))
        known, client = self.pool[worker], self._clients[worker]
        return (await self.meter.complete(known, client, request, NULL_LISTENER)).text

    async def _add_trail(
        self, task: Task, entry: Candidate, run: Run, result: CandidateResult
    ) -> CandidateResult:
        """With the scores of the answers on its way."""
        went_on = len(run.rounds) > 1 and run.rounds[1].workflow is not None
        agreed = None if not entry.stops else not went_on
        if not self._grades_steps:
            return replace(result, agreed=agreed)
        trail: list[float | None] = [None] * len(entry)
        for number, round_ in enumerate(run.rounds):
            for step in round_.steps:
                at = step.index + number * entry.first_round
                answers = entry.steps[at].role not in {StepRole.PLAN, StepRole.LOOK_UP}
                if answers and isinstance(step.result, Reply) and step.worker == step.planned:
                    trail[at] = (await grade_answer(self._grade, task, step.result.text)).score
        found = [(part, trail[index]) for part, index in parts_of(entry)]
        parts = tuple((part, score) for part, score in found if score is not None)
        return replace(result, parts=parts, trail=tuple(trail), agreed=agreed)

    async def _judge(self, task: Task, run: Run) -> CandidateResult:
        """How the run did; a step that another worker took over says nothing of the workflow."""
        score = None
        limited = run.limit is not None or any(_is_limit(step.result) for step in run.steps)
        lost = outage_reason(run) is not None or any(
            step.worker != step.planned for step in run.steps
        )
        if run.answer is None and not lost:
            score = 0.0
        elif run.answer is not None and not lost and not limited:
            score = (await grade_answer(self._grade, task, run.answer)).score
        return CandidateResult(
            score=score,
            usd=usd_of(run.usage, run.cost, self.unknown),
            calls=run.usage.calls,
            seconds=run.seconds,
            limited=limited,
            answer=run.answer,
        )

    def rank_by(self, pool: Pool) -> None:
        """Methods that ask the best worker ask the best of this pool from now on."""
        self.ranked = pool

    def open_clients(self, task: Task) -> Mapping[WorkerId, Client]:
        """The clients of one run on that task."""
        digest = blake2b(f"{task.id} {self._seed}".encode("utf-8", "replace"), digest_size=3)
        seed = int.from_bytes(digest.digest(), "big") * _SPREAD % 2**31
        return {
            worker.id: _RunClient(worker, self._clients[worker.id], self.meter, seed)
            for worker in self.pool
        }


def _is_limit(result: Reply | Failure) -> bool:
    return isinstance(result, Failure) and result.code == "limit"
