"""The view of a training on a terminal, while it runs and afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from batuta.core.formatting import format_short
from batuta.errors import ConfigError
from batuta.lab.train.run_folder import (
    METRICS_FILE,
    SAMPLES_FILE,
    SETTINGS_FILE,
    STOPPED_FILE,
    read_jsonl,
)
from batuta.rendering.console import new_table

REFRESH_SECONDS = 1.0
"""Seconds between two reads of the folder."""
STALL_SECONDS = 120.0
"""A run counts as stopped after these seconds and the time of three steps without new metrics."""
RECENT_STEPS = 10
"""Number of last steps whose times are averaged, or whose longest time is taken."""
BAR_CHARACTERS = "▁▂▃▄▅▆▇█"
WIDTH = 48
"""Maximum characters of a curve."""
MAX_ANSWER_CHARACTERS = 80
"""Maximum characters of an answer that are shown."""
CURVES = (
    ("reward", "reward"),
    ("right", "right"),
    ("valid", "valid"),
    ("steps", "steps a workflow"),
    ("steps_easy", "on easy questions"),
    ("steps_hard", "on hard questions"),
    ("worker_tokens", "worker tokens"),
    ("entropy", "entropy, nats a token"),
    ("no_spread", "groups without spread"),
    ("outages", "left out for outages"),
    ("limited", "ended by a limit"),
    ("skipped", "skipped steps"),
    ("second/right", "second rounds: right"),
    ("second/stands", "second rounds: accepted"),
)
"""Each figure that is shown, and its label."""
SHOWN_IF_NONZERO = ("outages", "limited", "skipped")
"""Figures that are shown only if one of their values is not 0."""


class TrainingState(StrEnum):
    """The state of the run in a folder, as it is shown."""

    EMPTY = "nothing has been trained here yet"
    WARM = "an SFT warm-up is here; training has not begun"
    RUNNING = "running"
    STOPPED = "stopped; --resume continues it"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """The contents of a run folder at one moment."""

    folder: Path
    state: TrainingState
    lines: tuple[Mapping[str, Any], ...]
    """The metrics of each step."""
    samples: tuple[Mapping[str, Any], ...]
    """The workflows of the step that was sampled last."""
    steps: int | None
    """Number of steps of the whole training; None if unknown."""


def read_view(folder: Path, now: float) -> TrainingView:
    """Read the run folder; `now` is the time in seconds since the epoch.

    Raises:
        ConfigError: there is no such folder.
        StoreError: a file cannot be read.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"there is no run folder {folder}; a training makes it with --out {folder}"
        )
    lines = tuple(read_jsonl(folder / METRICS_FILE))
    samples = read_jsonl(folder / SAMPLES_FILE)
    latest = tuple(each for each in samples if each["step"] == samples[-1]["step"])
    steps = _planned_steps(folder)
    return TrainingView(
        folder=folder,
        state=_find_state(folder, lines, steps, now),
        lines=lines,
        samples=latest,
        steps=steps,
    )


def _planned_steps(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / SETTINGS_FILE).read_text("utf-8"))["optimiser"]["steps"])
    except (OSError, ValueError, KeyError):
        return None


def _find_state(
    folder: Path, lines: Sequence[Mapping[str, Any]], steps: int | None, now: float
) -> TrainingState:
    if not lines:
        begun = (folder / SETTINGS_FILE).is_file()
        if begun and now - (folder / SETTINGS_FILE).stat().st_mtime < STALL_SECONDS:
            return TrainingState.RUNNING
        return TrainingState.WARM if (folder / "warmup").is_dir() else TrainingState.EMPTY
    if steps is not None and lines[-1]["step"] >= steps and (folder / "policy").is_dir():
        return TrainingState.FINISHED
    if (folder / STOPPED_FILE).exists():
        return TrainingState.STOPPED
    quiet = now - (folder / METRICS_FILE).stat().st_mtime
    usual = max(float(line.get("step_time") or 0.0) for line in lines[-RECENT_STEPS:])
    return TrainingState.RUNNING if quiet < STALL_SECONDS + 3 * usual else TrainingState.STOPPED


def render_view(view: TrainingView) -> RenderableType:
    """Return the view as text for rich, with a table of figures once a step has ended."""
    done = view.lines[-1]["step"] if view.lines else 0
    total = "" if view.steps is None else f" of {view.steps}"
    progress = f"step {done}{total} · " if view.lines else ""
    head = Text.assemble((str(view.folder), "bold"), f" · {progress}{view.state}")
    if not view.lines:
        return head
    return Group(
        head, _curve_table(view.lines), Text(describe_time(view.lines), "dim"), *_sample_texts(view)
    )


def _curve_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table(padding=(0, 1))
    table.add_column("")
    for name in ("first", "last", "lowest", "highest"):
        table.add_column(name, justify="right")
    table.add_column("over the steps", no_wrap=True)
    for key, name in CURVES:
        values: list[float | None] = [line.get(key) for line in lines]
        known = [value for value in values if value is not None]
        if known and (key not in SHOWN_IF_NONZERO or any(known)):
            shown = (known[0], known[-1], min(known), max(known))
            table.add_row(name, *map(format_short, shown), draw_sparkline(values))
    return table


def draw_sparkline(values: Sequence[float | None]) -> str:
    """Draw the values as bars, scaled from the lowest to the highest, with a gap for each None.

    At least one value must be known. More values than `WIDTH` are averaged in groups.
    """
    columns = min(WIDTH, len(values))
    edges = [round(at * len(values) / columns) for at in range(columns + 1)]
    means = [_known_mean(values[start:end]) for start, end in pairwise(edges)]
    known = [each for each in means if each is not None]
    low, spread = min(known), max(known) - min(known)
    top = len(BAR_CHARACTERS) - 1

    def bar(mean: float | None) -> str:
        if mean is None:
            return " "
        return BAR_CHARACTERS[round((mean - low) / spread * top) if spread else 0]

    return "".join(map(bar, means))


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def describe_time(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean time of the last steps, and its shares: sampling, running and updating."""
    recent = [line for line in lines[-RECENT_STEPS:] if line.get("step_time")]
    if not recent:
        return "no step was timed"
    whole = sum(float(line["step_time"]) for line in recent)
    named = {"sampling": "time/sampling", "running": "time/playing"}
    parts = {
        name: sum(float(line[key]) for line in recent)
        for name, key in named.items()
        if all(key in line for line in recent)
    }
    rest = "updating" if len(parts) == len(named) else "the rest"
    parts[rest] = max(0.0, whole - sum(parts.values()))
    shares = ", ".join(f"{name} {part / whole:.0%}" for name, part in parts.items())
    return f"{whole / len(recent):.2f} s a step: {shares}"


def _sample_texts(view: TrainingView) -> list[RenderableType]:
    if not view.samples:
        return []
    parts: list[RenderableType] = [Text(f"\nsampled at step {view.samples[0]['step']}", "bold")]
    for each in view.samples:
        verdict = {None: "not judged", 0.0: "wrong", 1.0: "right"}.get(each["score"], each["score"])
        paid = "left out" if each["reward"] is None else f"reward {each['reward']:.2f}"
        parts.append(Text(each["question"], "italic"))
        parts.append(Text(each["draft"].strip()))
        about = f"→ {_last_line(each['answer'])} ({verdict}; wanted {each['target']}; {paid})"
        parts.append(Text(f"{about}\n", "dim"))
    return parts


def _last_line(answer: str | None) -> str:
    lines = (answer or "").strip().splitlines() or ["no answer"]
    return lines[-1][-MAX_ANSWER_CHARACTERS:]


def watch_training(folder: Path, console: Console, *, once: bool = False) -> None:
    """Show the run, and update the view every second until the training has finished.

    The view of a stopped run is updated too, as it may be resumed. With `once`, or if the console
    is not a terminal, it is shown once.

    Raises:
        ConfigError: there is no such folder.
        StoreError: a file cannot be read.
    """
    view = read_view(folder, time.time())
    if once or not console.is_terminal:
        console.print(render_view(view))
        return
    with Live(render_view(view), console=console, auto_refresh=False) as live:
        while view.state is not TrainingState.FINISHED:
            time.sleep(REFRESH_SECONDS)
            view = read_view(folder, time.time())
            live.update(render_view(view), refresh=True)
