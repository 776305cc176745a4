"""Compares expressions in a separate process, which may hang, run out of memory or die."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from typing import Self, final

from batuta.distribution import install_hint
from batuta.errors import ConfigError
from batuta.lab.tasks.graders import comparison_process
from batuta.offload import ProcessDiedError, ProcessFailedError, ProcessPool, ProcessTimeoutError


def require_extra(extra: str, *modules: str) -> None:
    """Check that these modules of an extra are installed.

    Raises:
        ConfigError: a module is missing; the message says how to install the extra.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{missing[0]} is not installed: run {install_hint(extra)}")


COMPARISON_TIMEOUT = 120.0
"""Wall-clock seconds of a comparison; its processor time has a tighter limit."""


class ComparisonResult(StrEnum):
    """The result of a comparison, or why there is none."""

    SAME = "same"
    DIFFERENT = "different"
    TIMED_OUT = "the comparison took too long"
    OUT_OF_MEMORY = "the comparison needed too much memory"
    """Also the result if an expression is nested too deeply, or if the process died."""


UNDECIDED = frozenset({ComparisonResult.TIMED_OUT, ComparisonResult.OUT_OF_MEMORY})


@final
class MathsPool:
    """Compares mathematical expressions in a separate process; close it after use.

    The process starts with the first comparison and ends when it is idle for some minutes.
    """

    def __init__(self) -> None:
        """Start nothing before the first comparison.

        Raises:
            ConfigError: the extra `graders` is not installed.
        """
        require_extra("graders", "math_verify", "pint")
        self._pool = ProcessPool(1, memory_bytes=comparison_process.MEMORY_LIMIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, even if it is still comparing."""
        self._pool.close()

    @property
    def process_ids(self) -> frozenset[int]:
        """The ids of the processes that are comparing or idle."""
        return self._pool.process_ids

    async def compare(self, target: str, answer: str, near: float = 0.0) -> ComparisonResult:
        """Compare two answers in the form that `normalize_latex` returns.

        `near` is the relative error up to which two numbers count as the same.

        Raises:
            ProcessFailedError: the comparison raised an error other than one of memory or nesting.
            ProcessStartError: the process cannot be started.
        """
        try:
            same = await self._pool.call(
                comparison_process.compare_answers,
                *(target, answer, near),
                cpu_seconds=comparison_process.WARM_UP_SECONDS,
                wall_seconds=COMPARISON_TIMEOUT,
            )
        except ProcessTimeoutError:
            return ComparisonResult.TIMED_OUT
        except ProcessFailedError as error:
            if error.kind not in {"MemoryError", "RecursionError"}:
                raise
            return ComparisonResult.OUT_OF_MEMORY
        except ProcessDiedError:
            return ComparisonResult.OUT_OF_MEMORY
        return ComparisonResult.SAME if same else ComparisonResult.DIFFERENT
