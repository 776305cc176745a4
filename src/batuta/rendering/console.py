"""The one console for tables, colours and bars, of every command and every long work.

What is written may hold text of callers and models. No control character of theirs reaches the
terminal (`core.control_characters`); colours and movements of the cursor are this program's own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from batuta.core.formatting import escape_controls

if TYPE_CHECKING:
    from rich.table import Table

WIDTH_IN_FILES = 200
"""Characters of a line in a file or a pipe, where nobody's screen ends; COLUMNS says otherwise."""


@final
class EscapingConsole(Console):
    """A console that shows control characters as signs, makes no links and reads no markup.

    Brackets and colons are text, as they may be a caller's or a model's: a style is given beside
    its text, by `style=` or `rich.text.Text`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, markup=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is to be written; a segment with `control` is of this program."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
                continue
            style = segment.style
            if style is not None and style.link:
                style = style.update_link(None)
            yield Segment(escape_controls(segment.text), style)


def open_console(
    *, stderr: bool = False, highlight: bool = True, soft_wrap: bool = False, quiet: bool = False
) -> Console:
    """Return a console as wide as the terminal; where there is none, nothing is cut.

    Args:
        stderr: on standard error, in place of standard output.
        highlight: whether numbers and the like get colours on a terminal.
        soft_wrap: whether long lines are left to the terminal.
        quiet: whether nothing is written.
    """
    console = EscapingConsole(stderr=stderr, highlight=highlight, soft_wrap=soft_wrap, quiet=quiet)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_IN_FILES
    return console


def new_table(
    *titles: str,
    right: Collection[str] = (),
    padding: tuple[int, int] | tuple[int, int, int, int] = (0, 2, 0, 0),
    expand: bool = False,
) -> Table:
    """Return a table without lines.

    Args:
        titles: the columns.
        right: the titles of those that are set to the right.
        padding: characters around a cell.
        expand: whether it takes the terminal's whole width.
    """
    from rich.table import Table  # noqa: PLC0415 - many commands show none

    table = Table(box=None, pad_edge=False, padding=padding, expand=expand, header_style="dim")
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left")
    return table


def print_nothing(what: str) -> None:
    """Say that a report is empty: of all that is stored, or of what its options chose."""
    open_console().print(f"{what} yet, or none that the options choose", style="dim")
