"""The output of `batuta eval`: tables, progress and messages; and how its processes end."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from batuta.cli.progress import open_progress_bars
from batuta.lab.tasks import RECORDED_PREFIX
from batuta.rendering.console import open_console
from batuta.rendering.terminal import write_error

if TYPE_CHECKING:
    from batuta.lab.evals import StartProgress


def recorded_set_folder(tasks: str) -> str:
    """Return the name of the folder that a recorded set has in --out."""
    return tasks.removeprefix(RECORDED_PREFIX).replace("/", "-")


def write_set_index(found: Sequence[dict[str, Any]], out: Path, report: Path | None) -> None:
    """Write the table of all sets into the folder that contains the folders of the sets.

    Raises:
        StoreError: a folder cannot be written.
    """
    from batuta.lab.evals.report_files import publish_report_index, write_report_index  # noqa: PLC0415 - loads numpy

    reports = {recorded_set_folder(one["tasks"]): one for one in found}
    write_report_index(out, reports)
    if report is not None:
        publish_report_index(report, reports)


def print_table(report: dict[str, Any]) -> None:
    """Print the report's table and notes to stdout."""
    from batuta.lab.evals.markdown_report import TABLE_HEADS, report_notes, report_title, table_rows  # noqa: PLC0415 - with the rest

    console = open_console()
    shown = Table(title=report_title(report), title_justify="left", box=None, padding=(0, 1, 0, 0))
    for head in TABLE_HEADS[:-1]:
        side = "left" if head == TABLE_HEADS[0] else "right"
        figure = head not in {"system", "n"}  # other columns are folded, so that no figure is cut
        shown.add_column(head, justify=side, no_wrap=figure, overflow="fold")
    for row in table_rows(report):
        shown.add_row(*row[:-1])
    console.print(shown)
    for line in report_notes(report):
        console.print(line, style="dim", highlight=False, soft_wrap=True)


@contextmanager
def open_progress() -> Generator[StartProgress]:
    """Show each system's progress: bars, or lines in a log."""
    with open_progress_bars() as bars:

        def start(name: str, total: int) -> Callable[[], None]:
            task = bars.add_task(name, total=total, status="")
            return lambda: bars.update(task, advance=1)

        yield start


def has_scores(found: Sequence[dict[str, Any]]) -> bool:
    """Return whether any run of these reports has a score."""
    return any(figures["n"] for one in found for figures in one["systems"].values())


def print_message(sentence: str) -> None:
    """Print the sentence to stderr, after `batuta:`."""
    write_error(f"batuta: {sentence}\n")


def exit_with_parent() -> None:
    """Start a thread that ends this process once the parent process has ended, even by a kill."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
