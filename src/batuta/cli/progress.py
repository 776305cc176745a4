"""Progress of long tasks: bars on a terminal, lines in a log."""

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
"""Seconds without a line after which an update prints one, whatever the progress."""


class ProgressBars(Progress):
    """Progress bars; without a terminal, a line per minute and per tenth of the total."""

    format_amount: Callable[[float], str] = "{:g}".format
    """Formats an amount of work for a log line."""

    def update(self, task_id: TaskID, **fields: Any) -> None:
        """Update a task as rich does; without a terminal, print a line if one is due."""
        (task,) = (one for one in self.tasks if one.id == task_id)
        before = _completed_tenths(task)
        super().update(task_id, **fields)
        if self.console.is_terminal:
            return
        seconds = task.elapsed or 0.0
        if (
            _completed_tenths(task) > before
            or seconds >= task.fields.get("printed_at", 0) + QUIET_SECONDS
        ):
            super().update(task_id, printed_at=seconds)
            done, total = map(self.format_amount, (task.completed, task.total or 0))
            progress = f"{done}/{total}  {seconds:.0f} s"
            self.console.print(f"{task.description}  {progress}  {task.fields['status']}".rstrip())


def open_progress_bars(*, in_bytes: bool = False) -> ProgressBars:
    """Return progress bars on stderr; add each task with a `status`, the text after its bar.

    Args:
        in_bytes: whether progress is counted in bytes rather than steps.
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
