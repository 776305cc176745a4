"""The console for tables, colours and progress bars of all commands.

Output may contain text of callers and models. Of the control characters in it only tabs and line
feeds reach the terminal (`core.formatting.escape_controls`); only this program sets colours.
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
"""Characters of a line in a file or a pipe, unless COLUMNS is set."""
_BETWEEN = 2
"""Characters between two columns of a table."""
_LEAST_LAST = 24
"""Minimum width of a table's last column, in which a path is folded into a few lines."""


@final
class EscapingConsole(Console):
    """A console that shows control characters as signs and interprets neither links nor markup.

    Brackets and colons are literal, since they may come from a caller or a model. Styles are given
    by `style=` or `rich.text.Text`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, markup=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments to write; segments with `control` come only from this program."""
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
    """Return a console as wide as the terminal, or `WIDTH_IN_FILES` wide without a terminal.

    `highlight` colours numbers and the like on a terminal; `soft_wrap` leaves long lines to the
    terminal; a `quiet` console prints nothing.
    """
    console = EscapingConsole(stderr=stderr, highlight=highlight, soft_wrap=soft_wrap, quiet=quiet)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_IN_FILES
    return console


def new_table(
    *titles: str,
    right: Collection[str] = (),
    padding: tuple[int, int] | tuple[int, int, int, int] = (0, _BETWEEN, 0, 0),
    expand: bool = False,
) -> Table:
    """Return a table without lines, whose cells are folded on a narrow terminal, not truncated.

    `right` are the titles of the right-aligned columns.
    """
    from rich.table import Table  # noqa: PLC0415 - many commands show none

    table = Table(box=None, pad_edge=False, padding=padding, expand=expand, header_style="dim")
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table, or its rows one by one if the terminal is too narrow for whole words.

    Only the last column may be folded within words, and not below a minimum width.
    """
    from rich.measure import Measurement  # noqa: PLC0415 - many commands show no table

    least: list[int] = []
    for column in table.columns:
        cells = (column.header, *column.cells)
        sizes = [Measurement.get(console, console.options, cell) for cell in cells]
        least.append(max(size.minimum for size in sizes))
        column.no_wrap = least[-1] >= max(size.maximum for size in sizes)  # no room between words
    table.columns[-1].no_wrap = False
    least[-1] = min(least[-1], _LEAST_LAST)
    if sum(least) + _BETWEEN * (len(least) - 1) <= console.width:
        console.print(table)
        return
    columns = [(column.header, list(column.cells)) for column in table.columns]
    for row in range(table.row_count):
        lines = new_table()
        lines.show_header = False
        lines.add_column(style=table.header_style, no_wrap=True)
        lines.add_column(overflow="fold")
        for title, cells in columns:
            if cells[row]:
                lines.add_row(title, cells[row])
        if row:
            console.print()
        console.print(lines)


def print_nothing(what: str) -> None:
    """Print that nothing is stored or selected; `what` begins the sentence, such as "no runs"."""
    open_console().print(f"{what} yet, or none that the options select", style="dim")
