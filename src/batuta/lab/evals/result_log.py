"""Results on disk, each written before its run counts as done; what is there is not run again."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import orjson
from pydantic import TypeAdapter, ValidationError

from batuta.errors import StoreError

if sys.platform != "win32":
    import fcntl

RESULTS_FILE = "results.jsonl"

UnscoredReason = Literal["outage", "undecided"]
"""Why a run has no score: an outage decided its answer, or the grader could not decide."""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """A step as it counts for the question who is called for what."""

    worker: str
    kind: str
    """What its subtask asks for: solve, plan, verify…"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One system's run of one task with one seed."""

    key: str
    """Digest of all that the run depends on."""
    system: str
    task: str
    family: str
    difficulty: float | None
    seed: int
    score: float | None
    """In [0, 1]; None: `unscored` says why."""
    unscored: UnscoredReason | None
    reason: str
    """The grader's words, or the outage."""
    outcome: str
    answer: str | None
    """What the grader took for the answer."""
    tokens: int | None
    """All of them, the conductor's own too; None: of a call they are not known."""
    conductor_tokens: int
    usd: Decimal | None
    """What a judge took included; None: a call has no known price."""
    calls: int
    """All of them, the conductor's own and those that failed too."""
    rounds: int
    depth: int
    """Steps on the longest chain, over all rounds."""
    steps: tuple[StepSummary, ...]
    failed: int
    """Steps without a reply, and steps that another worker had to take over."""
    seconds: float | None
    """From the question to the answer, which is the longest chain of steps that wait for each
    other; None: replayed from a record."""
    simulated: int = 0
    """Steps whose replies a record could not know: another recorded answer stands in."""
    judge_usd: Decimal | None = Decimal(0)
    """Of `usd`, what the model took that graded the answer; None: not known."""
    outages: int | None = None
    """The number of `failed` that were outages; None: an earlier version did not count them."""
    run: str | None = None
    """The id of the run in the archive; None: it is not kept."""


class ResultLog:
    """The results of one folder."""

    def __init__(self, folder: Path) -> None:
        """Reads what is there and opens the file to append to it.

        Raises:
            StoreError: the folder cannot be written, another process writes to it, or a line is
                no result.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def is_done(self, key: str) -> bool:
        """Tell whether the run of that key is there; one that met an outage is run again.

        So is one of an earlier version that lost replies: an outage counted as a wrong one there.
        """
        found = self._results.get(key)
        if found is None or found.unscored == "outage":
            return False
        return found.outages is not None or not found.failed

    def add(self, result: TrialResult) -> None:
        """Write the result at once, in one piece.

        Raises:
            StoreError: the disk is full, or the file is gone.
        """
        line = orjson.dumps(result, default=str, option=orjson.OPT_APPEND_NEWLINE)
        try:
            os.write(self._file, line)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written: {error.strerror}") from None
        self._results[result.key] = result

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> TrialResult:
        """The result of that key.

        Raises:
            KeyError: there is none.
        """
        return self._results[key]


def _lock_file(file: int, folder: Path) -> None:
    """Held until the file is closed, also by the end of the process, however it ends."""
    if sys.platform == "win32":  # it has no such locks
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
    """The results in the file by their keys, later ones in the place of earlier ones."""
    if not path.exists():
        return {}
    *lines, torn = path.read_bytes().split(b"\n")
    if torn:  # the machine went down in the middle of a line
        os.truncate(path, path.stat().st_size - len(torn))
    adapter = TypeAdapter(TrialResult)
    results: dict[str, TrialResult] = {}
    for number, line in enumerate(lines, 1):
        try:
            result = adapter.validate_json(line)
        except ValidationError:
            reason = "is not a result of this version; remove it or name another folder with --out"
            raise StoreError(f"{path}, line {number} {reason}") from None
        results[result.key] = result
    return results
