"""How far a long work is: bars, and lines where bars cannot be drawn."""

from __future__ import annotations

from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from batuta.rendering.console import open_console


class ProgressBars(Progress):
    """Bars; where they cannot be drawn, in a log, a line at every tenth of the way."""

    def update(self, task_id: TaskID, **fields: Any) -> None:
        """Update a task as rich does."""
        (task,) = (one for one in self.tasks if one.id == task_id)
        before = _completed_tenths(task)
        super().update(task_id, **fields)
        if not self.console.is_terminal and _completed_tenths(task) > before:
            seconds = round(task.elapsed or 0)
            how_far = f"{task.completed:g}/{task.total or 0:g}  {seconds} s"
            self.console.print(f"{task.description}  {how_far}  {task.fields['status']}".rstrip())


def open_progress_bars() -> ProgressBars:
    """Return bars on standard error; each task is added with a `status`, the words behind it."""
    return ProgressBars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=open_console(stderr=True),
    )


def _completed_tenths(task: Task) -> int:
    return int(10 * task.completed / task.total) if task.total else 0
