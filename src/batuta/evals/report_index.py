"""Several reports as one table: a line for each task set, a column for each system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batuta.evals.markdown_report import format_percent, markdown_table
from batuta.evals.report import Json

TABLE_LEGEND = (
    "Right %, – where a system cannot be run; each set's page has the intervals. Bold: the best "
    "method of the set. In brackets: lines to compare with, no methods. A star: some of its "
    "replies are simulated."
)

Reports = Mapping[str, Json]
"""By the folder that each is in."""


@dataclass(frozen=True, slots=True)
class IndexCell:
    """How often a system is right."""

    text: str
    best: bool
    """No method is right more often on this set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow:
    """A task set."""

    folder: str
    name: str
    questions: int
    cells: tuple[IndexCell, ...]
    """In the order of `systems`."""


def list_systems(found: Reports) -> dict[str, bool]:
    """Every system, methods first, and whether it is a line to compare with."""
    named = {n: n in report["references"] for report in found.values() for n in report["systems"]}
    return dict(sorted(named.items(), key=lambda item: item[1]))


def index_title(found: Reports) -> str:
    """How many sets there are."""
    return f"{len(found)} task sets"


def index_heads(found: Reports) -> list[str]:
    """The columns."""
    return [
        "set",
        "questions",
        *(f"({n})" if line else n for n, line in list_systems(found).items()),
    ]


def index_rows(found: Reports) -> list[IndexRow]:
    """A line for each report, in their order."""
    return [_index_row(folder, report, list_systems(found)) for folder, report in found.items()]


def _index_row(folder: str, report: Json, names: Mapping[str, bool]) -> IndexRow:
    measured: Json = report["systems"]
    right = {name: measured[name]["accuracy"] for name in names if name in measured}
    of_methods = [right[n] for n in right if not names[n] and right[n] is not None]
    best = max(of_methods, default=None)
    starred = {name for name in right if measured[name]["simulated_runs"]}
    cells = [
        IndexCell(
            format_percent(right.get(name)) + "*" * (name in starred),
            not line and right.get(name) is not None and right[name] == best,
        )
        for name, line in names.items()
    ]
    return IndexRow(
        folder=folder, name=report["tasks"], questions=report["questions"], cells=tuple(cells)
    )


def render_index_markdown(found: Reports) -> str:
    """The whole page as Markdown."""
    rows = (
        [
            f"[{line.name}]({line.folder}/report.md)",
            str(line.questions),
            *(f"**{cell.text}**" if cell.best else cell.text for cell in line.cells),
        ]
        for line in index_rows(found)
    )
    return (
        f"# {index_title(found)}\n\n{TABLE_LEGEND}\n\n{markdown_table(index_heads(found), rows)}\n"
    )
