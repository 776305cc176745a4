"""A report on disk: the figures for programs, the pages for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from batuta.errors import StoreError
from batuta.evals import report_index
from batuta.evals.markdown_report import render_markdown
from batuta.evals.report import Json


def write_report(folder: Path, found: Json, figures: Sequence[Path] = ()) -> None:
    """Write report.json and report.md; the figures are shown where they are PNG files.

    Raises:
        StoreError: the folder cannot be written.
    """
    shown = "".join(f"\n![{f.stem}]({f.name})\n" for f in figures if f.suffix == ".png")
    _write_files(
        folder, {"report.json": _json_text(found), "report.md": render_markdown(found) + shown}
    )


def publish_report(folder: Path, found: Json, figures: Sequence[Path]) -> None:
    """Write the same and report.html, one file that needs no other.

    Raises:
        ConfigError: jinja2 is not installed.
        StoreError: the folder cannot be written.
    """
    from batuta.evals.html_report import render_report_html  # noqa: PLC0415 - an extra

    write_report(folder, found, figures)
    drawn = {f.stem: f.read_text(encoding="utf-8") for f in figures if f.suffix == ".svg"}
    _write_files(folder, {"report.html": render_report_html(found, drawn)})


def write_report_index(folder: Path, found: report_index.Reports) -> None:
    """Write report.json and report.md of several reports, which are in folders below.

    Raises:
        StoreError: the folder cannot be written.
    """
    files = {
        "report.json": _json_text(list(found.values())),
        "report.md": report_index.render_index_markdown(found),
    }
    _write_files(folder, files)


def publish_report_index(folder: Path, found: report_index.Reports) -> None:
    """Write the same and report.html, which leads to those of the folders.

    Raises:
        ConfigError: jinja2 is not installed.
        StoreError: the folder cannot be written.
    """
    from batuta.evals.html_report import render_index_html  # noqa: PLC0415 - an extra

    write_report_index(folder, found)
    _write_files(folder, {"report.html": render_index_html(found)})


def _json_text(found: Any) -> str:
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"the report cannot be written: {error.strerror}") from None
