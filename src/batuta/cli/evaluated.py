"""What `batuta eval` says and writes when it has measured, and how its helpers end."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RECORDED = "recorded:"
"""Before the name of a recorded set."""


def folder_of(tasks: str) -> str:
    """The folder of a recorded set among those of others."""
    return tasks.removeprefix(RECORDED).replace("/", "-")


def lead_to(found: Sequence[dict[str, Any]], out: Path, report: Path | None) -> None:
    """Write the table of all sets beside their folders.

    Raises:
        ConfigError: a report is wanted and jinja2 is not installed.
        StoreError: a folder cannot be written.
    """
    from batuta.evals.folder import keep_all, publish_all  # noqa: PLC0415 - loads numpy

    reports = {folder_of(one["tasks"]): one for one in found}
    keep_all(out, reports)
    if report is not None:
        publish_all(report, reports)


def show(report: dict[str, Any]) -> None:
    """The table on stdout."""
    from batuta.evals.markdown import HEADS, notes, rows, title  # noqa: PLC0415 - with the rest

    console = Console()
    shown = Table(title=title(report), title_justify="left", box=None, padding=(0, 1, 0, 0))
    for number, head in enumerate(HEADS[:-1]):
        shown.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in rows(report):
        shown.add_row(*row[:-1])
    console.print(shown)
    for line in notes(report):
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)


def scored(found: Sequence[dict[str, Any]]) -> bool:
    """Whether any run has a score."""
    return any(figures["n"] for one in found for figures in one["systems"].values())


def say(sentence: str) -> None:
    """On stderr."""
    sys.stderr.write(f"batuta: {sentence}\n")


def end_with_the_parent() -> None:
    """Ends this process as soon as the one that began it is gone, even killed: nobody reads on."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
