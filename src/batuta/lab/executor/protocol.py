"""The interface of executors, which run many items of work concurrently."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from batuta.errors import ExecutorError

Answer = Callable[[Any], Awaitable[Any]]
"""Answers a question in the driver's process; its error is raised in the item that asked."""


async def refuse_question(question: Any) -> Any:
    """Raise an error, because `run_all` has no `answer`.

    Raises:
        ExecutorError: always.
    """
    raise ExecutorError(f"run_all has no answer for the question {type(question).__name__}")


_CURRENT: ContextVar[Answer] = ContextVar("answer of the driver", default=refuse_question)


async def ask_driver(question: Any) -> Any:
    """Ask a question from a running item; return what the `answer` of `Executor.run_all` returns.

    The question and its answer, or its error, are pickled if the item runs in another process.

    Raises:
        ExecutorError: `run_all` has no `answer`, or its error cannot be pickled.
        Exception: raised by `answer`.
    """
    return await _CURRENT.get()(question)


def set_answer(answer: Answer | None) -> None:
    """Set the function that answers the questions of this asyncio task's items; None refuses them.

    Only executors call it.
    """
    _CURRENT.set(refuse_question if answer is None else answer)


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
JobItem_contra = TypeVar("JobItem_contra", contravariant=True)
JobResult_co = TypeVar("JobResult_co", covariant=True)


class ExecutorJob(Protocol[JobItem_contra, JobResult_co]):
    """Work that is opened once in each process and then runs items there.

    A job for other processes is pickled, as are its items and results. Connections and models
    cannot be pickled, so `open` opens them.
    """

    def open(
        self,
    ) -> AbstractAsyncContextManager[Callable[[JobItem_contra], Awaitable[JobResult_co]]]:
        """Yield the function that runs one item; close its resources when the block ends."""
        ...


class Executor(Protocol):
    """Runs the items of a job.

    Laws, the same for every implementation:

    1. Without an error, each item's result is delivered exactly once, when it is known, in any
       order.
    2. The results do not depend on where the job runs.
    3. At most `concurrency` items run at the same time, over all processes together.
    4. The first error ends all work and is raised in an `ExceptionGroup`. Only the error of a job
       that cannot be sent or opened may be raised by itself.
    5. No work continues after `run_all` has returned, raised, or been cancelled.
    6. Questions that items ask with `ask_driver` are answered in this process. If the process that
       asked dies, the answer is still finished, because the item runs again and may ask the same
       question. Answers still in progress when every item has ended are cancelled.
    """

    @property
    def machines(self) -> int:
        """The number of machines that run items."""
        ...

    @property
    def processes(self) -> int:
        """The number of processes that run items; each opens the job for itself."""
        ...

    async def run_all(
        self,
        job: ExecutorJob[ItemT, ResultT],
        items: Sequence[ItemT],
        deliver: Callable[[int, ResultT], None],
        *,
        concurrency: int,
        answer: Answer | None = None,
    ) -> None:
        """Run every item.

        `deliver` is called in this process with an item's index and its result. `answer` answers
        the items' questions; None refuses them.

        Raises:
            ExceptionGroup: contains the first error of the job or of `deliver`, or an
                ExecutorError if the machines were lost.
            ExecutorError: the job cannot be sent to other processes.
        """
        ...
