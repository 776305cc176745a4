"""What `batuta tune` writes on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from batuta.config.loaded import LoadedConfig
from batuta.config.presets import PATTERN_PREFIX
from batuta.rendering.console import open_console

if TYPE_CHECKING:
    from batuta.lab.tune.opening import TuneQuestions


def show_forecast(loaded: LoadedConfig, questions: TuneQuestions, forecast: dict[str, Any]) -> None:
    """Write what the tuning would do."""
    console = open_console(highlight=False)
    many, parts = len(questions.tasks), forecast["questions"]
    console.print(
        f"{loaded.source}: {len(loaded.pool)} workers; {questions.name}: {many} questions"
    )
    shares = ", ".join(f"{count} {name}" for name, count in parts.items())
    console.print(f"parts: {shares}")
    how = "by their tags" if forecast["labelled"] else "by their words"
    console.print(f"up to {forecast['groups']} groups, {how}; nobody was called")
    for stage, most in forecast["stages_at_most"].items():
        calls = "as time allows" if most["calls"] is None else f"up to {most['calls']:,} calls"
        usd = "" if most["usd"] is None else f", about ${most['usd']:.4f}"
        console.print(f"  {stage:10} {calls}{usd}")
    if (most := forecast["mean_calls"]) is not None:
        console.print(f"the nominee for ultra may ask {most:g} calls of a question on average")
    worst = max(forecast["call_at_most_usd"].values(), default=0.0)
    console.print(
        f"the dearest single call may cost ${worst:.4f}; it is reserved before it is made"
    )
    if forecast["unpriced"]:
        console.print(f"without a price, counted as dear: {', '.join(forecast['unpriced'])}")


def show_result(found: dict[str, Any], out: Path, *, simulated: bool) -> None:
    """Write what came of it."""
    console = open_console(highlight=False, soft_wrap=True)
    for line in found["recommendation"]["why"]:
        console.print(line)
    for line in found["confidence"]:
        console.print(f"how sure: {line}")
    spent = found["spent"]
    console.print(f"spent: {spent['calls']:,} calls, ${spent['usd']:.4f}")
    console.print(f"report: {out / 'report.html'}")
    if simulated:
        ultra = found["recommendation"]["ultra"] or ""
        pattern = ultra.removeprefix(PATTERN_PREFIX) if ultra.startswith(PATTERN_PREFIX) else ""
        conductor = pattern or out / "selector"
        console.print(f"try it: batuta ask --pool rehearsal --conductor {conductor} QUESTION")
    else:
        console.print(f"use it: batuta serve --pool {out / 'batuta.toml'}")
