"""Curves of a training, or of several seeds of one, as PNG files.

A thin line shows the value of each step and a thick one its running mean. With several runs the
thick line is the mean of their running means, within a band from the lowest to the highest.
"""

# matplotlib's own stubs leave keyword arguments untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from batuta.errors import ConfigError
from batuta.lab.evals.charts import LINE_COLOURS, draw_legend
from batuta.lab.evals.plots import Axes, make_panels, save_figure, style_axes
from batuta.lab.train.run_folder import METRICS_FILE, read_jsonl

SMOOTHING_SHARE = 0.04
"""Share of a run over which the running mean is taken."""


@dataclass(frozen=True, slots=True)
class Panel:
    """The labels and curves of one figure."""

    title: str
    unit: str
    curves: Mapping[str, str]
    """The label of each curve by the key of its metric; a curve without data is left out."""
    _: KW_ONLY
    share: bool = False
    """True if the axis shows at least 0 to 1."""


_STEPS = {"steps": "all", "steps_easy": "easy questions", "steps_hard": "hard questions"}
_ROUNDS = {"second/right": "right in the end", "second/stands": "first answer accepted"}
_SECONDS = {"step_time": "whole", "time/sampling": "sampling", "time/playing": "running"}
_REWARD = {"reward": "reward", "right": "right"}
_SPREAD = {"no_spread": "all completions earn the same"}
PANELS = {
    "reward": Panel("Reward", "mean of a step", _REWARD, share=True),
    "valid": Panel("Validity", "share of drafts", {"valid": "well-formed"}, share=True),
    "steps": Panel("Steps of a workflow", "steps", _STEPS),
    "entropy": Panel("Entropy of the policy", "nats a token", {"entropy": "entropy"}),
    "spread": Panel("Groups without spread", "share of groups", _SPREAD, share=True),
    "tokens": Panel("Tokens of a workflow", "tokens", {"worker_tokens": "of its workers"}),
    "rounds": Panel("Second rounds", "share", _ROUNDS, share=True),
    "seconds": Panel("Time of a step", "seconds", _SECONDS),
}
"""The figures by the names of their files."""

Point = tuple[float, float]
"""A step and a value."""


def draw_curves(folders: Sequence[Path], out: Path) -> tuple[Path, ...]:
    """Draw the figures for which the runs have data into the folder `out`, and return the files.

    Several run folders count as seeds of one training.

    Raises:
        ConfigError: a folder has no metrics.
        StoreError: metrics cannot be read, or a figure cannot be written.
    """
    runs = [_read_metrics(folder) for folder in folders]
    return tuple(
        _save_panel(panel, runs, out / f"{name}.png")
        for name, panel in PANELS.items()
        if any(key in line for key in panel.curves for run in runs for line in run)
    )


def _read_metrics(folder: Path) -> list[dict[str, Any]]:
    lines = read_jsonl(folder / METRICS_FILE)
    if not lines:
        raise ConfigError(f"{folder} has no {METRICS_FILE} with a step in it; train there first")
    return lines


def _save_panel(panel: Panel, runs: Sequence[Sequence[Mapping[str, Any]]], path: Path) -> Path:
    figure, (axes,) = make_panels(1, 1, (8.0, 4.4))
    for number, (key, name) in enumerate(panel.curves.items()):
        series = [points for run in runs if (points := metric_points(run, key))]
        if series:
            # curves that coincide stay visible
            width = 1.9 + 1.3 * (len(panel.curves) - 1 - number)
            _draw_curve(axes, series, name=name, colour=LINE_COLOURS[number], width=width)
    suffix = f", {len(runs)} runs: mean, lowest to highest" if len(runs) > 1 else ""
    axes.set_title(f"{panel.title}{suffix}", loc="left", fontsize=11)
    axes.set_xlabel("step")
    axes.set_ylabel(panel.unit)
    low, high = axes.get_ylim()
    axes.set_ylim((min(low, -0.02), max(high, 1.02)) if panel.share else (min(low, 0.0), high))
    axes.locator_params(axis="x", integer=True)
    style_axes(axes)
    if len(panel.curves) > 1:
        draw_legend(axes)
    save_figure(figure, path)
    return path


def _draw_curve(
    axes: Axes, series: Sequence[Sequence[Point]], name: str, colour: str, *, width: float
) -> None:
    means = [running_mean(points) for points in series]
    if len(series) == 1:
        axes.plot(*zip(*series[0], strict=True), color=colour, linewidth=0.8, alpha=0.35)
        axes.plot(*zip(*means[0], strict=True), color=colour, linewidth=width, label=name)
        return
    steps, lowest, middle, highest = zip(*spread_band(means), strict=True)
    axes.fill_between(steps, lowest, highest, color=colour, alpha=0.18, linewidth=0)
    axes.plot(steps, middle, color=colour, linewidth=width, label=name)


def metric_points(lines: Sequence[Mapping[str, Any]], key: str) -> list[Point]:
    """Return the steps at which a metric was measured, with its values."""
    return [(float(line["step"]), float(line[key])) for line in lines if line.get(key) is not None]


def running_mean(points: Sequence[Point]) -> list[Point]:
    """Return each step with the mean of its value and the values shortly before.

    The mean is over `SMOOTHING_SHARE` of the points, and over fewer points at the beginning.
    """
    back = max(1, round(len(points) * SMOOTHING_SHARE))
    return [
        (step, fmean(value for _, value in points[max(0, at - back + 1) : at + 1]))
        for at, (step, _) in enumerate(points)
    ]


def spread_band(runs: Sequence[Sequence[Point]]) -> list[tuple[float, float, float, float]]:
    """Return each step with the lowest, mean and highest value of the runs.

    The steps end with the shortest run.
    """
    known = [dict(points) for points in runs]
    end = min(max(points) for points in known)
    steps = sorted({step for points in known for step in points if step <= end})
    measured = [(step, [points[step] for points in known if step in points]) for step in steps]
    return [(step, min(values), fmean(values), max(values)) for step, values in measured]
