"""Executors run many items of work, some of them at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from batuta.errors import ExecutorError

Answer = Callable[[Any], Awaitable[Any]]
"""Answers a question in the driver's process; its errors are raised where it was asked."""


async def refuse_question(question: Any) -> Any:
    """Refuse, as nobody is there to answer.

    Raises:
        ExecutorError: always.
    """
    raise ExecutorError(f"nobody answers what the work asks: {type(question).__name__}")


_CURRENT: ContextVar[Answer] = ContextVar("answer of the driver", default=refuse_question)


async def ask_driver(question: Any) -> Any:
    """Ask the `answer` of `Executor.run_all`, while an item is executed.

    Both are pickled where the item is executed in another process.

    Raises:
        ExecutorError: there is nobody to answer.
        Exception: what the answer raised.
    """
    return await _CURRENT.get()(question)


def set_answer(answer: Answer | None) -> None:
    """Set where this task's items ask from now on; for executors alone.

    Args:
        answer: who answers; None: nobody.
    """
    _CURRENT.set(refuse_question if answer is None else answer)


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
JobItem_contra = TypeVar("JobItem_contra", contravariant=True)
JobResult_co = TypeVar("JobResult_co", covariant=True)


class ExecutorJob(Protocol[JobItem_contra, JobResult_co]):
    """Work that is opened once in each process and then runs items there.

    A job that goes to other processes is pickled, and so are its items and results: it carries
    names and settings, and opens connections, models and graders where it is opened.
    """

    def open(
        self,
    ) -> AbstractAsyncContextManager[Callable[[JobItem_contra], Awaitable[JobResult_co]]]:
        """Open the function that runs one item; everything it needs is closed with the block."""
        ...


class Executor(Protocol):
    """Runs the items of a job.

    Laws, the same for every implementation:

    1. Each item's result is delivered exactly once, as soon as it is known, in any order.
    2. The results are those of the job, wherever it is run.
    3. At most `concurrency` items are run at the same time, over all processes together.
    4. The first error ends all work and is raised in an `ExceptionGroup`; results that were
       delivered before stay delivered.
    5. No work goes on after `run_all` has returned, raised, or been cancelled.
    6. What an item asks by `ask_driver` is answered in this process. An answer is finished even
       if the process that asked has died: who executes the item again may ask the same.
    """

    @property
    def machines(self) -> int:
        """How many machines run items."""
        ...

    @property
    def processes(self) -> int:
        """How many processes run items; each opens the job for itself."""
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

        `deliver` is called in this process with an item's place and its result; `answer` answers
        what items ask, and is None if they ask nothing.

        Raises:
            ExceptionGroup: of the first error of the job, of `deliver`, or of the
                ExecutorError if the machines were lost.
        """
        ...
