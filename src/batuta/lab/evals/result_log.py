"""Stores results on disk before a run counts as done, so that finished runs are not repeated."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal, Self

import orjson
from pydantic import TypeAdapter, ValidationError

from batuta.errors import StoreError, report_unwritable
from batuta.files import write_whole

if sys.platform != "win32":
    import fcntl

RESULTS_FILE = "results.jsonl"

UnscoredReason = Literal["outage", "undecided"]
"""The reason why a run has no score: an outage, or a grader that could not decide."""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """A step, for statistics of workers and subtasks."""

    worker: str
    kind: str
    """The kind of the subtask: solve, plan, verify…"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The result of one system's run of one task with one seed."""

    key: str
    """The key of the `EvalTrial`."""
    system: str
    task: str
    family: str
    difficulty: float | None
    seed: int
    score: float | None
    """The score in [0, 1]; None if `unscored` has a reason."""
    unscored: UnscoredReason | None
    reason: str
    """The reason of the grade or why there is no answer, or the outage's message; empty for a
    private question."""
    outcome: str
    """The value of the run's `Outcome`, or `INVALID_PLAN` of `runner`."""
    answer: str | None
    """The answer that the grader extracted; None if there is none or the question is private."""
    tokens: int | None
    """All tokens but the judge's, including the conductor's; None if a record lacks some."""
    conductor_tokens: int
    usd: Decimal | None
    """Dollars, including the judge's; None if a call has no known price."""
    calls: int
    """All calls but the judge's, including the conductor's and failed calls."""
    rounds: int
    depth: int
    """Steps of the longest chain, summed over all rounds."""
    steps: tuple[StepSummary, ...]
    failed: int
    """The number of steps that have no reply or that another worker took over."""
    seconds: float | None
    """Wall-clock seconds from question to answer; None if replayed from a record, or if a reply
    came from the journal of finished calls."""
    simulated: int = 0
    """The number of steps whose reply is not in the record, so that another answer was used."""
    judge_usd: Decimal | None = Decimal(0)
    """The part of `usd` spent on grading; None if unknown."""
    outages: int | None = None
    """The number of steps with an outage; None if an earlier version did not count them."""
    run: str | None = None
    """The id of the run in the archive; None if it is not stored."""

    @property
    def answer_usd(self) -> Decimal | None:
        """Dollars of the answer alone, without the judge's; None if unknown."""
        if self.usd is None or self.judge_usd is None:
            return None
        return self.usd - self.judge_usd


class ResultLog:
    """The results in one folder, which (except on Windows) only one process at a time can open."""

    def __init__(self, folder: Path) -> None:
        """Read the results and open the file for appending.

        Raises:
            StoreError: the folder cannot be written, another process writes to it, or a line is not
                a result.
        """
        self.path = folder / RESULTS_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be used: {error.strerror}") from None
        try:
            _lock_file(self._file, folder)
            self._results = _read_results(self.path)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def is_done(self, key: str) -> bool:
        """Return whether the run of that key need not be repeated.

        A run that ended in an outage is repeated. So is a run with failed steps by an earlier
        version that counted outages as wrong answers.
        """
        found = self._results.get(key)
        if found is None or found.unscored == "outage":
            return False
        return found.outages is not None or not found.failed

    def add(self, result: TrialResult) -> None:
        """Append the result, and write it to disk immediately.

        Raises:
            StoreError: the disk is full, or the file cannot be written.
        """
        line = orjson.dumps(result, default=str, option=orjson.OPT_APPEND_NEWLINE)
        with report_unwritable(self.path):
            write_whole(self._file, line)
        self._results[result.key] = result

    def count_others(self, shown: Mapping[str, Sequence[TrialResult]]) -> int:
        """Count the results of these systems that are not shown."""
        keys = {result.key for results in shown.values() for result in results}
        return sum(
            result.system in shown and key not in keys for key, result in self._results.items()
        )

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> TrialResult:
        """Return the result of that key.

        Raises:
            KeyError: there is no such result.
        """
        return self._results[key]


def _lock_file(file: int, folder: Path) -> None:
    """Lock the file until it is closed or the process ends."""
    if sys.platform == "win32":  # Windows has no such locks
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(
            f"another evaluation writes to {folder}: wait for it, or name another folder with --out"
        ) from None
    except OSError as error:
        raise StoreError(f"{folder} cannot be locked: {error.strerror}") from None


def _read_results(path: Path) -> dict[str, TrialResult]:
    """Read the results by key; later results replace earlier ones.

    A complete last line gets its missing line break. An incomplete last line, as after a crash
    during the write, is removed from the file once all lines before it have been read.

    Raises:
        StoreError: a line is not a result.
    """
    content = path.read_bytes()
    *lines, rest = content.split(b"\n")
    adapter = TypeAdapter(TrialResult)
    results: dict[str, TrialResult] = {}
    for number, line in enumerate([*lines, rest] if rest else lines, 1):
        try:
            result = adapter.validate_json(line)
        except ValidationError:
            if number > len(lines) and line.startswith(b"{"):
                os.truncate(path, len(content) - len(line))
                return results
            reason = "is not a result of this version; remove it or name another folder with --out"
            raise StoreError(f"{path}, line {number} {reason}") from None
        results[result.key] = result
    if rest:
        with path.open("ab") as file:
            file.write(b"\n")
    return results
