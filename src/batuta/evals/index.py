"""Several reports as one table: a line for each task set, a column for each system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batuta.evals.markdown import percent, table
from batuta.evals.report import Json

ABOUT = (
    "Right %, – where a system cannot be played; each set's page has the intervals. Bold: the best "
    "method of the set. In brackets: lines to compare with, no methods. A star: some of its "
    "replies are simulated."
)

Reports = Mapping[str, Json]
"""By the folder that each is in."""


@dataclass(frozen=True, slots=True)
class Cell:
    """How often a system is right."""

    text: str
    best: bool
    """No method is right more often on this set."""


@dataclass(frozen=True, slots=True)
class Line:
    """A task set."""

    folder: str
    name: str
    questions: int
    cells: tuple[Cell, ...]
    """In the order of `systems`."""


def systems(found: Reports) -> dict[str, bool]:
    """Every system, methods first, and whether it is a line to compare with."""
    named = {n: n in report["references"] for report in found.values() for n in report["systems"]}
    return dict(sorted(named.items(), key=lambda item: item[1]))


def title(found: Reports) -> str:
    """How many sets there are."""
    return f"{len(found)} task sets"


def heads(found: Reports) -> list[str]:
    """The columns."""
    return ["set", "questions", *(f"({n})" if line else n for n, line in systems(found).items())]


def lines(found: Reports) -> list[Line]:
    """A line for each report, in their order."""
    return [_line(folder, report, systems(found)) for folder, report in found.items()]


def _line(folder: str, report: Json, names: Mapping[str, bool]) -> Line:
    measured: Json = report["systems"]
    right = {name: measured[name]["accuracy"] for name in names if name in measured}
    of_methods = [right[n] for n in right if not names[n] and right[n] is not None]
    best = max(of_methods, default=None)
    starred = {name for name in right if measured[name]["simulated_runs"]}
    cells = [
        Cell(
            percent(right.get(name)) + "*" * (name in starred),
            not line and right.get(name) is not None and right[name] == best,
        )
        for name, line in names.items()
    ]
    return Line(folder, report["tasks"], report["questions"], tuple(cells))


def markdown(found: Reports) -> str:
    """The whole page as Markdown."""
    rows = (
        [
            f"[{line.name}]({line.folder}/report.md)",
            str(line.questions),
            *(f"**{cell.text}**" if cell.best else cell.text for cell in line.cells),
        ]
        for line in lines(found)
    )
    return f"# {title(found)}\n\n{ABOUT}\n\n{table(heads(found), rows)}\n"
