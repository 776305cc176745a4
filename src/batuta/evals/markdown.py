"""A report for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batuta.evals.report import Json

HEADS = (
    "system",
    "right %",
    "95 %",
    "n",
    "calls",
    "steps",
    "tokens",
    "dollars",
    "seconds",
    "conductor's tokens",
)
"""Means per question; the last column is the part of the tokens that planning took."""


def markdown(report: Json) -> str:
    """The whole report as Markdown."""
    systems = report["systems"]
    families = _keys(systems, "by_family")
    levels = sorted(_keys(systems, "by_difficulty"), key=float)
    parts = [
        f"# {report['tasks']}: {report['questions']} questions",
        "\n".join(f"- {line}" for line in notes(report)),
        table(HEADS, rows(report)),
    ]
    if differences := report["differences"]:
        parts.append(f"## Against {differences['against']}, paired\n\n{_paired(differences)}")
    if len(families) > 1:
        parts.append(f"## Right % by family\n\n{_accuracies(systems, 'by_family', families)}")
    if len(levels) > 1:
        parts.append(f"## Right % by difficulty\n\n{_accuracies(systems, 'by_difficulty', levels)}")
        parts.append(f"## Steps by difficulty\n\n{_figures(systems, 'steps', levels)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def rows(report: Json) -> list[list[str]]:
    """The main table's lines, best first."""
    systems: Json = report["systems"]
    order = sorted(systems, key=lambda name: -(systems[name]["accuracy"] or 0))
    return [_row(name, systems[name], report) for name in order]


def _row(name: str, figures: Json, report: Json) -> list[str]:
    low, high = figures["ci95"] or (None, None)
    label = f"({name})" if name in report["references"] else name
    unscored = f" (+{figures['unscored']} unscored)" if figures["unscored"] else ""
    return [
        label,
        percent(figures["accuracy"]),
        f"{percent(low)}–{percent(high)}",
        f"{figures['n']}{unscored}",
        _decimal(figures["calls"]),
        _decimal(figures["steps"]),
        _whole(figures["tokens"]),
        "unknown" if figures["usd"] is None else f"{figures['usd']:.6f}",
        _decimal(figures["seconds"]),
        _whole(figures["conductor_tokens"]),
    ]


def notes(report: Json) -> list[str]:
    """What a reader must know to read the table."""
    said: list[str] = []
    if report["simulated"]:
        said.append("The workers are simulated: programs of the rehearsal orchestra, no models.")
    found: dict[str, float | None] = report["calibration"]["strengths"]
    known = {worker: strength for worker, strength in found.items() if strength is not None}
    if known:
        best = max(known, key=lambda worker: known[worker])
        said.append(
            f"Best single worker on {report['calibration']['questions']} calibration questions: "
            f"{best}, {percent(known[best])} % right."
        )
    elif report["calibration"]["needed"]:
        said.append("There were no questions to calibrate on: the pool's own strengths decide.")
    said += _more(report)
    if report["command"]:
        said.append(f"Command: `{report['command']}`")
    return said


def _more(report: Json) -> list[str]:
    """Notes that not every report has."""
    said: list[str] = []
    if report["references"]:
        said.append("In brackets: right if any of its replies is; a bound, no method.")
    if report["sub_pool"]:
        said.append(f"Each question had {report['sub_pool']} workers, drawn and in random order.")
    said.append(f"Seconds are of a run beside up to {report['concurrency'] - 1} others.")
    if report["equal_calls"]:
        said.append(f"Mean calls of ultra, rounded up: {report['equal_calls']}.")
    lost = {name: s["unscored"] for name, s in report["systems"].items() if s["unscored"]}
    if lost:
        told = ", ".join(f"{name} {count}" for name, count in lost.items())
        said.append(
            f"Runs without a score (outages, undecided grades), not counted as wrong: {told}."
        )
    return said


def table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    rule = ["---", *(["---:"] * (len(heads) - 1))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *map(list, lines)))


def percent(share: float | None) -> str:
    """A share as per cent with one decimal."""
    return "–" if share is None else f"{100 * share:.1f}"


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _keys(systems: Json, part: str) -> list[str]:
    return sorted({key for figures in systems.values() for key in figures[part]})


def _accuracies(systems: Json, part: str, keys: list[str]) -> str:
    lines = (
        [name, *(percent(_of(figures, part, key, "accuracy")) for key in keys)]
        for name, figures in systems.items()
    )
    return table(["system", *keys], lines)


def _figures(systems: Json, figure: str, levels: list[str]) -> str:
    lines = (
        [name, *(_decimal(_of(figures, "by_difficulty", level, figure)) for level in levels)]
        for name, figures in systems.items()
    )
    return table(["system", *levels], lines)


def _of(figures: Json, part: str, key: str, figure: str) -> Any:
    return figures[part].get(key, {}).get(figure)


def _paired(differences: Json) -> str:
    lines = (
        [
            name,
            f"{100 * delta['mean']:+.1f}",
            f"{100 * delta['low']:+.1f} to {100 * delta['high']:+.1f}",
            f"{delta['p']:.4f}",
            str(delta["questions"]),
        ]
        for name, delta in differences["systems"].items()
    )
    return table(["system", "points", "95 %", "p", "questions"], lines)
