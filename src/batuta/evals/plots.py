"""Figures of an evaluation, as PNG files. The only module that needs matplotlib.

What it costs to be right (`front`), right answers by difficulty (`difficulty`), how deep the
workflows are by difficulty and family (`depth`), and who is called for what (`calls`).
"""

# matplotlib's own stubs leave keyword arguments untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from batuta.errors import ConfigError, StoreError
from batuta.evals.evaluate import Evaluation
from batuta.evals.ledger import Result
from batuta.evals.report import Json, report
from batuta.evals.stats import mean
from batuta.evals.systems import BEST_SINGLE, RECURSIVE, ULTRA, System

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.ticker import MaxNLocator
except ImportError:
    raise ConfigError("figures need matplotlib: pip install 'batuta[plots]'") from None

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, bottom, right, top, in pixels."""

INK, GREY, ACCENT = "#22272e", "#8b949e", "#c0392b"
LINES = ("#c0392b", "#1f6fb2", "#2e8b57", "#8e5bb5", "#d98e04", "#3aa6a6", "#7a5230", "#5c6670")
MOST_LINES = len(LINES)
"""Lines in one figure at most; more cannot be told apart."""
PANELS = 2
"""Systems whose workflows are drawn, at most."""
DPI = 150
_PLACES = (
    (7, 0),
    (7, 7),
    (7, -7),
    (-7, 7),
    (-7, -7),
    (-7, 0),
    (7, 14),
    (7, -14),
    (-7, 15),
    (-7, -15),
)
"""Where a label may stand beside its point, in points; the first free place is taken."""


def draw(evaluation: Evaluation, folder: Path) -> tuple[Path, ...]:
    """Write the figures that the evaluation has data for; the files.

    Raises:
        StoreError: the folder cannot be written.
    """
    found = report(evaluation)
    levels = {level for figures in found["systems"].values() for level in figures["by_difficulty"]}
    figures = {"front": front(found)}
    if len(levels) > 1:
        figures["difficulty"] = difficulty(found, evaluation.systems)
    planning = _planning(evaluation)
    if planning:
        figures["calls"] = calls(planning, [str(w.id) for w in evaluation.subject.pool])
    if planning and len(levels) > 1:
        figures["depth"] = depth(planning)
    paths: list[Path] = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        try:
            figure.savefig(path, dpi=DPI)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from None
        paths.append(path)
    return tuple(paths)


def _planning(evaluation: Evaluation) -> dict[str, tuple[Result, ...]]:
    """The systems whose workflows are worth a look, with their results; `ultra` if it is there."""
    names = [s.name for s in evaluation.systems if s.plans and evaluation.results[s.name]]
    wanted = [name for name in (ULTRA, RECURSIVE) if name in names] or names[:PANELS]
    return {name: evaluation.results[name] for name in wanted}


def front(found: Json) -> Figure:
    """Accuracy over what a question costs: dollars where they are known, else tokens."""
    systems: Json = {n: s for n, s in found["systems"].items() if s["accuracy"] is not None}
    priced = all(s["usd"] for s in systems.values())
    unit = "usd" if priced else "tokens"
    figure, axes = _figure(found, "What it costs to be right", (8.6, 5.6))
    points = {name: (float(s[unit]), 100 * float(s["accuracy"])) for name, s in systems.items()}
    for name, figures in systems.items():
        _point(axes, points[name], figures["ci95"], name, reference=name in found["references"])
    best = _pareto({n: p for n, p in points.items() if n not in found["references"]})
    axes.plot(*zip(*best, strict=True), color=GREY, linewidth=1, linestyle="--", zorder=1)
    axes.set_xscale("log")
    axes.set_xlabel("dollars a question" if priced else "tokens a question")
    axes.set_ylabel("right, %")
    axes.margins(x=0.12)
    _label(figure, axes, _merged(points))
    return figure


def _merged(points: Mapping[str, Point]) -> dict[str, Point]:
    """Points with the names of all that lie there."""
    names: dict[Point, list[str]] = defaultdict(list)
    for name, point in points.items():
        names[point].append(name)
    return {" = ".join(_ultra_first(same)): point for point, same in names.items()}


def _ultra_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: name != ULTRA)


def _point(axes: Axes, at: Point, ci95: Sequence[float], name: str, *, reference: bool) -> None:
    """A system with its interval; hollow for a reference line."""
    colour = ACCENT if name.startswith(ULTRA) else INK
    axes.vlines(at[0], 100 * ci95[0], 100 * ci95[1], color=colour, linewidth=0.8, alpha=0.45)
    fill = "white" if reference else colour
    axes.scatter(*at, s=26, facecolor=fill, edgecolor=colour, zorder=3)


def _pareto(points: Mapping[str, Point]) -> list[Point]:
    """The points that no cheaper point is as good as, cheapest first."""
    best: list[Point] = []
    for cost, right in sorted(points.values(), key=lambda point: (point[0], -point[1])):
        if not best or right > best[-1][1]:
            best.append((cost, right))
    return best


def _label(figure: Figure, axes: Axes, points: Mapping[str, Point]) -> None:
    """Names beside their points, where they cover no other name as far as that is possible."""
    figure.draw_without_rendering()
    dots = [axes.transData.transform(point) for point in points.values()]
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in dots]
    for name, point in sorted(points.items(), key=lambda item: -item[1][1]):
        tried: list[tuple[int, Annotation, Box]] = []
        for place in _PLACES:
            text = _annotated(axes, name, point, place)
            box = text.get_window_extent().extents
            corners = (float(box[0]), float(box[1]), float(box[2]), float(box[3]))
            tried.append((sum(_overlap(corners, other) for other in taken), text, corners))
            if not tried[-1][0]:
                break
        _, kept, corners = min(tried, key=lambda found: found[0])
        for _, text, _ in tried:
            if text is not kept:
                text.remove()
        taken.append(corners)


def _annotated(axes: Axes, name: str, point: Point, place: tuple[int, int]) -> Annotation:
    return axes.annotate(
        name,
        point,
        place,
        textcoords="offset points",
        fontsize=7.5,
        color=ACCENT if name.startswith(ULTRA) else INK,
        ha="left" if place[0] > 0 else "right",
        va="center",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6},
        zorder=4,
    )


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def difficulty(found: Json, systems: Sequence[System]) -> Figure:
    """Right answers by difficulty, a line a system; single workers' own lines are left out."""
    names = [s.name for s in systems if s.worker is None and found["systems"][s.name]["n"]]
    names = names or [s.name for s in systems if found["systems"][s.name]["n"]]
    ranked = sorted(names, key=lambda name: -found["systems"][name]["accuracy"])
    lines: dict[tuple[Point, ...], list[str]] = defaultdict(list)
    for name in ranked:
        lines[_by_difficulty(found, name)].append(name)
    merged = [(_ultra_first(same), series) for series, same in lines.items()]
    figure, axes = _figure(found, "Right answers by difficulty", (8.6, 5.0))
    others = iter(LINES[1:])
    for same, series in _chosen(merged):
        main = ULTRA in same
        axes.plot(*zip(*series, strict=True), "--" if same[0] in found["references"] else "-",
                  color=LINES[0] if main else next(others), linewidth=2.4 if main else 1.4,
                  marker="o", markersize=3.5, label=" = ".join(same))  # fmt: skip
    _legend(axes)
    axes.set_xlabel("difficulty")
    axes.set_ylabel("right, %")
    axes.set_ylim(-2, 102)
    return figure


def _by_difficulty(found: Json, name: str) -> tuple[Point, ...]:
    parts: Json = found["systems"][name]["by_difficulty"]
    return tuple(sorted((float(level), 100 * part["accuracy"]) for level, part in parts.items()))


Line = tuple[list[str], tuple[Point, ...]]
"""The systems that a line stands for, and its points."""


def _chosen(ranked: Sequence[Line]) -> list[Line]:
    """As many lines as can be told apart: `ultra`, the best single worker, some of all ranks."""
    wanted = [at for at, line in enumerate(ranked) if {ULTRA, BEST_SINGLE} & set(line[0])]
    rest = [at for at in range(len(ranked)) if at not in wanted]
    room = MOST_LINES - len(wanted) - (not any(ULTRA in ranked[at][0] for at in wanted))
    if len(rest) > room:
        rest = [rest[round(i * (len(rest) - 1) / (room - 1))] for i in range(room)]
    return [ranked[at] for at in sorted((*wanted, *rest))]


def depth(planning: Mapping[str, Sequence[Result]]) -> Figure:
    """Mean depth of the workflows by difficulty, a line a family, a panel a system."""
    figure, panels = _panels(1, len(planning), (5.4, 4.2))
    for axes, (name, runs) in zip(panels, planning.items(), strict=True):
        families = _families(runs)
        for number, (family, colour) in enumerate(zip(families, LINES, strict=False)):
            series = _mean_depth(run for run in runs if run.family == family)
            width = 1.4 + 1.3 * (len(families) - 1 - number)  # lines that coincide stay visible
            axes.plot(*zip(*series, strict=True), color=colour, linewidth=width, label=family)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("difficulty")
        axes.set_ylabel("steps one after another")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        _plain(axes)
    _legend(panels[-1])
    figure.suptitle("Depth of the workflows", fontsize=12, x=0.02, ha="left")
    return figure


def _mean_depth(runs: Iterable[Result]) -> list[Point]:
    depths: dict[float, list[int]] = defaultdict(list)
    for run in runs:
        if run.difficulty is not None:
            depths[run.difficulty].append(run.depth)
    return [(level, mean(found) or 0.0) for level, found in sorted(depths.items())]


def calls(planning: Mapping[str, Sequence[Result]], workers: Sequence[str]) -> Figure:
    """Who is called for what: the share of each family's and each kind's calls by worker."""
    figure, panels = _panels(len(planning), 2, (4.8, 1.6 + 0.36 * len(workers)))
    for number, (name, runs) in enumerate(planning.items()):
        pairs = [(run.family, step.worker) for run in runs for step in run.steps]
        kinds = [(step.kind, step.worker) for run in runs for step in run.steps]
        _heat(panels[2 * number], pairs, workers, f"{name}: by family")
        _heat(panels[2 * number + 1], kinds, workers, f"{name}: by kind of subtask")
    figure.suptitle(
        "Who is called for what, % of the column's calls", fontsize=12, x=0.02, ha="left"
    )
    return figure


def _heat(axes: Axes, pairs: Sequence[tuple[str, str]], workers: Sequence[str], title: str) -> None:
    """One map: a column for each first of a pair, a row for each worker."""
    counts, totals = Counter(pairs), Counter(column for column, _ in pairs)
    columns = sorted(totals, key=lambda column: -totals[column])
    shares = [[100 * counts[column, who] / totals[column] for column in columns] for who in workers]
    axes.imshow(shares, cmap="Reds", vmin=0, vmax=100, aspect="auto")
    axes.set_xticks(range(len(columns)), [f"{c}\n({totals[c]})" for c in columns], fontsize=7.5)
    axes.set_yticks(range(len(workers)), list(workers), fontsize=8)
    axes.tick_params(length=0)
    axes.set_title(title, fontsize=10)
    for row, line in enumerate(shares):
        for column, share in enumerate(line):
            if share:
                colour = "white" if share > 55 else INK  # noqa: PLR2004 - dark cells
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=7.5,
                          color=colour)  # fmt: skip
    for side in axes.spines.values():
        side.set_visible(False)


def _families(runs: Sequence[Result]) -> list[str]:
    return sorted({run.family for run in runs if run.difficulty is not None})[:MOST_LINES]


def _figure(found: Json, title: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure that says what was asked, and that simulated workers are simulated."""
    figure, (axes,) = _panels(1, 1, size)
    simulated = ", simulated workers" if found["simulated"] else ""
    about = f"{found['tasks']}, {found['questions']} questions{simulated}"
    figure.suptitle(title, fontsize=12, x=0.02, ha="left")
    axes.set_title(about, fontsize=8.5, color=GREY, loc="left")
    _plain(axes)
    return figure, axes


def _panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Panels of that size each, in inches, row by row."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, n + 1) for n in range(rows * columns)]


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e6ea", linewidth=0.7)
    axes.set_axisbelow(True)


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
