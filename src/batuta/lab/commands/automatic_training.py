"""`batuta train conductor --minutes`: choose the settings, print them with reasons, and train."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import anyio
from rich.console import Console

from batuta.cli.options import hide_passwords
from batuta.errors import ConfigError
from batuta.lab.commands.train_settings import (
    check_questions,
    override_settings,
    require_one_process,
    require_packages,
)
from batuta.rendering.console import new_table, open_console
from batuta.rendering.terminal import write_output

if TYPE_CHECKING:
    from batuta.core import Task
    from batuta.lab.train.auto_training import Choice
    from batuta.lab.train.settings import TrainSettings
    from batuta.lab.train.supervision import AutoReport

CHOOSING_PANEL = "Automatic settings"
"""The panel of the options that replace a settings file."""


def train_automatically(
    pool: str | None,
    tasks: str | None,
    minutes: float | None,
    *,
    began: float,
    out: Path,
    seed: int,
    changes: Sequence[str],
    simulated_questions: bool = False,
) -> None:
    """Choose the settings, print the maximum cost, train, and print the results.

    Args:
        pool: the name of the pool to conduct; None if it was left out, which is refused.
        tasks: the name of the questions; None as for the pool.
        minutes: the time for everything, counted from `began`; None as for the pool.
        began: the start of the command, in seconds of the monotonic clock.
        out: the folder to write.
        seed: the seed of all randomness.
        changes: `KEY=VALUE` settings that override chosen ones.
        simulated_questions: whether real models may be asked a simulated world's questions.

    Raises:
        ConfigError: an option is missing, the folder already contains a training, or the training
            cannot be carried out.
        BatutaError: the questions cannot be used, workers do not answer, or a file cannot be
            written.
    """
    if pool is None or tasks is None or minutes is None:
        raise ConfigError("name the settings with --config, or --pool, --tasks and --minutes")
    require_one_process("a training with --minutes")
    check_questions(pool, [tasks], allowed=simulated_questions)
    require_packages()
    from batuta.lab.train.auto_training import (  # noqa: PLC0415 - loads torch
        choose_settings,
        count_held_out,
        require_time,
        train_within,
    )
    from batuta.lab.train.questions import draw_held_out  # noqa: PLC0415 - after the check
    from batuta.lab.train.supervision import StageClock  # noqa: PLC0415 - loads torch

    settings, rows = choose_settings(
        pool=pool,
        source=tasks,
        held=count_held_out(tasks),
        minutes=minutes,
        cores=(os.process_cpu_count() if sys.version_info >= (3, 13) else os.cpu_count()) or 1,
        output=out,
        seed=seed,
    )
    settings = _override_chosen(settings, changes)
    _require_start(settings)
    console = open_console(stderr=True)
    _print_choice(console, rows, changes)
    console.print("measuring how long a step takes on this machine")
    held_out, clock = draw_held_out(settings), StageClock(minutes, began, monotonic)
    plan = require_time(settings, held_out, clock)
    console.print(
        f"fitting takes {plan.step_seconds:.2f} s a step here with {plan.network.layers} layers of "
        f"{plan.network.hidden}; this is measured again after the search",
        highlight=False,
    )
    _print_spending(console, settings, held_out)
    report = train_within(
        settings,
        clock,
        command=hide_passwords(sys.argv),
        on_progress=lambda line: console.print(line, highlight=False),
    )
    _print_report(console, report, questions=len(held_out))
    write_output(f"{report.folder}\n")


def _require_start(settings: TrainSettings) -> None:
    """Check that the training can start, before anything is measured or spent.

    Raises:
        ConfigError: the folder already contains a training, or a setting cannot be carried out.
    """
    from batuta.lab.train.preflight import settings_problems  # noqa: PLC0415 - loads torch

    folder = settings.output
    if (folder / "tuned").exists() or (folder / "metrics.jsonl").exists():
        raise ConfigError(f"{folder} already contains a training: name another folder with --out")
    for problem in settings_problems(settings):
        raise ConfigError(problem)


def _override_chosen(settings: TrainSettings, changes: Sequence[str]) -> TrainSettings:
    """Return the settings with the changes.

    Raises:
        ConfigError: a change is invalid, or its setting can only be changed with a settings file.
    """
    changed = override_settings(settings, changes, "--set")
    for name in ("pool.max_usd", "pool.fewest", "rejection", "curriculum", "evaluation"):
        section, _, key = name.partition(".")
        before, after = getattr(settings, section), getattr(changed, section)
        if (getattr(before, key) != getattr(after, key)) if key else (before != after):
            raise ConfigError(
                f"{name} needs --config: without it the search, the stages and the held-out "
                "questions have their own limits"
            )
    return changed


def _print_choice(console: Console, rows: Sequence[Choice], changes: Sequence[str]) -> None:
    table = new_table("chosen", "", "why", padding=(0, 1))
    for row in rows:
        table.add_row(*row)
    for change in changes:
        table.add_row("--set", change, "as given")
    console.print(table)


def _print_spending(console: Console, settings: TrainSettings, held_out: Sequence[Task]) -> None:
    """Print the maximum cost of the training, before any worker is called."""
    from batuta.lab.train.bill import estimate_cost  # noqa: PLC0415 - after the check
    from batuta.lab.train.conductor_training import load_pool  # noqa: PLC0415 - loads torch
    from batuta.lab.train.episodes import make_episodes  # noqa: PLC0415 - same
    from batuta.lab.train.found_workflows import SEARCH_CALLS  # noqa: PLC0415 - same

    pool = anyio.run(load_pool, settings)
    episodes = make_episodes(held_out, pool, settings.pool, settings.seed)
    cost = estimate_cost(settings, episodes, ())
    times = 1 + Decimal(SEARCH_CALLS) / max(1, cost.calls)
    unpriced = [str(worker.id) for worker in pool if worker.price is None]
    omitted = (
        f", without the calls of {', '.join(unpriced)}, whose price is unknown" if unpriced else ""
    )
    console.print(
        f"at most about {round(cost.calls * times):,} calls of workers and "
        f"${cost.usd * times:,.2f} at list prices{omitted}, if there is time for all of them; "
        f"{len(held_out)} questions are held out",
        highlight=False,
    )


def _print_report(console: Console, report: AutoReport, *, questions: int) -> None:
    figures = (f"accuracy on {questions} held-out questions", "steps a workflow")
    table = new_table("policy", *figures, "", right=figures, padding=(0, 1))
    for one in report.judgements:
        kept = "kept" if one is report.best else ""
        right = "unknown" if one["right"] is None else f"{one['right']:.1%}"
        table.add_row(one["stage"], right, f"{one['steps']:.2f}", kept)
    console.print(table)
    dollars = "unpriced" if report.usd is None else f"${report.usd:,.2f}"
    console.print(
        f"{report.seconds / 60:.1f} minutes, {report.workflows:,} workflows, "
        f"{report.calls:,} calls of workers, {dollars}",
        highlight=False,
    )
