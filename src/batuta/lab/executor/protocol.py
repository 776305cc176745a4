"""Executors run many items of work, some of them at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from batuta.lab.executor.asking import Answer

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

        Args:
            job: what runs an item.
            items: what is run.
            deliver: called in this process with an item's place in `items` and its result.
            concurrency: items that are run at the same time, at most.
            answer: answers what items ask; None: they ask nothing.

        Raises:
            ExceptionGroup: of the first error of the job, of `deliver`, or of the
                ExecutorError if the machines were lost.
        """
        ...
