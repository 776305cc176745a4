"""Figures of an evaluation as PNG and SVG files; needs matplotlib.

The figures show accuracy (`accuracy`), accuracy over cost (`front`) and by difficulty
(`difficulty`), curves of quality over cost (`curves`), the gap that routers recover (`gap`), the
depth of workflows (`depth`), and calls by worker (`team`), also by family and kind of subtask
(`calls`).
"""

# matplotlib's own stubs leave keyword arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from batuta.distribution import install_hint
from batuta.errors import ConfigError, report_unwritable
from batuta.lab.evals import charts
from batuta.lab.evals.evaluation import Evaluation
from batuta.lab.evals.html_report import GREY, GRID, INK
from batuta.lab.evals.markdown_report import report_title
from batuta.lab.evals.report import Json, build_report
from batuta.lab.evals.result_log import TrialResult
from batuta.lab.evals.systems import RECURSIVE, ULTRA

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError:
    raise ConfigError(f"figures need matplotlib: {install_hint('plots')}") from None

MAX_PANELS = 2
"""Maximum number of systems whose workflows are drawn."""
DPI = 150
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "batuta",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}
RunsBySystem = Mapping[str, tuple[TrialResult, ...]]


def draw_figures(evaluation: Evaluation, folder: Path) -> tuple[Path, ...]:
    """Draw the figures for which there are data, each as PNG and SVG, and return the files.

    Raises:
        StoreError: a file cannot be written.
    """
    paths: list[Path] = []
    with rc_context(cast("Any", STYLE)):
        for name, figure in _make_figures(evaluation).items():
            for form, clear in (("png", False), ("svg", True)):
                paths.append(folder / f"{name}.{form}")
                save_figure(figure, paths[-1], clear=clear)
    return tuple(paths)


def save_figure(figure: Figure, path: Path, *, clear: bool = False) -> None:
    """Write the figure in the format of the file's suffix; `clear` omits the background.

    Raises:
        StoreError: the file cannot be written.
    """
    with report_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=DPI, transparent=clear, metadata=metadata)


def _make_figures(evaluation: Evaluation) -> dict[str, Figure]:
    found = build_report(evaluation)
    if not charts.rank_systems(found):
        return {}
    several = any(len(figures["by_difficulty"]) > 1 for figures in found["systems"].values())
    figures: dict[str, Figure] = {}
    for name, (headline, draw, height) in _choose_charts(found, several=several).items():
        figures[name], axes = _titled_figure(found, headline, (8.6, height))
        draw(axes, found)
    planning = _planning_runs(evaluation)
    if planning:
        figures["calls"] = _call_figure(planning, found["pool"])
    if planning and several:
        figures["depth"] = _depth_figure(planning)
    return figures


def _choose_charts(
    found: Json, *, several: bool
) -> dict[str, tuple[str, Callable[[Axes, Json], None], float]]:
    """Return the title, drawing function and height in inches of each chart with data."""
    charted: dict[str, tuple[str, Callable[[Axes, Json], None], float]] = {
        "accuracy": (
            "Accuracy",
            charts.draw_accuracy,
            1.5 + 0.27 * len(found["systems"]),
        ),
        "front": ("Accuracy over cost", charts.draw_pareto_front, 5.6),
    }
    if found["cost_quality"] is not None:
        charted["curves"] = ("Quality over cost, by method", charts.draw_cost_curves, 5.0)
    if found["recovered_gap"]["systems"]:
        headline = "The gap between a weak and a strong worker"
        charted["gap"] = (headline, charts.draw_recovered_gap, 5.0)
    if several:
        charted["difficulty"] = ("Accuracy by difficulty", charts.draw_difficulty, 5.0)
    if any(n not in found["references"] and n not in found["pool"] for n in found["systems"]):
        headline, height = "Calls by worker, % of each system's", 2.2 + 0.3 * len(found["pool"])
        charted["team"] = (headline, charts.draw_worker_shares, height)
    return charted


def _planning_runs(evaluation: Evaluation) -> RunsBySystem:
    """Return the runs of the systems whose workflows are drawn.

    These are `ultra` and `ultra+recursion`, or else the first two systems with a conductor.
    """
    names = [s.name for s in evaluation.systems if s.has_conductor and evaluation.results[s.name]]
    wanted = [name for name in (ULTRA, RECURSIVE) if name in names] or names[:MAX_PANELS]
    return {name: evaluation.results[name] for name in wanted}


def _call_figure(planning: RunsBySystem, workers: list[str]) -> Figure:
    figure, panels = make_panels(len(planning), 2, (4.8, 1.6 + 0.36 * len(workers)))
    for number, (name, runs) in enumerate(planning.items()):
        left, right = panels[2 * number : 2 * number + 2]
        charts.draw_heatmap(left, charts.count_by_family(runs), workers)
        left.set_title(f"{name}: by family", fontsize=10)
        charts.draw_heatmap(right, charts.count_by_kind(runs), workers)
        right.set_title(f"{name}: by kind of subtask", fontsize=10)
    _set_headline(figure, "Calls by worker, % of each column's")
    return figure


def _depth_figure(planning: RunsBySystem) -> Figure:
    figure, panels = make_panels(1, len(planning), (5.4, 4.2))
    for axes, (name, runs) in zip(panels, planning.items(), strict=True):
        charts.draw_depth(axes, name, runs)
        style_axes(axes)
    charts.draw_legend(panels[-1])
    _set_headline(figure, "Depth of the workflows")
    return figure


def _titled_figure(found: Json, headline: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """Return a figure with a title and, below it, the questions and whether workers are models."""
    figure, (axes,) = make_panels(1, 1, size)
    kind = "simulated workers" if found["simulated"] else "recorded answers"
    no_models = found["simulated"] or found["recorded"]
    title = charts.escape_dollars(report_title(found))
    about = f"{title}, {kind}" if no_models else title
    axes.set_title(headline, fontsize=12, loc="left", pad=22)
    axes.annotate(
        about, (0, 1), (0, 7), xycoords="axes fraction", textcoords="offset points", fontsize=8.5,
        color=GREY,
    )  # fmt: skip
    style_axes(axes)
    return figure, axes


def _set_headline(figure: Figure, headline: str) -> None:
    figure.suptitle(headline, fontsize=12, x=0.02, ha="left")


def make_panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, row by row; `size` is that of a panel, in inches."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, n + 1) for n in range(rows * columns)]


def style_axes(axes: Axes) -> None:
    """Remove the upper and the right border, and put the grid behind the curves."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
