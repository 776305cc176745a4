"""Figures of an evaluation, as PNG and SVG files. The only module that needs matplotlib.

How often the systems are right (`accuracy`), what that costs (`front`), right answers by
difficulty (`difficulty`), how deep the workflows are (`depth`), whom the systems call (`team`), and
for what (`calls`).
"""

# matplotlib's own stubs leave keyword arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from batuta.errors import ConfigError, StoreError
from batuta.evals import charts
from batuta.evals.charts import GREY, GRID, INK
from batuta.evals.evaluate import Evaluation
from batuta.evals.ledger import Result
from batuta.evals.markdown import title
from batuta.evals.report import Json, report
from batuta.evals.systems import RECURSIVE, ULTRA

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError:
    raise ConfigError("figures need matplotlib: pip install 'batuta[plots]'") from None

PANELS = 2
"""Systems whose workflows are drawn, at most."""
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
Runs = Mapping[str, tuple[Result, ...]]
"""By the system's name."""


def draw(evaluation: Evaluation, folder: Path) -> tuple[Path, ...]:
    """Write the figures that the evaluation has data for, each as PNG and as SVG; the files.

    Raises:
        StoreError: the folder cannot be written.
    """
    paths: list[Path] = []
    with rc_context(cast("Any", STYLE)):
        for name, figure in _figures(evaluation).items():
            for form, clear in (("png", False), ("svg", True)):
                paths.append(folder / f"{name}.{form}")
                _save(figure, paths[-1], clear=clear)
    return tuple(paths)


def _save(figure: Figure, path: Path, *, clear: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=DPI, transparent=clear, metadata=metadata)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None


def _figures(evaluation: Evaluation) -> dict[str, Figure]:
    found = report(evaluation)
    if not charts.ranked(found):
        return {}
    several = any(len(figures["by_difficulty"]) > 1 for figures in found["systems"].values())
    figures = {"accuracy": _accuracy(found), "front": _front(found)}
    if several:
        figures["difficulty"] = _difficulty(found)
    if any(n not in found["references"] and n not in found["pool"] for n in found["systems"]):
        figures["team"] = _team(found)
    planning = _planning(evaluation)
    if planning:
        figures["calls"] = _calls(planning, found["pool"])
    if planning and several:
        figures["depth"] = _depth(planning)
    return figures


def _planning(evaluation: Evaluation) -> Runs:
    """The systems whose workflows are worth a look, with their results; `ultra` if it is there."""
    names = [s.name for s in evaluation.systems if s.plans and evaluation.results[s.name]]
    wanted = [name for name in (ULTRA, RECURSIVE) if name in names] or names[:PANELS]
    return {name: evaluation.results[name] for name in wanted}


def _accuracy(found: Json) -> Figure:
    rows = len(found["systems"])
    figure, axes = _figure(found, "How often the answer is right", (8.6, 1.5 + 0.27 * rows))
    charts.accuracy(axes, found)
    return figure


def _front(found: Json) -> Figure:
    figure, axes = _figure(found, "What it costs to be right", (8.6, 5.6))
    charts.front(axes, found)
    return figure


def _difficulty(found: Json) -> Figure:
    figure, axes = _figure(found, "Right answers by difficulty", (8.6, 5.0))
    charts.difficulty(axes, found)
    return figure


def _team(found: Json) -> Figure:
    size = (8.6, 2.2 + 0.3 * len(found["pool"]))
    figure, axes = _figure(found, "Whom each system calls, % of its calls", size)
    charts.team(axes, found)
    return figure


def _calls(planning: Runs, workers: list[str]) -> Figure:
    figure, panels = _panels(len(planning), 2, (4.8, 1.6 + 0.36 * len(workers)))
    for number, (name, runs) in enumerate(planning.items()):
        left, right = panels[2 * number : 2 * number + 2]
        charts.heat(left, charts.by_family(runs), workers)
        left.set_title(f"{name}: by family", fontsize=10)
        charts.heat(right, charts.by_kind(runs), workers)
        right.set_title(f"{name}: by kind of subtask", fontsize=10)
    _headline(figure, "Who is called for what, % of the column's calls")
    return figure


def _depth(planning: Runs) -> Figure:
    figure, panels = _panels(1, len(planning), (5.4, 4.2))
    for axes, (name, runs) in zip(panels, planning.items(), strict=True):
        charts.depth(axes, name, runs)
        _plain(axes)
    charts.legend(panels[-1])
    _headline(figure, "Depth of the workflows")
    return figure


def _figure(found: Json, said: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure that says what was asked, and what workers are if they are no models."""
    figure, (axes,) = _panels(1, 1, size)
    kind = "simulated workers" if found["simulated"] else "recorded answers"
    no_models = found["simulated"] or found["recorded"]
    about = f"{title(found)}, {kind}" if no_models else title(found)
    axes.set_title(said, fontsize=12, loc="left", pad=22)
    axes.annotate(
        about, (0, 1), (0, 7), xycoords="axes fraction", textcoords="offset points", fontsize=8.5,
        color=GREY,
    )  # fmt: skip
    _plain(axes)
    return figure, axes


def _headline(figure: Figure, said: str) -> None:
    figure.suptitle(said, fontsize=12, x=0.02, ha="left")


def _panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Panels of that size each, in inches, row by row."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, n + 1) for n in range(rows * columns)]


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
