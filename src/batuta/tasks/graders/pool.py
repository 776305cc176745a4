"""Processes that compare expressions: they may hang, grow or die, and nothing else does."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from concurrent.futures.process import BrokenProcessPool
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from batuta.tasks.graders import worker
from batuta.tasks.graders.extras import need

if TYPE_CHECKING:
    from pebble import ProcessPool

SECONDS = 120.0
"""Wall time of one comparison, beyond which it is given up; its processor time ends sooner."""


class Verdict(StrEnum):
    """How a comparison ended, in words."""

    SAME = "same"
    DIFFERENT = "different"
    LATE = "the comparison took too long"
    DIED = "the comparison needed too much memory"


UNDECIDED = frozenset({Verdict.LATE, Verdict.DIED})


@final
class MathsPool:
    """Compares mathematical expressions in processes of its own; close it after use.

    Processes start with the first comparison and are spawned: a script that uses a pool guards
    its main part with `if __name__ == "__main__"`.
    """

    def __init__(self, workers: int = 1, seconds: float = SECONDS) -> None:
        """Starts nothing yet.

        Args:
            workers: processes.
            seconds: wall time of one comparison.

        Raises:
            ConfigError: the extra `graders` is not installed.
        """
        need("graders", "pebble", "math_verify", "pint")
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

    async def compare(self, target: str, answer: str, near: float = 0.0) -> Verdict:
        """Whether two answers in `latex.plain`'s spelling are the same, or why nobody knows.

        Args:
            target: what is right.
            answer: what was answered.
            near: relative distance at which two numbers count as the same.
        """
        asked = (target, answer, near)
        try:
            future = self._running().schedule(worker.same, asked, timeout=self._seconds)
            same = await asyncio.wrap_future(future)
        except TimeoutError:
            return Verdict.LATE
        except (MemoryError, RecursionError, BrokenProcessPool):
            return Verdict.DIED
        except OSError as error:  # pebble's ProcessExpired
            late = getattr(error, "exitcode", None) == -signal.SIGXCPU
            return Verdict.LATE if late else Verdict.DIED
        return Verdict.SAME if same else Verdict.DIFFERENT

    def _running(self) -> ProcessPool:
        """The processes; new ones if those that were there broke down."""
        if self._pool is not None and not self._pool.active:
            self.close()
        if self._pool is None:
            import pebble  # noqa: PLC0415 - an extra

            self._pool = pebble.ProcessPool(
                max_workers=self._workers,
                initializer=worker.prepare,
                context=multiprocessing.get_context("spawn"),
            )
        return self._pool
