"""Opens the workers and the judge of rollouts from their names, which suffice on any machine."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import anyio

from batuta.clients import CallCacheClient, HttpTransport
from batuta.clients.cache import warn_if_emptied
from batuta.clients.cache_shared import is_shared, open_call_journal
from batuta.clients.providers import client_identity
from batuta.config.load import load_config
from batuta.core import CallListener, Client, Grade, Pool, Reply, Request, Task, WorkerId
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import ConfigError
from batuta.lab.evals.grading import open_answer_grader
from batuta.lab.evals.pool_record import note_identities
from batuta.lab.executor import LocalExecutor, open_executor
from batuta.lab.task_sources import find_source_grader
from batuta.lab.train.budget import TrainingBudget, budget_problem, paid_files
from batuta.lab.train.reward import Executions
from batuta.lab.train.rollouts import DraftOrder, DraftRunner, OpenedDraftRunner, RolloutRunner
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import TrainSettings
from batuta.language import PromptOptions
from batuta.rendering.terminal import write_error

CALLS_FILE = "calls.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSetup:
    """The workers and the judge to open; it can be sent to another machine."""

    pool: str
    """The pool as `batuta ask --pool` names it; its files must be the same on every machine."""
    rendering: PromptOptions
    kinds: tuple[Task, ...]
    """One task for each grader that is needed; simulated worlds grade their own tasks."""
    journal: str | None
    """A file, or the URL of a PostgreSQL database; None if calls are not kept."""
    scope: str
    """The training's folder, whose name marks its calls in a database."""
    seconds: float | None
    """Maximum seconds of a run; None for the pool's own limit."""
    judge: str | None = None
    """The worker that grades answers which no rule decides; None if there is none."""
    processes: int = 1
    """Number of processes that call workers at the same time and divide their limits."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Callable[[DraftOrder], Awaitable[Executions]]]:
        """Yield a function that executes an order; connections are closed at the end of the block.

        Raises:
            BatutaError: the pool, the journal or the grader cannot be opened here.
        """
        async with AsyncExitStack() as stack:
            yield (await self.open_runner(stack)).run_order

    async def open_runner(
        self, stack: AsyncExitStack, budget: TrainingBudget | None = None
    ) -> DraftRunner:
        """Open workers and judge until the stack closes; their calls count against the budget.

        Raises:
            BatutaError: the pool, the journal or the grader cannot be opened here.
        """
        http = await stack.enter_async_context(HttpTransport())
        loaded = await load_config(
            http, pool=self.pool, conductor="best", time_scale=0.0, processes=self.processes
        )
        clients = dict(loaded.clients)
        if budget is not None:
            clients |= {w.id: budget.limit_client(clients[w.id], w) for w in loaded.pool}
        if self.journal is not None and not loaded.simulated:
            self._report_changed_workers(clients)
            opening = open_call_journal(self.journal, self.scope)
            journal = await stack.enter_async_context(opening)
            clients = {w: CallCacheClient(client, journal, w) for w, client in clients.items()}
        if problem := judge_problem(self.judge, loaded.pool):
            raise ConfigError(problem)
        judge_client = _SeededClient(clients[WorkerId(self.judge)]) if self.judge else None
        grade = await stack.enter_async_context(open_answer_grader(self.kinds, judge_client))

        async def judge(task: Task, answer: str) -> Grade:
            """Grade by the task's source if it has a grader, else by the task's own grader."""
            own = find_source_grader(task)
            return await grade(task, answer) if own is None else own(task, answer)

        limits = loaded.limits
        if self.seconds is not None:
            limits = replace(limits, seconds=self.seconds)
        return DraftRunner(clients=clients, judge=judge, rendering=self.rendering, limits=limits)

    def _report_changed_workers(self, clients: Mapping[WorkerId, Client]) -> None:
        """Report workers that have another model than when the folder was last used."""
        folder = Path(self.scope)
        if not folder.is_dir():  # a folder on another machine
            return
        found = {str(w): known for w, one in clients.items() if (known := client_identity(one))}
        if sentence := note_identities(folder, found).sentence:
            write_error(f"batuta: {sentence}\n")


def judge_problem(judge: str | None, pool: Pool) -> str | None:
    """Return a sentence that says that `reward.judge` names no worker of the pool, or None."""
    if judge is None or WorkerId(judge) in pool:
        return None
    known = ", ".join(str(worker.id) for worker in pool)
    return f"reward.judge: there is no worker {judge!r} in the pool, only {known}"


@final
class _SeededClient:
    """Adds a seed to requests without one, so that the journal keeps their replies too."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the client's reply to the request with a seed."""
        sampling = request.sampling
        if sampling.seed is None:
            request = replace(request, sampling=replace(sampling, seed=0))
        return await self._client.complete(request, listener)


@final
class RolloutRunnerFactory:
    """Opens the runner of rollouts in the calling event loop, and closes it in the same loop."""

    def __init__(
        self, settings: TrainSettings, folder: RunFolder, tasks: Sequence[Task] = ()
    ) -> None:
        pool = settings.pool
        others = {task.grader: task for task in tasks if find_source_grader(task) is None}
        file = str(folder.path / CALLS_FILE) if pool.journal is True else None
        self._settings = settings
        self._setup = RolloutSetup(
            pool=pool.source,
            rendering=settings.prompt.rendering(),
            kinds=tuple(others.values()),
            journal=pool.journal if isinstance(pool.journal, str) else file,
            scope=str(settings.output),
            seconds=pool.seconds,
            judge=settings.reward.judge,
        )
        self._folder = folder.path
        self._stack = AsyncExitStack()
        self.budget: TrainingBudget | None = None
        """The budget of the calls, once a runner is open; None before, or if there is no limit."""

    def warn_if_emptied(self) -> None:
        """Warn about a journal or list of paid calls that is empty when a run resumes."""
        journal = self._setup.journal
        warn_if_emptied(*filter(None, [journal]), *paid_files(self._folder))

    async def __call__(self) -> RolloutRunner:
        """Return the runner that executes and rewards drafts, on the configured executor.

        Raises:
            ConfigError: the executor does not exist, its machines share no journal, or the budget
                cannot be enforced.
            BatutaError: the executor, the pool, the journal or the grader cannot be opened.
        """
        pool = self._settings.pool
        if problem := budget_problem(self._settings):
            raise ConfigError(problem)
        executor = await self._stack.enter_async_context(
            open_executor(pool.executor, pool.processes)
        )
        journal = self._setup.journal
        if executor.machines > 1 and journal is not None and not is_shared(journal):
            raise ConfigError(
                "rollouts on several machines need a shared journal: set "
                "pool.journal to postgresql://…, or to false"
            )
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        job = replace(self._setup, processes=ranks * executor.processes)
        if isinstance(executor, LocalExecutor):
            slots = anyio.Semaphore(pool.concurrency, fast_acquire=True)
            if pool.max_usd is not None:
                self.budget = TrainingBudget(self._settings, self._folder)
                self._stack.callback(self.budget.close)
            job = OpenedDraftRunner(await job.open_runner(self._stack, self.budget), slots)
        return RolloutRunner(
            job=job,
            rewards=self._settings.reward,
            concurrency=pool.concurrency,
            executor=executor,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._stack.aclose()
