"""Progress bars on stderr if it is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from batuta.rendering.console import open_console

StartProgress = Callable[[str, int], Callable[[], None]]
"""Starts a progress bar of that name and size, and returns a function to call for each part
done."""


@contextmanager
def open_progress() -> Generator[StartProgress]:
    """Open progress bars, or do nothing if stderr is no terminal."""
    console = open_console(stderr=True)
    columns = (
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def bar(name: str, total: int) -> Callable[[], None]:
            task = progress.add_task(name, total=total)
            return lambda: progress.advance(task)

        yield bar
