"""Joins several reports into one table with a row per task set and a column per system."""

from __future__ import annotations

from collections.abc import Mapping

from batuta.lab.evals.markdown_report import format_percent, markdown_table
from batuta.lab.evals.report import Json

TABLE_LEGEND = (
    "Right %, – where a system cannot be run; each set's page has the intervals. Bold: the best "
    "method of the set. In brackets: reference lines, not methods. A star: some of its "
    "replies are simulated."
)

Reports = Mapping[str, Json]
"""Reports by the name of their folder."""


def list_systems(found: Reports) -> dict[str, bool]:
    """Return every system, methods first, and whether it is a reference line."""
    named = {n: n in report["references"] for report in found.values() for n in report["systems"]}
    return dict(sorted(named.items(), key=lambda item: item[1]))


def index_heads(found: Reports) -> list[str]:
    """Return the column heads."""
    names = (f"({n})" if line else n for n, line in list_systems(found).items())
    return ["set", "questions", *names]


def index_row(report: Json, names: Mapping[str, bool]) -> list[str]:
    """Return each system's share right, the best of the methods in bold."""
    measured: Json = report["systems"]
    right = {name: measured[name]["accuracy"] for name in names if name in measured}
    of_methods = [right[n] for n in right if not names[n] and right[n] is not None]
    best = max(of_methods, default=None)
    cells: list[str] = []
    for name, line in names.items():
        share = right.get(name)
        star = r"\*" if name in right and measured[name]["simulated_runs"] else ""
        text = f"{format_percent(share)}{star}"
        cells.append(text if line or share is None or share != best else f"**{text}**")
    return cells


def render_index_markdown(found: Reports, page: str = "report.md") -> str:
    """Return the index as Markdown, with links to `page` of each report."""
    names = list_systems(found)
    rows = (
        [
            f"[{report['tasks']}]({folder}/{page})",
            str(report["questions"]),
            *index_row(report, names),
        ]
        for folder, report in found.items()
    )
    table = markdown_table(index_heads(found), rows)
    return f"# {len(found)} task sets\n\n{TABLE_LEGEND}\n\n{table}\n"
