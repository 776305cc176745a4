"""An archive of an evaluation's runs, for reading prompts, replies and grades.

The runs are kept in a store like that of served runs, beside the results, which name a run by its
id. Runs on private questions, runs on records and calibration runs are not kept.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

import anyio

from batuta.core import Run, RunId
from batuta.errors import StoreError
from batuta.lab.evals.result_log import TrialResult
from batuta.offload.tasks import open_background_tasks
from batuta.store import Store
from batuta.store.judgement import Judgement

RUNS_FILE = "runs.db"
MAX_EXPECTED = 200
"""Maximum number of characters of a correct answer that is kept with a run."""


def run_id_of(key: str) -> RunId:
    """Return the id of a trial's run, which is the same wherever the trial is executed."""
    return RunId(f"run_{key[:24]}")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The result of a trial, with its run."""

    result: TrialResult
    run: Run | None = None
    """None if the run is not kept."""
    expected: str = ""
    """The correct answer, if it is short, else empty."""

    @property
    def comment(self) -> str:
        """The task, the grade and the correct answer, in the form of a comment on a served run."""
        one = self.result
        reason = f"{one.unscored}: {one.reason}" if one.unscored else one.reason
        lines = [f"Task: {one.task}, seed {one.seed}", f"Grade: {reason}"]
        return "\n".join([*lines, *([f"Expected: {self.expected}"] if self.expected else [])])


@final
class RunArchive:
    """Writes runs to a store in the background; opened by `RunArchive.open`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: list[MeasuredRun] = []
        self._added = anyio.Event()
        self._lock = anyio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncGenerator[Self]:
        """Open the archive in that folder; leaving the block writes the pending runs.

        Raises:
            StoreError: the store cannot be opened.
        """
        path = folder / RUNS_FILE
        archive: Self | None = None
        try:
            async with Store.open(path) as store, open_background_tasks() as tasks:
                archive = cls(store)
                tasks.start_soon(archive._write_on)
                yield archive
        finally:
            if archive is not None:
                await archive._write_rest(path)

    async def _write_rest(self, path: Path) -> None:
        """Write the pending runs, even if the block and its store were cancelled."""
        with anyio.CancelScope(shield=True):
            if self._pending:
                async with Store.open(path) as self._store:
                    with suppress(StoreError):  # the block's own error matters more
                        await self._write_pending()

    def put(self, measured: MeasuredRun) -> None:
        """Queue the run with its grade, to be written in the background."""
        self._pending.append(measured)
        self._added.set()

    async def flush(self) -> None:
        """Wait until everything queued is written.

        Raises:
            StoreError: a run could not be written.
        """
        await self._write_pending()

    async def _write_on(self) -> None:
        while True:
            await self._added.wait()
            self._added = anyio.Event()
            with anyio.CancelScope(shield=True), suppress(StoreError):  # `flush` tries again
                await self._write_pending()

    async def _write_pending(self) -> None:
        async with self._lock:
            batch, self._pending = self._pending, []
            kept = [(one, one.run) for one in batch if one.run is not None]
            if not kept:
                return
            try:
                for _, run in kept:
                    await self._store.append(run)
                await self._store.score_runs(
                    {run.header.id: Judgement(one.result.score, one.comment) for one, run in kept}
                )
            except StoreError:  # the block may be cancelled, and the store with it
                self._pending = [*batch, *self._pending]
                raise
