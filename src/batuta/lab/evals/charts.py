"""Draws the figures of an evaluation on axes that `plots` makes."""

# matplotlib's own stubs leave keyword arguments untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from batuta.lab.evals.cost_quality import cost_unit
from batuta.lab.evals.html_report import ACCENT, GREY, GRID, INK, PAPER
from batuta.lab.evals.report import Json
from batuta.lab.evals.result_log import TrialResult
from batuta.lab.evals.stats import mean_or_none
from batuta.lab.evals.systems import BEST_SINGLE, RECURSIVE, ULTRA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

Point = tuple[float, float]
"""The two coordinates of a point, in the units of its axes; or the two bounds of an interval."""
Box = tuple[float, float, float, float]
"""The left, bottom, right and top of a rectangle, in pixels."""

LINE_COLOURS = (ACCENT, "#1f6fb2", "#2e8b57", "#8e5bb5", "#d98e04", "#3aa6a6", "#9a6b3f", "#5c6670")
OWN_SYSTEMS = frozenset({ULTRA, RECURSIVE, "mini", "cascade"})
"""This project's own systems, which are drawn in `ACCENT`; so are all whose names begin with
`ultra`."""
MAX_LINES = len(LINE_COLOURS)
"""Maximum number of coloured lines in one figure; more cannot be distinguished."""
MAX_COLUMNS = 12
"""Maximum number of families of a heatmap; rarer families are joined in one more column."""
OTHER = "other"
"""The column of the families that are joined."""
_LABEL_OFFSETS = (
    (7, 0), (7, 7), (7, -7), (-7, 7), (-7, -7), (-7, 0), (7, 14), (7, -14), (-7, 15), (-7, -15),
)  # fmt: skip
"""Offsets of a label from its point, in typographic points, in the order of trial."""


def escape_dollars(text: str) -> str:
    """Escape the text's dollar signs, which matplotlib would read as formulas."""
    return text.replace("$", r"\$")


def rank_systems(found: Json) -> list[str]:
    """Return the systems that were scored, the best first."""
    known: Json = {n: s for n, s in found["systems"].items() if s["accuracy"] is not None}
    return sorted(known, key=lambda name: -known[name]["accuracy"])


def draw_accuracy(axes: Axes, found: Json) -> None:
    """Draw the accuracy of each scored system with its interval, the best on top.

    A dotted line shows the accuracy of the best single worker.
    """
    names = rank_systems(found)[::-1]
    for row, name in enumerate(names):
        figures = found["systems"][name]
        at = 100 * figures["accuracy"]
        low, high = _accuracy_bounds(figures)
        colour, fill = _system_colours(name, found)
        axes.hlines(row, low, high, color=colour, linewidth=2.2, alpha=0.35)
        axes.scatter(at, row, s=34, facecolor=fill, edgecolor=colour, linewidth=1.4, zorder=3)
        axes.annotate(
            f"{at:.1f}", (high, row), (6, 0), textcoords="offset points", va="center", fontsize=8,
            color=colour,
        )  # fmt: skip
    single = found["systems"].get(BEST_SINGLE)
    if single and single["accuracy"] is not None:
        axes.axvline(100 * single["accuracy"], color=GREY, linewidth=0.9, linestyle=":")
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.margins(x=0.1)
    axes.set_xlabel("accuracy, %, with 95% interval")


def _accuracy_bounds(figures: Json) -> Point:
    """Return the interval in per cent, or the accuracy twice if there is none."""
    low, high = figures["ci95"] or (figures["accuracy"], figures["accuracy"])
    return 100 * low, 100 * high


def _system_colours(name: str, found: Json) -> tuple[str, str]:
    """Return the colours of the edge and face of a system's point; a reference's is hollow."""
    colour = ACCENT if _is_own_system(name) else INK
    return colour, PAPER if name in found["references"] else colour


def _is_own_system(name: str) -> bool:
    return name in OWN_SYSTEMS or name.startswith(ULTRA)


def draw_pareto_front(axes: Axes, found: Json) -> None:
    """Draw accuracy over cost per question, with the front of the best systems.

    The unit of cost is `cost_unit`. Systems whose cost is 0 or unknown are left out, as the axis is
    logarithmic. The front leaves out reference lines.
    """
    unit = cost_unit(found["systems"])
    systems: Json = found["systems"]
    names = [name for name in rank_systems(found) if systems[name][unit]]
    points = {n: (float(systems[n][unit]), 100 * float(systems[n]["accuracy"])) for n in names}
    for name, at in points.items():
        low, high = _accuracy_bounds(systems[name])
        colour, fill = _system_colours(name, found)
        if unit != "calls":  # many systems have the same number of calls
            axes.vlines(at[0], low, high, color=colour, linewidth=0.8, alpha=0.45)
        axes.scatter(*at, s=30, facecolor=fill, edgecolor=colour, linewidth=1.2, zorder=3)
    best = pareto_points({n: p for n, p in points.items() if n not in found["references"]})
    if best:
        axes.plot(*zip(*best, strict=True), color=GREY, linewidth=1, linestyle="--", zorder=1)
    axes.set_xscale("log")
    _label_cost_axes(axes, unit)
    axes.margins(x=0.16)
    _draw_labels(axes, _merge_points(points))


def _label_cost_axes(axes: Axes, unit: str) -> None:
    sign = "$" if unit == "usd" else ""
    axes.xaxis.set_major_formatter(lambda value, _: f"{sign}{value:,.10g}")
    axes.set_xlabel(f"{'dollars' if unit == 'usd' else unit} per question")
    axes.set_ylabel("accuracy, %")


def draw_cost_curves(axes: Axes, found: Json) -> None:
    """Draw accuracy over cost, of the `MAX_LINES` methods with the highest AIQ."""
    curves: Json = found["cost_quality"]["curves"]
    high = float(found["cost_quality"]["high"])
    named = sorted(curves, key=lambda name: -curves[name]["aiq"])[:MAX_LINES]
    for name, colour in zip(named, LINE_COLOURS, strict=False):
        corners = [*curves[name]["hull"], [high, curves[name]["hull"][-1][1]]]
        costs, shares = zip(*corners, strict=True)
        axes.plot(
            costs, [100 * share for share in shares], color=colour, linewidth=1.6, marker="o",
            markersize=3, label=f"{name}, AIQ {100 * curves[name]['aiq']:.1f}",
        )  # fmt: skip
    _label_cost_axes(axes, found["cost_quality"]["unit"])
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def draw_recovered_gap(axes: Axes, found: Json) -> None:
    """Draw the recovered part of the gap over the share of questions for the strong worker.

    There is a line for each of the `MAX_LINES` routers with the highest APGR.
    """
    systems: Json = found["recovered_gap"]["systems"]
    named = sorted(systems, key=lambda name: -systems[name]["apgr"])[:MAX_LINES]
    for name, colour in zip(named, LINE_COLOURS, strict=False):
        curve = systems[name]["curve"]
        shares = [100 * index / (len(curve) - 1) for index in range(len(curve))]
        axes.plot(
            shares, [100 * value for value in curve], color=colour, linewidth=1.6,
            label=f"{name}, APGR {systems[name]['apgr']:.3f}",
        )  # fmt: skip
    axes.plot((0, 100), (0, 100), color=GREY, linewidth=1, linestyle=":", label="at random, 0.500")
    axes.set_xlabel("questions that go to the strong worker, %")
    axes.set_ylabel("part of the gap recovered, %")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _merge_points(points: Mapping[str, Point]) -> dict[str, Point]:
    """Return each distinct point under the joined names of all systems at it."""
    names: dict[Point, list[str]] = defaultdict(list)
    for name, point in points.items():
        names[point].append(name)
    return {" = ".join(_sort_own_first(same)): point for point, same in names.items()}


def _sort_own_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: not _is_own_system(name))


def pareto_points(points: Mapping[str, Point]) -> list[Point]:
    """Return the points more accurate than all others that cost no more, the cheapest first."""
    best: list[Point] = []
    for cost, accuracy in sorted(points.values(), key=lambda point: (point[0], -point[1])):
        if not best or accuracy > best[-1][1]:
            best.append((cost, accuracy))
    return best


def _draw_labels(axes: Axes, points: Mapping[str, Point]) -> None:
    """Write each name beside its point, where it overlaps the fewest points and earlier names."""
    figure = axes.get_figure(root=True)
    assert figure is not None  # noqa: S101 - these axes belong to a figure
    figure.draw_without_rendering()
    dots = [axes.transData.transform(point) for point in points.values()]
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in dots]
    for name, point in sorted(points.items(), key=lambda item: -item[1][1]):
        tried: list[tuple[int, Annotation, Box]] = []
        for offset in _LABEL_OFFSETS:
            text = _annotate_point(axes, name, point, offset)
            box = text.get_window_extent().extents
            corners = (float(box[0]), float(box[1]), float(box[2]), float(box[3]))
            tried.append((sum(_is_overlapping(corners, other) for other in taken), text, corners))
            if not tried[-1][0]:
                break
        _, kept, corners = min(tried, key=lambda place: place[0])
        for _, text, _ in tried:
            if text is not kept:
                text.remove()
        taken.append(corners)


def _annotate_point(axes: Axes, name: str, point: Point, offset: tuple[int, int]) -> Annotation:
    return axes.annotate(
        name,
        point,
        offset,
        textcoords="offset points",
        fontsize=7.5,
        color=ACCENT if _is_own_system(name.partition(" = ")[0]) else INK,
        ha="left" if offset[0] > 0 else "right",
        va="center",
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.9, "pad": 0.6},
        zorder=4,
    )


def _is_overlapping(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def draw_difficulty(axes: Axes, found: Json) -> None:
    """Draw accuracy by difficulty, for up to `MAX_LINES` lines of systems.

    Systems with equal figures share a line. Single workers are drawn only if nothing else was
    scored.
    """
    ranked = rank_systems(found)
    names = [name for name in ranked if name not in found["pool"]] or ranked
    lines: dict[tuple[Point, ...], list[str]] = defaultdict(list)
    for name in names:
        lines[_difficulty_points(found, name)].append(name)
    merged = [(_sort_own_first(same), series) for series, same in lines.items()]
    others = iter(LINE_COLOURS[1:])
    for same, series in _choose_lines(merged):
        main = ULTRA in same
        axes.plot(*zip(*series, strict=True), "--" if same[0] in found["references"] else "-",
                  color=ACCENT if main else next(others), linewidth=2.4 if main else 1.4,
                  marker="o", markersize=3.5, label=" = ".join(same))  # fmt: skip
    draw_legend(axes)
    axes.set_xlabel("difficulty")
    axes.set_ylabel("accuracy, %")
    axes.set_ylim(-2, 102)


def _difficulty_points(found: Json, name: str) -> tuple[Point, ...]:
    parts: Json = found["systems"][name]["by_difficulty"]
    return tuple(sorted((float(level), 100 * part["accuracy"]) for level, part in parts.items()))


ChartLine = tuple[list[str], tuple[Point, ...]]
"""The systems that a line represents, and its points."""


def _choose_lines(lines: Sequence[ChartLine]) -> list[ChartLine]:
    """Choose as many lines as can be distinguished, with `ultra` and the best single worker.

    `lines` are ordered by accuracy; the others are chosen evenly from the best to the worst.
    """
    wanted = [at for at, line in enumerate(lines) if {ULTRA, BEST_SINGLE} & set(line[0])]
    rest = [at for at in range(len(lines)) if at not in wanted]
    room = MAX_LINES - len(wanted) - (not any(ULTRA in lines[at][0] for at in wanted))
    if len(rest) > room:
        rest = [rest[round(i * (len(rest) - 1) / (room - 1))] for i in range(room)]
    return [lines[at] for at in sorted((*wanted, *rest))]


def draw_depth(axes: Axes, name: str, runs: Sequence[TrialResult]) -> None:
    """Draw the mean depth of a system's workflows by difficulty, a line per family.

    Only the first `MAX_LINES` families in alphabetical order are drawn.
    """
    families = sorted({run.family for run in runs if run.difficulty is not None})[:MAX_LINES]
    for number, (family, colour) in enumerate(zip(families, LINE_COLOURS, strict=False)):
        series = _mean_depth(run for run in runs if run.family == family)
        width = 1.4 + 1.3 * (len(families) - 1 - number)  # so that coinciding lines stay visible
        label = escape_dollars(family)
        axes.plot(*zip(*series, strict=True), color=colour, linewidth=width, label=label)
    axes.set_title(name, fontsize=10)
    axes.set_xlabel("difficulty")
    axes.set_ylabel("sequential steps")
    axes.set_ylim(bottom=0)
    axes.locator_params(integer=True)


def _mean_depth(runs: Iterable[TrialResult]) -> list[Point]:
    depths: dict[float, list[int]] = defaultdict(list)
    for run in runs:
        if run.difficulty is not None:
            depths[run.difficulty].append(run.depth)
    return [(level, mean_or_none(found) or 0.0) for level, found in sorted(depths.items())]


def draw_worker_shares(axes: Axes, found: Json) -> None:
    """Draw the share of each system's steps that each worker ran, in per cent.

    Reference lines and single workers are left out.
    """
    names = [
        n for n in rank_systems(found) if n not in found["references"] and n not in found["pool"]
    ]
    workers: list[str] = found["pool"]
    pairs: Counter[tuple[str, str]] = Counter()
    for name in names:
        for worker, kinds in found["systems"][name]["workers"].items():
            pairs[name, worker] += sum(kinds.values())
    draw_heatmap(axes, pairs, workers, names)
    axes.tick_params(axis="x", labelrotation=40)
    for text in axes.get_xticklabels():
        text.set_horizontalalignment("right")
        text.set_rotation_mode("anchor")


def count_by_family(runs: Sequence[TrialResult]) -> Counter[tuple[str, str]]:
    """Count steps by family and worker; all but the `MAX_COLUMNS` largest families are joined."""
    common = {name for name, _ in Counter(run.family for run in runs).most_common(MAX_COLUMNS)}
    return Counter(
        (run.family if run.family in common else OTHER, step.worker)
        for run in runs
        for step in run.steps
    )


def count_by_kind(runs: Sequence[TrialResult]) -> Counter[tuple[str, str]]:
    """Count steps by kind of subtask and worker."""
    return Counter((step.kind, step.worker) for run in runs for step in run.steps)


def draw_heatmap(
    axes: Axes,
    pairs: Counter[tuple[str, str]],
    workers: Sequence[str],
    columns: Sequence[str] | None = None,
) -> None:
    """Draw a heatmap of the shares of workers in each column, in per cent.

    `pairs` counts steps by column and worker. `columns` gives the columns in order; None
    takes all, the largest first, and `OTHER` last.
    """
    totals: Counter[str] = Counter()
    for (column, _), count in pairs.items():
        totals[column] += count
    names = columns or sorted(totals, key=lambda name: (name == OTHER, -totals[name]))
    for at, column in enumerate(names):
        for row, who in enumerate(workers):
            share = pairs[column, who] / totals[column] if totals[column] else 0.0
            axes.fill_between(
                (at - 0.47, at + 0.47),
                row - 0.46,
                row + 0.46,
                color=ACCENT,
                alpha=0.04 + 0.8 * share,
                linewidth=0,
            )
            if share >= 0.005:  # noqa: PLR2004 - less would be shown as 0
                axes.text(at, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=7.5,
                          color=PAPER if share > 0.75 else INK)  # fmt: skip  # noqa: PLR2004
    axes.set_xticks(range(len(names)), [escape_dollars(name) for name in names], fontsize=7.5)
    axes.set_yticks(range(len(workers)), list(workers), fontsize=8)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(workers) - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def draw_legend(axes: Axes) -> None:
    """Draw the legend to the right of the axes."""
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
