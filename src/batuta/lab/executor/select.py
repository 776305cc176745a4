"""Opens an executor by its name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import final

import anyio

from batuta.distribution import install_hint
from batuta.errors import ConfigError
from batuta.lab.executor.protocol import Answer, Executor, ExecutorJob, ItemT, ResultT, set_answer


@final
class LocalExecutor:
    """Runs items in this process."""

    machines = 1
    processes = 1

    async def run_all(
        self,
        job: ExecutorJob[ItemT, ResultT],
        items: Sequence[ItemT],
        deliver: Callable[[int, ResultT], None],
        *,
        concurrency: int,
        answer: Answer | None = None,
    ) -> None:
        """Run every item; see `Executor`.

        Raises:
            ExceptionGroup: contains the first error of an item or of `deliver`.
            Exception: the job cannot be opened.
        """
        waiting = iter(enumerate(items))
        async with job.open() as execute, anyio.create_task_group() as group:

            async def run_waiting() -> None:
                set_answer(answer)
                for index, item in waiting:
                    deliver(index, await execute(item))

            for _ in range(min(concurrency, len(items))):
                group.start_soon(run_waiting)


LOCAL = "local"
RAY = "ray"


@asynccontextmanager
async def open_executor(name: str = LOCAL, workers: int | None = None) -> AsyncGenerator[Executor]:
    """Yield the executor of that name, and close it when the block ends.

    Args:
        name: `local`; `ray`: the cluster that RAY_ADDRESS names or that runs on this machine,
            else a new cluster here; `ray:local`: a new cluster here; `ray:HOST:PORT`: that cluster.
        workers: number of processes, only for Ray; None: one for each free core.

    Raises:
        ConfigError: there is no such executor, its extra is missing, or the cluster cannot be
            used.
    """
    if problem := executor_problem(name, workers):
        raise ConfigError(problem)
    kind, _, address = name.partition(":")
    if kind == LOCAL:
        yield LocalExecutor()
        return
    from batuta.lab.executor.ray import open_ray  # noqa: PLC0415 - an extra that loads slowly

    async with open_ray(address or None, workers) as executor:
        yield executor


def executor_problem(name: str, workers: int | None) -> str | None:
    """Return a sentence that says why the executor cannot be opened here, or None.

    No cluster is contacted.
    """
    kind, _, address = name.partition(":")
    if kind == LOCAL and not address:
        several = "the local executor runs in one process; workers are for ray"
        return None if workers is None else several
    if kind != RAY:
        return f"there is no executor {name!r}; choose local, ray, ray:local or ray:HOST:PORT"
    if find_spec("ray") is None:
        return f"the Ray executor needs an extra: {install_hint('ray')}"
    return None
