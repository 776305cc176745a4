"""A report on disk: the figures for programs, the pages for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from batuta.errors import StoreError
from batuta.evals.markdown import markdown
from batuta.evals.report import Json


def keep(folder: Path, found: Json, figures: Sequence[Path] = ()) -> None:
    """Write report.json and report.md; the figures are shown where they are PNG files.

    Raises:
        StoreError: the folder cannot be written.
    """
    shown = "".join(f"\n![{f.stem}]({f.name})\n" for f in figures if f.suffix == ".png")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        (folder / "report.md").write_text(markdown(found) + shown, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"the report cannot be written: {error.strerror}") from None


def publish(folder: Path, found: Json, figures: Sequence[Path]) -> None:
    """Write the same and report.html, one file that needs no other.

    Raises:
        ConfigError: jinja2 is not installed.
        StoreError: the folder cannot be written.
    """
    from batuta.evals.html import html  # noqa: PLC0415 - an extra

    keep(folder, found, figures)
    drawn = {f.stem: f.read_text(encoding="utf-8") for f in figures if f.suffix == ".svg"}
    try:
        (folder / "report.html").write_text(html(found, drawn), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"the report cannot be written: {error.strerror}") from None
