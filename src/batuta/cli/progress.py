"""How far a long work is: bars, and lines where bars cannot be drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from batuta.core.formatting import format_bytes
from batuta.rendering.console import open_console

QUIET_SECONDS = 60.0
"""The seconds after which a log says again how far a task is, however little was done."""


class ProgressBars(Progress):
    """Bars; where they cannot be drawn, in a log, a line at every tenth of the way and minute."""

    format_amount: Callable[[float], str] = "{:g}".format
    """Says how much is done, in a log."""

    def update(self, task_id: TaskID, **fields: Any) -> None:
        """Update a task as rich does."""
        (task,) = (one for one in self.tasks if one.id == task_id)
        before = _completed_tenths(task)
        super().update(task_id, **fields)
        if self.console.is_terminal:
            return
        seconds = task.elapsed or 0.0
        if (
            _completed_tenths(task) > before
            or seconds >= task.fields.get("told", 0) + QUIET_SECONDS
        ):
            super().update(task_id, told=seconds)
            done, total = map(self.format_amount, (task.completed, task.total or 0))
            how_far = f"{done}/{total}  {seconds:.0f} s"
            self.console.print(f"{task.description}  {how_far}  {task.fields['status']}".rstrip())


def open_progress_bars(*, in_bytes: bool = False) -> ProgressBars:
    """Return bars on standard error; each task is added with a `status`, the words behind it.

    Args:
        in_bytes: whether bytes are counted, in place of steps.
    """
    counted = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    console = open_console(stderr=True)
    bars = ProgressBars(
        TextColumn("{task.description}"),
        BarColumn(),
        *counted,
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    if in_bytes:
        bars.format_amount = lambda amount: format_bytes(int(amount))
    return bars


def _completed_tenths(task: Task) -> int:
    return int(10 * task.completed / task.total) if task.total else 0
