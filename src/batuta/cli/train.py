"""`batuta train`: a conductor learns."""

from __future__ import annotations

import json
import os
import sys
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import anyio
import typer
from rich.console import Console
from rich.progress import TaskID
from rich.table import Table

from batuta.cli.progress import bars
from batuta.cli.report import print_json
from batuta.cli.selector import selector
from batuta.config import store_target
from batuta.errors import ConfigError

if TYPE_CHECKING:
    from batuta.train.check import Figure, Report
    from batuta.train.settings import Settings

EXIT_LACKING = 2
GIB, MIB = 2**30, 2**20
HOUR, MINUTE = 3600, 60

NEEDED = ("torch", "trl", "peft", "accelerate", "datasets")

app = typer.Typer(
    no_args_is_help=True,
    help="Train a conductor: a warm start, then reinforcement learning (needs batuta\\[train]).",
)

app.command()(selector)

Config = Annotated[Path, typer.Option("--config", help="The training's TOML file.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Overrides the file's seed.")]
Out = Annotated[Path | None, typer.Option(help="Overrides the file's output folder.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Overrides one setting: optimiser.steps=50."),
]


@app.command()
def warmup(config: Config, seed: Seed = None, out: Out = None, changes: Set = None) -> None:
    """Make a small policy from nothing and teach it the syntax of workflows, never a strategy."""
    settings = _settings(config, changes, seed, out)
    from batuta.train.start import start  # noqa: PLC0415 - loads torch

    with bars() as bar:
        line = bar.add_task("warm start", total=settings.warmup.steps, said="")

        def told(step: int, loss: float) -> None:
            bar.update(line, completed=step + 1, said=f"loss {loss:.3f} nats a token")

        folder = start(settings, told)
    typer.echo(folder)


@app.command()
def rejection(config: Config, seed: Seed = None, out: Out = None, changes: Set = None) -> None:
    """Rejection sampling: fit the policy to those of its own workflows that earned more.

    A stage between warm start and reinforcement learning, from which the latter then begins.
    """
    settings = _settings(config, changes, seed, out)
    from batuta.train.rejection import reject  # noqa: PLC0415 - loads torch

    with bars() as bar:
        lines: dict[str, TaskID] = {}

        def told(doing: str, done: int, total: int, figures: dict[str, float]) -> None:
            if doing not in lines:
                lines[doing] = bar.add_task(doing, total=total, said="")
            bar.update(lines[doing], completed=done, said=_said(figures))

        folder = reject(settings, told)
    typer.echo(folder)


@app.command()
def conductor(
    config: Config,
    seed: Seed = None,
    out: Out = None,
    changes: Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say what it takes and what is missing; spend nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: for programs.")] = False,
    from_runs: Annotated[
        bool, typer.Option("--from-runs", help="Ask also what was served and judged.")
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(help="Whose runs: a database file or URL, by default this machine's."),
    ] = None,
    runs_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of the questions that come from runs.")
    ] = 0.5,
) -> None:
    """Reinforcement learning: workflows are written, played, graded, and their reward is learned.

    With --from-runs (or --store) part of the questions are those of stored runs that were judged
    by feedback; each stage of the curriculum keeps its own mix for the rest. The store is read
    anew by --resume.

    Exit codes: 0 trained, or --check found nothing missing; 2 the settings cannot be carried out;
    130 interrupted, --resume goes on.
    """
    settings = _settings(config, changes, seed, out)
    if from_runs or store:
        settings = _with_runs(settings, store, runs_share)
    if check:
        _check(settings, as_json=as_json)
        return
    from batuta.train.learn import learn  # noqa: PLC0415 - loads torch
    from batuta.train.machine import missing_extras  # noqa: PLC0415

    for lacking in missing_extras(settings):
        raise ConfigError(lacking)
    with bars() as bar:
        line = bar.add_task("learning", total=settings.optimiser.steps, said="")

        def told(figures: dict[str, Any]) -> None:
            bar.update(line, completed=figures["step"], said=_said(figures))

        folder = learn(settings, sys.argv, told, resume=resume)
    typer.echo(folder)


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(help="The run's folder.")],
    once: Annotated[bool, typer.Option("--once", help="Print what there is and exit.")] = False,
) -> None:
    """Follow a training: reward, validity, steps, entropy, time, and the last workflows."""
    from batuta.train.watch import watch as follow  # noqa: PLC0415 - only here

    try:
        follow(folder, Console(), once=once)
    except KeyboardInterrupt:
        return


@app.command()
def plots(
    folders: Annotated[list[Path], typer.Argument(help="Run folders; seeds of one training.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to; by default plots in the first folder.")
    ] = None,
) -> None:
    """Draw the curves of one run, or of several with the band that they span."""
    from batuta.train.plots import draw  # noqa: PLC0415 - loads matplotlib

    for path in draw(folders, out or folders[0] / "plots"):
        typer.echo(path)


# -- settings -----------------------------------------------------------------------------


def _settings(
    config: Path, changes: Sequence[str] | None, seed: int | None, out: Path | None
) -> Settings:
    """The file's settings, with what the command line overrides.

    Raises:
        ConfigError: the file cannot be used, or the `[train]` extra is missing.
    """
    _quietly()
    for name in NEEDED:
        if find_spec(name) is None:
            raise ConfigError(f"training needs {name}; install it: pip install 'batuta[train]'")
    from batuta.train.settings import read_settings  # noqa: PLC0415 - after the check

    told = [("seed", seed), ("output", None if out is None else str(out))]
    named = [f"{name}={json.dumps(value)}" for name, value in told if value is not None]
    return overridden(read_settings(config), [*(changes or ()), *named], str(config))


def _with_runs(settings: Settings, store: str | None, share: float) -> Settings:
    """The settings, part of whose questions come from served runs; says how many there are.

    Raises:
        ConfigError: nothing can be learned from the runs.
        StoreError: they cannot be read.
    """
    from batuta.train.from_runs import served, with_runs  # noqa: PLC0415 - after the check

    found = anyio.run(served, store or store_target())
    typer.echo(f"{found}.", err=True)
    return with_runs(settings, f"runs:{store}" if store else "runs", share)


def overridden(settings: Settings, changes: Sequence[str], source: str) -> Settings:
    """The settings with `KEY=VALUE` changes, in their order.

    Raises:
        ConfigError: a change has no key or value, or its setting is unknown or out of range.
    """
    from batuta.train.settings import checked  # noqa: PLC0415 - after the check

    values: dict[str, Any] = settings.model_dump()
    for change in changes:
        values = _merged(values, _override(change))
    return checked(values, source)


def _override(change: str) -> dict[str, Any]:
    """`a.b=value` as a tree; a value that is no TOML is text.

    Raises:
        ConfigError: there is no key or no value.
    """
    key, equals, value = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {change}: write KEY=VALUE, such as optimiser.steps=50")
    try:
        return tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        pass
    try:
        return tomllib.loads(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    except tomllib.TOMLDecodeError:
        raise ConfigError(f"--set {change}: {key!r} is no key") from None


def _merged(values: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of `change` in their places."""
    merged = dict(values)
    for key, value in change.items():
        if isinstance(value, dict):
            inner: dict[str, Any] = merged.get(key) or {}
            merged[key] = _merged(inner, cast("dict[str, Any]", value))
        else:
            merged[key] = value
    return merged


def _quietly() -> None:
    """Keep the libraries' remarks to themselves."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


# -- saying -------------------------------------------------------------------------------


def _check(settings: Settings, *, as_json: bool) -> None:
    from batuta.train.check import check  # noqa: PLC0415 - loads torch

    report = check(settings)
    if int(os.environ.get("RANK", "0")) == 0:
        if as_json:
            print_json(_report_json(report))
        else:
            _show(Console(), report)
    if not report.ready:
        raise typer.Exit(EXIT_LACKING)


def _report_json(report: Report) -> dict[str, Any]:
    figures = {
        figure.name.replace(" ", "_"): {
            "value": figure.value,
            "unit": figure.unit,
            "source": figure.source,
        }
        for figure in report.figures
    }
    return {
        "ready": report.ready,
        "missing": list(report.missing),
        "notes": list(report.notes),
        "figures": figures,
    }


def _show(console: Console, report: Report) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for figure in report.figures:
        table.add_row(figure.name, _shown(figure), figure.source)
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    for lacking in report.missing:
        console.print(f"missing: {lacking}", style="red", markup=False)
    if report.ready:
        console.print("it can start", style="green")


def _shown(figure: Figure) -> str:
    """The figure for people."""
    value = figure.value
    if value is None:
        return "unknown"
    match figure.unit:
        case "bytes":
            return f"{value / GIB:,.2f} GiB" if value >= GIB else f"{value / MIB:,.1f} MiB"
        case "usd":
            return f"${value:,.2f}"
        case "seconds":
            return _duration(value)
        case "tokens":
            return f"{value:,.0f} tokens"
        case _:
            return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _duration(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.3g} s"
    if seconds < HOUR:
        return f"{seconds / MINUTE:.1f} min"
    return f"{seconds / HOUR:.1f} h"


def _said(figures: Mapping[str, Any]) -> str:
    """A step in a line; what nobody could judge is left out."""
    names = ("loss", "reward", "right", "valid", "steps")
    known = [name for name in names if figures.get(name) is not None]
    return "  ".join(f"{name} {figures[name]:.2f}" for name in known)
