"""Processes that compare expressions: they may hang, grow or die, and nothing else does."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from concurrent.futures.process import BrokenProcessPool
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from batuta.tasks.graders import comparison_process
from batuta.tasks.graders.optional_dependencies import require_extra

if TYPE_CHECKING:
    from pebble import ProcessPool

COMPARISON_TIMEOUT = 120.0
"""Wall time of one comparison, beyond which it is given up; its processor time ends sooner."""


class ComparisonResult(StrEnum):
    """How a comparison ended, in words."""

    SAME = "same"
    DIFFERENT = "different"
    TIMED_OUT = "the comparison took too long"
    OUT_OF_MEMORY = "the comparison needed too much memory"


UNDECIDED = frozenset({ComparisonResult.TIMED_OUT, ComparisonResult.OUT_OF_MEMORY})


@final
class MathsPool:
    """Compares mathematical expressions in processes of its own; close it after use.

    Processes start with the first comparison and are spawned: a script that uses a pool guards
    its main part with `if __name__ == "__main__"`.
    """

    def __init__(self, workers: int = 1, seconds: float = COMPARISON_TIMEOUT) -> None:
        """Starts nothing yet.

        Args:
            workers: processes.
            seconds: wall time of one comparison.

        Raises:
            ConfigError: the extra `graders` is not installed.
        """
        require_extra("graders", "pebble", "math_verify", "pint")
        self._workers = workers
        self._seconds = seconds
        self._pool: ProcessPool | None = None

    def __repr__(self) -> str:
        return f"MathsPool({self._workers} workers, {self._seconds} s)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, those that still compare too."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None

    async def compare(self, target: str, answer: str, near: float = 0.0) -> ComparisonResult:
        """Whether two answers in `latex.plain`'s spelling are the same, or why nobody knows.

        Args:
            target: what is right.
            answer: what was answered.
            near: relative distance at which two numbers count as the same.
        """
        asked = (target, answer, near)
        try:
            future = self._running_pool().schedule(
                comparison_process.compare_answers, asked, timeout=self._seconds
            )
            same = await asyncio.wrap_future(future)
        except TimeoutError:
            return ComparisonResult.TIMED_OUT
        except (MemoryError, RecursionError, BrokenProcessPool):
            return ComparisonResult.OUT_OF_MEMORY
        except OSError as error:  # pebble's ProcessExpired
            late = getattr(error, "exitcode", None) == -signal.SIGXCPU
            return ComparisonResult.TIMED_OUT if late else ComparisonResult.OUT_OF_MEMORY
        return ComparisonResult.SAME if same else ComparisonResult.DIFFERENT

    def _running_pool(self) -> ProcessPool:
        """The processes; new ones if those that were there broke down."""
        if self._pool is not None and not self._pool.active:
            self.close()
        if self._pool is None:
            import pebble  # noqa: PLC0415 - an extra

            self._pool = pebble.ProcessPool(
                max_workers=self._workers,
                initializer=comparison_process.prepare_process,
                context=multiprocessing.get_context("spawn"),
            )
        return self._pool
