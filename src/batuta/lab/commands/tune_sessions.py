"""`batuta tune --from-sessions`: compare patterns and choose the margin from stored sessions."""

from __future__ import annotations

from typing import Any

import anyio
from rich.table import Table

from batuta.cli.json_output import print_json
from batuta.conductors.sessions.state import DEFAULT_RULES
from batuta.errors import ConfigError
from batuta.lab.commands.tune_options import TuneOptions
from batuta.lab.evals.session_replay import replay_sessions
from batuta.rendering.console import open_console


def tune_sessions(options: TuneOptions) -> None:
    """Print a comparison of patterns, and which pattern and margin to choose.

    Raises:
        ConfigError: --tasks or --from-runs is given too, the store does not exist, or it has no
            sessions.
        StoreError: the store cannot be read.
    """
    questions = options.questions
    if questions.tasks is not None or questions.from_runs is not None:
        raise ConfigError("--from-sessions asks no questions: leave out --tasks and --from-runs")
    found = anyio.run(_replay_store, options)
    if options.output.json:
        print_json(found)
        return
    _print_table(found)


async def _replay_store(options: TuneOptions) -> dict[str, Any]:
    worth = options.goals.worth or float(DEFAULT_RULES.worth_usd)
    return await replay_sessions(
        options.questions.from_sessions or "",
        worth=worth,
        margin=float(DEFAULT_RULES.margin_usd),
        seed=options.questions.seed,
    )


def _print_table(found: dict[str, Any]) -> None:
    table = Table(box=None)
    for name in ("model", "sessions", "scored", "resolved", "95 %", "$ a session", "95 %"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for row in found["patterns"]:
        figures = ["–"] * 4
        if row["known"]:
            (low, high), (least, most) = row["resolved_interval"], row["usd_interval"]
            shares = [f"{row['resolved']:.0%}", f"{low:.0%} to {high:.0%}"]
            figures = [*shares, f"{row['usd']:.4f}", f"{least:.4f} to {most:.4f}"]
        table.add_row(row["model"], str(row["sessions"]), str(row["known"]), *figures)
    console = open_console()
    console.print(table)
    if found["of_several_models"]:
        omitted = found["of_several_models"]
        console.print(f"sessions of several models or only of helper requests, left out: {omitted}")
    for name, choice in (("pattern", found["choice"]), ("margin", found["margin"])):
        console.print(f"{name}: {_describe_choice(choice)}")


def _describe_choice(choice: dict[str, Any]) -> str:
    if "why" in choice:
        return choice["why"]
    if "pattern" in choice:
        advice = f"set {choice['pattern']} as the client's model"
    else:
        advice = f"set margin_usd = {choice['margin_usd']:g} in [sessions]"
    return f"{advice} (probability {choice['probability']:.0%})"
