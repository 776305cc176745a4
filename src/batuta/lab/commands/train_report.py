"""What `batuta train` says: what a training takes before it starts, and each step in a line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from batuta.cli.json_output import print_json
from batuta.core.formatting import format_count, format_seconds, format_usd
from batuta.rendering.console import open_console

if TYPE_CHECKING:
    from batuta.lab.train.bill import ExpectedFigure, Preflight
    from batuta.lab.train.settings import TrainSettings

EXIT_MISSING = 2
GIB, MIB = 2**30, 2**20


def print_preflight(settings: TrainSettings, *, as_json: bool, calls: int = 0) -> None:
    """Say what the training takes, after so many real calls; exit with 2 if something is missing.

    Of several processes only the first one makes calls.
    """
    from batuta.lab.train.preflight import check_training  # noqa: PLC0415 - loads torch

    first = int(os.environ.get("RANK", "0")) == 0
    report = check_training(settings, calls=calls if first else 0)
    if first:
        if as_json:
            print_json(_report_json(report))
        else:
            _print_figures(open_console(), report)
    if not report.is_ready:
        raise typer.Exit(EXIT_MISSING)


def _report_json(report: Preflight) -> dict[str, Any]:
    figures = {
        figure.name.replace(" ", "_"): {
            "value": figure.value,
            "unit": figure.unit,
            "source": figure.source,
        }
        for figure in report.figures
    }
    return {
        "ready": report.is_ready,
        "missing": list(report.missing),
        "notes": list(report.notes),
        "figures": figures,
    }


def _print_figures(console: Console, report: Preflight) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for figure in report.figures:
        table.add_row(figure.name, _format_figure(figure), figure.source)
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", style="yellow")
    for lacking in report.missing:
        console.print(f"missing: {lacking}", style="red")
    if report.is_ready:
        console.print("it can start", style="green")


def _format_figure(figure: ExpectedFigure) -> str:
    """Return the figure for people."""
    value = figure.value
    if value is None:
        return "unknown"
    match figure.unit:
        case "bytes":
            return f"{value / GIB:,.2f} GiB" if value >= GIB else f"{value / MIB:,.1f} MiB"
        case "usd":
            return format_usd(value)
        case "seconds":
            return format_seconds(value)
        case "tokens":
            return f"{format_count(value)} tokens"
        case _:
            return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def format_metrics(figures: Mapping[str, Any]) -> str:
    """Return a step in a line; what nobody could judge is left out."""
    names = ("loss", "reward", "right", "valid", "steps")
    known = [name for name in names if figures.get(name) is not None]
    skipped = ["skipped: its gradient was no number"] if figures.get("skipped") else []
    return "  ".join([*(f"{name} {figures[name]:.2f}" for name in known), *skipped])
