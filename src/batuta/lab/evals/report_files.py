"""Writes reports to disk, as JSON, Markdown and HTML."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from batuta.errors import StoreError, report_unwritable
from batuta.lab.evals.html_report import render_page
from batuta.lab.evals.markdown_report import format_percent, markdown_table, render_markdown
from batuta.lab.evals.report import Json

TABLE_LEGEND = (
    "Right % (accuracy); – if a system cannot be run. Each set's page has the intervals. Bold: the "
    "best method of the set. In brackets: reference lines, not methods. A star: some of its "
    "replies are simulated."
)

Reports = Mapping[str, Json]
"""Reports by the name of their folder."""


def list_systems(found: Reports) -> dict[str, bool]:
    """Return every system, methods first, and whether it is a reference line."""
    named = {n: n in report["references"] for report in found.values() for n in report["systems"]}
    return dict(sorted(named.items(), key=lambda item: item[1]))


def index_heads(found: Reports) -> list[str]:
    """Return the column heads of the index."""
    names = (f"({n})" if line else n for n, line in list_systems(found).items())
    return ["set", "questions", *names]


def index_row(report: Json, names: Mapping[str, bool]) -> list[str]:
    """Return a cell for each of `names`: its accuracy in the report, in bold for the best method.

    `names` says of each system whether it is a reference line.
    """
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


def write_report(folder: Path, found: Json, figures: Sequence[Path] = ()) -> None:
    """Write report.json and report.md; report.md shows the PNG files among the figures.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_files(
        folder, {"report.json": _json_text(found), "report.md": _report_text(found, figures)}
    )


def _report_text(found: Json, figures: Sequence[Path]) -> str:
    return render_markdown(found, [each.stem for each in figures if each.suffix == ".png"])


def make_report_folder(folder: Path) -> None:
    """Create the folder of a report before anything is paid for it.

    Raises:
        StoreError: the folder cannot be created or written.
    """
    with report_unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise StoreError(f"{folder} cannot be written (no permission): name another folder")


def publish_report(folder: Path, found: Json, figures: Sequence[Path]) -> None:
    """Write report.json, report.md and report.html; report.html contains the SVG figures.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_report(folder, found, figures)
    drawn = {f.stem: f.read_text(encoding="utf-8") for f in figures if f.suffix == ".svg"}
    write_files(folder, {"report.html": render_page(_report_text(found, figures), drawn)})


def write_report_index(folder: Path, found: Reports) -> None:
    """Write report.json and report.md, an index of several reports in subfolders.

    Raises:
        StoreError: the folder cannot be written.
    """
    files = {
        "report.json": _json_text(list(found.values())),
        "report.md": render_index_markdown(found),
    }
    write_files(folder, files)


def publish_report_index(folder: Path, found: Reports) -> None:
    """Write the index, also as report.html, which links to the pages in the subfolders.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_report_index(folder, found)
    text = render_index_markdown(found, "report.html")
    write_files(folder, {"report.html": render_page(text)})


def _json_text(found: Any) -> str:
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write each text into the file of its name.

    Raises:
        StoreError: the folder or a file cannot be written.
    """
    with report_unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with report_unwritable(folder / name):
            (folder / name).write_text(text, encoding="utf-8")
