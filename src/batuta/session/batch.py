"""How far a batch of questions is, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable

BatchProgressCallback = Callable[[int, int], None]
"""Hears how many questions of a batch are answered, and how many there are."""


def open_progress(progress: bool | BatchProgressCallback, total: int) -> BatchProgressCallback:  # noqa: FBT001 - a value
    """Return the function that is called after each question, and with -1 at the end."""
    if not isinstance(progress, bool):
        return lambda done, total: progress(done, total) if done >= 0 else None
    if not progress:
        return lambda _done, _total: None
    from rich.progress import Progress as Bar  # noqa: PLC0415 - only where it is looked at

    from batuta.rendering.console import open_console  # noqa: PLC0415 - same

    bar = Bar(console=open_console(stderr=True))
    task = bar.add_task("questions", total=total)
    bar.start()
    return lambda done, _: bar.stop() if done < 0 else bar.update(task, completed=done)
