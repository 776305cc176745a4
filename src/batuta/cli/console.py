"""Where commands print tables and progress."""

from __future__ import annotations

import os

from rich.console import Console

WIDTH_IN_FILES = 200
"""Characters of a line in a file or a pipe, where nobody's screen ends; COLUMNS says otherwise."""


def open_console(*, stderr: bool = False, highlight: bool = True) -> Console:
    """A console as wide as the terminal, and wide where there is none: nothing is cut in a file.

    Args:
        stderr: on standard error, in place of standard output.
        highlight: whether numbers and the like get colours on a terminal.
    """
    console = Console(stderr=stderr, highlight=highlight)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_IN_FILES
    return console
