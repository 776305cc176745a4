"""`batuta train conductor --minutes`: settings chosen by themselves, one table of what and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import anyio
import typer
from rich.console import Console
from rich.table import Table

from batuta.cli.console import open_console
from batuta.cli.train_settings import override_settings, require_packages
from batuta.errors import ConfigError

if TYPE_CHECKING:
    from batuta.train.auto_settings import ChosenSetting
    from batuta.train.held_back import SplitQuestions
    from batuta.train.settings import TrainSettings
    from batuta.train.training_supervisor import AutoReport

CHOOSING_PANEL = "Automatic settings"
"""Options in place of a file of settings."""


def train_by_itself(
    pool: str | None,
    tasks: str | None,
    minutes: float | None,
    *,
    began: float,
    out: Path,
    seed: int,
    changes: Sequence[str],
) -> None:
    """Chooses the settings, says what the training may take, trains, says what came of it.

    Args:
        pool: whom to conduct.
        tasks: what to learn from.
        minutes: how long all of it may take.
        began: when the command began, of the monotonic clock.
        out: the folder.
        seed: of everything.
        changes: settings that are not chosen, `KEY=VALUE`.

    Raises:
        ConfigError: an option is missing, or the training cannot be carried out.
    """
    if pool is None or tasks is None or minutes is None:
        raise ConfigError("name the settings with --config, or --pool, --tasks and --minutes")
    require_packages()
    from batuta.train.auto_settings import TrainingFacts, choose_settings  # noqa: PLC0415 - torch
    from batuta.train.auto_training import require_time, train_within  # noqa: PLC0415 - torch
    from batuta.train.held_back import split_source  # noqa: PLC0415 - after the check
    from batuta.train.training_supervisor import StageClock  # noqa: PLC0415 - loads torch

    if (out / "tuned").exists() or (out / "metrics.jsonl").exists():
        raise ConfigError(f"{out} holds a training already: name another folder with --out")
    split = split_source(tasks, out, seed)
    facts = TrainingFacts(
        questions=split.questions,
        minutes=minutes,
        cores=os.process_cpu_count() if sys.version_info >= (3, 13) else os.cpu_count() or 1,
        source=split.source,
        pool=pool,
        output=out,
        seed=seed,
    )
    settings, rows = choose_settings(facts)
    settings = override_settings(settings, changes, "--set")
    clock = StageClock(minutes, began, monotonic)
    plan = require_time(settings, split, clock)
    console = open_console(stderr=True)
    _print_choice(console, rows, changes)
    console.print(
        f"fitting takes {plan.step_seconds:.2f} s a step here with {plan.network.layers} layers of "
        f"{plan.network.hidden}; it is measured again when the search has ended",
        markup=False,
        highlight=False,
    )
    _print_spending(console, settings, split)
    report = train_within(
        settings,
        split,
        clock,
        command=sys.argv,
        on_progress=lambda said: console.print(said, markup=False, highlight=False),
    )
    _print_report(console, report, held=len(split.held_back))
    typer.echo(report.folder)


def _print_choice(console: Console, rows: Sequence[ChosenSetting], changes: Sequence[str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("chosen", "", "why"):
        table.add_column(name)
    for row in rows:
        table.add_row(row.name, row.value, row.why)
    for change in changes:
        table.add_row("--set", change, "as you say")
    console.print(table)


def _print_spending(console: Console, settings: TrainSettings, split: SplitQuestions) -> None:
    """What it may cost, before anybody is called."""
    from batuta.train.auto_settings import SEARCH_CALLS  # noqa: PLC0415 - after the check
    from batuta.train.conductor_training import load_pool  # noqa: PLC0415 - loads torch
    from batuta.train.cost_estimate import estimate_cost  # noqa: PLC0415 - after the check
    from batuta.train.episodes import make_episodes  # noqa: PLC0415 - same

    pool = anyio.run(load_pool, settings)
    episodes = make_episodes(split.held_back, pool, settings.pool, settings.seed)
    cost, r = estimate_cost(settings, episodes, ()), settings.rejection
    times = 1 + Decimal(r.rounds * r.questions * r.group) / max(1, cost.workflows)
    times += Decimal(SEARCH_CALLS) / max(1, cost.calls)
    unpriced = [str(worker.id) for worker in pool if worker.price is None]
    besides = (
        f", without the calls of {', '.join(unpriced)}, whose price is unknown" if unpriced else ""
    )
    console.print(
        f"at most about {round(cost.calls * times):,} calls of workers and "
        f"${cost.usd * times:,.2f} at list prices{besides}, if the time suffices for all of them; "
        f"{len(split.held_back)} questions are kept back",
        markup=False,
        highlight=False,
    )


def _print_report(console: Console, report: AutoReport, *, held: int) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("policy", f"right of {held} held back", "steps a workflow", ""):
        table.add_column(name, justify="left" if name in {"policy", ""} else "right")
    for one in report.judgements:
        kept = "kept" if one is report.best else ""
        table.add_row(one.stage, f"{one.right:.1%}", f"{one.steps:.2f}", kept)
    console.print(table)
    for trouble, done in report.troubles:
        said = f"step {trouble.step}: {trouble.kind}: {trouble.seen}; {done}"
        console.print(said, markup=False, style="yellow")
    console.print(
        f"{report.seconds / 60:.1f} minutes, {report.workflows:,} workflows, "
        f"{report.calls:,} calls of workers, ${report.usd:,.2f}",
        markup=False,
        highlight=False,
    )
