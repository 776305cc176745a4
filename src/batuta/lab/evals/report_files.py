"""Writes reports to disk, as JSON, Markdown and HTML."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from batuta.errors import StoreError
from batuta.lab.evals import report_index
from batuta.lab.evals.html_report import render_page
from batuta.lab.evals.markdown_report import render_markdown
from batuta.lab.evals.report import Json


def write_report(folder: Path, found: Json, figures: Sequence[Path] = ()) -> None:
    """Write report.json and report.md, which shows the figures that are PNG files.

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
        StoreError: it cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise StoreError(f"{folder} cannot be written: it is not yours")


def publish_report(folder: Path, found: Json, figures: Sequence[Path]) -> None:
    """Write report.json, report.md and report.html, which needs no other file.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_report(folder, found, figures)
    drawn = {f.stem: f.read_text(encoding="utf-8") for f in figures if f.suffix == ".svg"}
    write_files(folder, {"report.html": render_page(_report_text(found, figures), drawn)})


def write_report_index(folder: Path, found: report_index.Reports) -> None:
    """Write report.json and report.md for several reports in subfolders.

    Raises:
        StoreError: the folder cannot be written.
    """
    files = {
        "report.json": _json_text(list(found.values())),
        "report.md": report_index.render_index_markdown(found),
    }
    write_files(folder, files)


def publish_report_index(folder: Path, found: report_index.Reports) -> None:
    """Write the same and report.html, which links to those of the subfolders.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_report_index(folder, found)
    text = report_index.render_index_markdown(found, "report.html")
    write_files(folder, {"report.html": render_page(text)})


def _json_text(found: Any) -> str:
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write each text into the file of its name.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from None
