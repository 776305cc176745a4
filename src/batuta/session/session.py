"""Sessions: an open pool that answers questions from a script, a service or a notebook."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from typing import Any, Self, Unpack, cast, final

import anyio
from anyio.abc import TaskGroup

from batuta.clients import HttpTransport
from batuta.conductors import FixedConductor, best_single_worker
from batuta.config.load import load_config, store_target
from batuta.config.loaded import LoadedConfig
from batuta.config.served_systems import ServedSystem, ultra_of
from batuta.core import (
    Client,
    Conductor,
    Cost,
    EventHandler,
    Limits,
    Message,
    Outcome,
    Pool,
    Question,
    Role,
    Run,
    ToolCall,
    ToolResult,
    WorkerId,
)
from batuta.engine import Recorder, RunHooks, find_resume_state
from batuta.session.options import (
    AskOptions,
    ToolRunner,
    check_format,
    check_options,
    complete_question,
    merge_limits,
)
from batuta.session.questions import QuestionLike, parse_question
from batuta.session.stream import RunStream
from batuta.usage import ZERO_COST

MAX_TOOL_TURNS = 16
"""Maximum number of times that a question's run is continued with the results of tool calls."""
CONCURRENCY = 8
"""Default number of a batch's questions that are answered at the same time."""


@final
class Session:
    """An open pool with its conductor and limits. Use it as an async context manager.

    Outside its block, `ask`, `stream` and the properties raise RuntimeError.
    """

    _tasks: TaskGroup

    def __init__(
        self,
        pool: str | Path | Pool | None = None,
        *,
        conductor: str | Conductor | None = None,
        clients: Mapping[WorkerId, Client] | None = None,
        limits: Limits | None = None,
        store: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Store the arguments; the pool is opened on entering the context.

        Args:
            pool: a TOML file, `discover` (keys, local servers, pulled models), `rehearsal`
                (simulated workers) or another name that `load_config` takes, or your own `Pool`
                together with its `clients`. None: the pool that BATUTA_CONFIG names, else
                `batuta.toml` in the current folder, else `discover`.
            conductor: a name as in `batuta ask --conductor`, or your own conductor. None: the
                conductor of the settings; with your own `Pool`, the best single worker answers.
            clients: the client of each worker of a `Pool`.
            limits: limits of every run, unless a question sets its own; None: the pool's limits.
                A conductor that needs more rounds gets them, unless the question sets
                `max_rounds` or, with None, the pool's settings do.
            store: whether runs are stored where `batuta runs list` finds them.
            environ: the environment from which keys and settings are read.

        Raises:
            ConfigError: this process's environment names a proxy or certificates that cannot be
                used.
            ValueError: a `Pool` was given without clients, or clients without a `Pool`.
        """
        if isinstance(pool, Pool) != (clients is not None):
            raise ValueError("give a Pool together with its clients: open(pool, clients={...})")
        self._pool = pool
        self._conductor = conductor
        self._clients = clients
        self._limits = limits
        self._store = store
        self._environ = environ
        self._http = HttpTransport()
        self._config: LoadedConfig | None = None
        self._closed = False
        self.spent: Cost = ZERO_COST
        """Cost of all runs of this session so far."""

    async def __aenter__(self) -> Self:
        """Read the settings and find the workers.

        Raises:
            ConfigError: the pool, a worker or the conductor does not exist or is misconfigured, or
                a key is missing.
            RuntimeError: the session was opened before.
            ValueError: a conductor was named for a `Pool` with its own clients.
        """
        if self._config is not None:
            raise RuntimeError("a session can be opened only once: call batuta.open(...) again")
        try:
            self._config = await self._open_pool()
        except BaseException:
            await self._http.close()
            raise
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._closed:
            return
        self._closed = True
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
        await self._http.close()

    @property
    def pool(self) -> Pool:
        """The workers, in the order in which the conductor sees them."""
        return self._opened.pool

    @property
    def conductor(self) -> Conductor:
        """The conductor that writes the workflows."""
        return self._opened.conductor

    @property
    def simulated(self) -> bool:
        """True if the workers are simulated (`rehearsal`) and not language models."""
        return self._opened.simulated

    async def ask(self, question: QuestionLike, **options: Unpack[AskOptions]) -> Run:
        """Answer one question.

        Args:
            question: text, a `Question`, or a conversation: `Message`s, or mappings of `role`
                and `content` as in the OpenAI API.
            options: see `AskOptions`.

        Returns:
            The run: its answer, cost, workflow and every call. A run that fails is returned too:
            check `run.outcome` and `run.error`. With `run_tool` the run is continued up to
            `MAX_TOOL_TURNS` times, each time as a new run; the last run is returned.

        Raises:
            ConfigError: runs are stored, and BATUTA_STORE_FILE names a file that cannot be used.
            OSError: an image file cannot be read.
            RuntimeError: the session is not open, or it is closed.
            StoreError: runs are stored, and the store cannot be opened or written.
            TypeError: the question, the value of an option, or the result of `run_tool` has the
                wrong type, or an option does not exist.
            ValueError: the question or an option is invalid.
            Exception: raised by `on_event` or your own conductor, perhaps within an ExceptionGroup.
        """
        options = check_options(options)
        parsed = complete_question(parse_question(question, options.get("images", ())), options)
        await check_format(parsed.response_format)
        run = await self._conduct(parsed, options, None)
        run_tool = options.get("run_tool")
        for _ in range(MAX_TOOL_TURNS):
            if run_tool is None or run.outcome is not Outcome.WAITING or run.reply is None:
                break
            parsed = await answer_tool_calls(parsed, run.reply.tool_calls, run_tool)
            run = await self._conduct(parsed, options, run)
        return run

    def stream(self, question: QuestionLike, **options: Unpack[AskOptions]) -> RunStream:
        """Return the events of a run as they happen; afterwards `stream.run` is the run.

        Leaving the loop early cancels the run. The arguments are those of `ask`, and its other
        errors are raised by the loop.

        Raises:
            RuntimeError: the session is not open, or it is closed.
        """
        _ = self._opened

        async def execute(emit: EventHandler) -> Run:
            with_events: AskOptions = {**check_options(options), "on_event": emit}
            return await self.ask(question, **with_events)

        return RunStream(execute, self._tasks, options.get("on_event"))

    async def ask_many(
        self,
        questions: Iterable[QuestionLike],
        *,
        concurrency: int = CONCURRENCY,
        progress: bool | BatchProgressCallback = False,
        **options: Unpack[AskOptions],
    ) -> list[Run]:
        """Answer many questions, up to `concurrency` at the same time.

        Args:
            questions: each in a form that `ask` accepts.
            concurrency: maximum number of questions that are answered at the same time.
            progress: True for a progress bar on stderr, or a function called after each question.
            options: as for `ask`; limits apply to each question.

        Returns:
            The runs, in the questions' order.

        Raises:
            ExceptionGroup: `ask` raised an error for a question; the other questions are cancelled.
            TypeError: `questions` is a single string.
            ValueError: `concurrency` is below 1.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        if isinstance(questions, str):
            raise TypeError("ask_many takes a list of questions; use ask for a single question")
        batch = list(questions)
        runs: list[Run | None] = [None] * len(batch)
        limiter, report = anyio.CapacityLimiter(concurrency), open_progress(progress, len(batch))

        async def ask_one(index: int) -> None:
            async with limiter:
                runs[index] = await self.ask(batch[index], **options)
            report(sum(run is not None for run in runs), len(runs))

        try:
            async with anyio.create_task_group() as tasks:
                for index in range(len(batch)):
                    tasks.start_soon(ask_one, index)
        finally:
            report(-1, len(runs))
        return cast("list[Run]", runs)

    @property
    def _opened(self) -> LoadedConfig:
        if self._config is None:
            raise RuntimeError("the session is not open: async with batuta.open(...) as session")
        if self._closed:
            raise RuntimeError("the session is closed: ask inside its `async with` block")
        return self._config

    @property
    def _system(self) -> ServedSystem:
        """The served system, with the session's limits and the rounds that its conductor needs."""
        system = ultra_of(self._opened)
        if self._limits is None:
            return system
        return replace(system, limits=self._limits).with_conductor(system.conductor)

    async def _open_pool(self) -> LoadedConfig:
        named = self._conductor if isinstance(self._conductor, str) else None
        if isinstance(self._pool, Pool) and self._clients is not None:
            conductor = best_single_worker() if self._conductor is None else self._conductor
            if isinstance(conductor, str):
                raise ValueError("with your own Pool, conductor must be an object, not a name")
            return LoadedConfig(
                source="a pool",
                pool=self._pool,
                clients=self._clients,
                conductor=conductor,
                limits=Limits(),
            )
        source = str(self._pool) if self._pool is not None else None
        loaded = await load_config(self._http, pool=source, conductor=named, environ=self._environ)
        if self._conductor is not None and named is None:
            loaded = replace(loaded, conductor=cast("Conductor", self._conductor))
        return loaded

    async def _conduct(self, question: Question, options: AskOptions, before: Run | None) -> Run:
        """Conduct one run; count its cost and, if runs are stored, store it, even if cancelled."""
        opened, recorder, workflow = self._opened, Recorder(), options.get("workflow")
        system = self._system
        conductor = FixedConductor("by-hand", lambda _: workflow) if workflow else opened.conductor
        try:
            return await replace(
                system, conductor=conductor, limits=merge_limits(system.limits, options)
            ).answer(
                question,
                opened.clients,
                seed=options.get("seed"),
                resumed=find_resume_state(before, question, opened.pool) if before else None,
                dry_run=options.get("dry_run", False),
                hooks=RunHooks(emit=options.get("on_event"), recorder=recorder),
            )
        finally:
            if recorder.ended is not None:
                await self._record(recorder.run())

    async def _record(self, run: Run) -> None:
        self.spent += run.cost
        if not self._store or run.outcome is Outcome.PLANNED:
            return
        from batuta.store import Store  # noqa: PLC0415 - loaded only where runs are kept

        with anyio.CancelScope(shield=True):
            async with Store.open(store_target(self._environ)) as store:
                await store.append(run)


def open_session(
    pool: str | Path | Pool | None = None,
    *,
    conductor: str | Conductor | None = None,
    clients: Mapping[WorkerId, Client] | None = None,
    limits: Limits | None = None,
    store: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Session:
    """Return a session over a pool, for `async with`; exported as `batuta.open`.

    The arguments are those of `Session`.

    Raises:
        ConfigError: this process's environment names a proxy or certificates that cannot be used.
        ValueError: a `Pool` was given without clients, or clients without a `Pool`.
    """
    return Session(
        pool,
        conductor=conductor,
        clients=clients,
        limits=limits,
        store=store,
        environ=environ,
    )


async def ask(
    question: QuestionLike,
    pool: str | Path | Pool | None = None,
    *,
    conductor: str | Conductor | None = None,
    clients: Mapping[WorkerId, Client] | None = None,
    **options: Unpack[AskOptions],
) -> Run:
    """Answer one question with a pool that is opened for this question only.

    The arguments are those of `Session` and `Session.ask`.

    Raises:
        ConfigError: as for `Session` and its opening.
        OSError: an image file cannot be read.
        TypeError: the question, the value of an option, or the result of `run_tool` has the wrong
            type, or an option does not exist.
        ValueError: the question, an option or the combination of arguments is invalid.
        Exception: raised by `on_event` or your own conductor, perhaps within an ExceptionGroup.
    """
    async with open_session(pool, conductor=conductor, clients=clients) as session:
        return await session.ask(question, **options)


def ask_sync(
    question: QuestionLike,
    pool: str | Path | Pool | None = None,
    *,
    conductor: str | Conductor | None = None,
    clients: Mapping[WorkerId, Client] | None = None,
    **options: Unpack[AskOptions],
) -> Run:
    """Answer like `ask`, for code without an event loop and for notebooks; block the thread.

    Arguments and errors are those of `ask`.
    """

    async def work() -> Run:
        return await ask(question, pool, conductor=conductor, clients=clients, **options)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(work)
    with ThreadPoolExecutor(1) as executor:  # anyio.run cannot be called inside a running loop
        return executor.submit(anyio.run, work).result()


BatchProgressCallback = Callable[[int, int], None]
"""Called with the number of answered questions of a batch and the total number."""


def open_progress(progress: bool | BatchProgressCallback, total: int) -> BatchProgressCallback:  # noqa: FBT001 - a value
    """Return a function to call with the number done and the total; the number is -1 at the end."""
    if not isinstance(progress, bool):
        return lambda done, total: progress(done, total) if done >= 0 else None
    if not progress:
        return lambda _done, _total: None
    from rich.progress import Progress as Bar  # noqa: PLC0415 - loaded only when it is shown

    from batuta.rendering.console import open_console  # noqa: PLC0415 - same

    bar = Bar(console=open_console(stderr=True))
    task = bar.add_task("questions", total=total)
    bar.start()
    return lambda done, _: bar.stop() if done < 0 else bar.update(task, completed=done)


async def answer_tool_calls(
    question: Question, calls: Sequence[ToolCall], run_tool: ToolRunner
) -> Question:
    """Run the tool calls; return the conversation with the calls and their results.

    If a tool fails, its error becomes the result that the worker gets.

    Raises:
        TypeError: a result is not a string.
    """
    results: list[Message] = []
    for call in calls:
        try:
            result: Any = run_tool(call)
            text: Any = await result if isawaitable(result) else result
        except Exception as error:  # noqa: BLE001 - the worker may try something else
            text = f"error: {error}"
        if not isinstance(text, str):
            raise TypeError(f"run_tool must return a string, not {text!r:.60}")
        results.append(Message(role=Role.TOOL, parts=(ToolResult(call_id=call.id, content=text),)))
    calling = Message(role=Role.ASSISTANT, parts=tuple(calls))
    return replace(question, messages=(*question.messages, calling, *results))
