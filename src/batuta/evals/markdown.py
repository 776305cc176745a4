"""A report for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batuta.evals.report import Json
from batuta.evals.stats import FEWEST

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

FEW = 12
"""Families that fit into a table's columns."""


def markdown(report: Json) -> str:
    """The whole report as Markdown."""
    systems = report["systems"]
    families = _keys(systems, "by_family")
    levels = sorted(_keys(systems, "by_difficulty"), key=float)
    parts = [
        f"# {title(report)}",
        headline(report),
        "\n".join(f"- {line}" for line in notes(report)),
        table(HEADS, rows(report)),
    ]
    if (differences := report["differences"]) and differences["systems"]:
        against = f"## Against {differences['against']}, on the same questions"
        parts.append(f"{against}\n\n{table(PAIRED, paired(report))}")
    if 1 < len(families) <= FEW:
        parts.append(f"## Right % by family\n\n{_accuracies(systems, 'by_family', families)}")
        parts.append(f"## Depth by family\n\n{_figures(systems, 'by_family', families)}")
    elif families[FEW:]:
        parts.append(f"Right % by family: {len(families)} families, in report.json.")
    if len(levels) > 1:
        parts.append(f"## Right % by difficulty\n\n{_accuracies(systems, 'by_difficulty', levels)}")
        parts.append(f"## Depth by difficulty\n\n{_figures(systems, 'by_difficulty', levels)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def title(report: Json) -> str:
    """What was asked, in a line."""
    questions = f"{report['tasks']}: {report['questions']} questions"
    if not report["split"]:
        return questions
    splits = len(report["seeds"])
    of = "a split" if splits == 1 else f"{splits} splits"
    unseen = " of whole families" if report["split"] == "unseen" else " by lot"
    return f"{questions} held out, {of}{unseen}"


def headline(report: Json) -> str:
    """The outcome in a sentence; empty if nothing was scored."""
    systems: Json = report["systems"]
    known = [n for n in systems if n not in report["references"] and systems[n]["n"]]
    if not known:
        return ""
    best = max(known, key=lambda name: systems[name]["accuracy"])
    low, high = systems[best]["ci95"] or (None, None)
    found = (
        f"Right most often: {label(best, report)}, {percent(systems[best]['accuracy'])} % "
        f"({percent(low)}–{percent(high)})"
    )
    delta = report["differences"] and report["differences"]["systems"].get(best)
    if not delta:
        return f"{found}."
    return (
        f"{found}; {100 * delta['mean']:+.1f} points against {report['differences']['against']} "
        f"on the same questions ({100 * delta['low']:+.1f} to {100 * delta['high']:+.1f})."
    )


def rows(report: Json) -> list[list[str]]:
    """The main table's lines, best first."""
    systems: Json = report["systems"]
    order = sorted(systems, key=lambda name: -(systems[name]["accuracy"] or 0))
    return [_row(name, systems[name], report) for name in order]


def _row(name: str, figures: Json, report: Json) -> list[str]:
    low, high = figures["ci95"] or (None, None)
    unscored = f" (+{figures['unscored']} unscored)" if figures["unscored"] else ""
    return [
        label(name, report),
        percent(figures["accuracy"]),
        f"{percent(low)}–{percent(high)}",
        f"{figures['n']}{unscored}",
        decimal(figures["calls"]),
        decimal(figures["steps"]),
        whole(figures["tokens"]),
        dollars(figures["usd"]),
        decimal(figures["seconds"]),
        whole(figures["conductor_tokens"]),
    ]


def label(name: str, report: Json) -> str:
    """The system's name: in brackets a reference line, with a star if its replies are simulated."""
    star = "*" if report["systems"][name]["simulated_runs"] else ""
    return f"({name}){star}" if name in report["references"] else f"{name}{star}"


def notes(report: Json) -> list[str]:
    """What a reader must know to read the table."""
    said = [*_who(report), *_chosen(report), *_reading(report), *_lost(report)]
    if report["command"]:
        said.append(f"Command: `{report['command']}`")
    return said


def _who(report: Json) -> list[str]:
    said: list[str] = []
    if report["simulated"]:
        said.append("The workers are simulated: programs of the rehearsal orchestra, no models.")
    if report["recorded"]:
        said.append(
            "The workers are a record of what real models once answered; nothing was called. "
            "Tokens and dollars are those of the record, or unknown (–); seconds are not told."
        )
    if any(figures["simulated_runs"] for figures in report["systems"].values()):
        said.append(
            "* A check, a repair or a summary that the record cannot know is simulated by one of "
            "the model's recorded answers to the question: no measurement of that method."
        )
    return said


def _chosen(report: Json) -> list[str]:
    found: dict[str, float | None] = report["calibration"]["strengths"]
    known = {worker: strength for worker, strength in found.items() if strength is not None}
    if not known:
        needed = report["calibration"]["needed"]
        lacking = "There were no questions to calibrate on: the pool's own strengths decide."
        return [lacking] if needed else []
    best = max(known, key=lambda worker: known[worker])
    questions = report["calibration"]["questions"]
    chosen = (
        f"Best single worker on {questions} other questions: {best}, {percent(known[best])} % "
        "right there; it was chosen by those, not by the questions of this table."
    )
    said = [chosen]
    if report["fitted"]:
        said.append(f"Learned from the same other questions: {', '.join(report['fitted'])}.")
    return said


def _reading(report: Json) -> list[str]:
    said: list[str] = []
    if report["references"]:
        said.append(
            "In brackets: lines to compare with, no methods. oracle and pass@k: right if any reply "
            "is. skill-oracle@k: each question goes to the worker that did best on its other "
            "samples."
        )
    if report["split"] == "unseen":
        said.append(
            "Intervals and tests resample whole families, as they were drawn; of fewer than "
            f"{FEWEST} families there are none."
        )
    if report["sub_pool"]:
        said.append(f"Each question had {report['sub_pool']} workers, drawn and in random order.")
    if not report["recorded"]:
        said.append(f"Seconds are of a run beside up to {report['concurrency'] - 1} others.")
    said += (
        f"Equal {budget['what']}: {budget['of']} takes {budget['amount']:.4g} a question, "
        f"which comes to {budget['k']} samples of the best worker, rounded up."
        for budget in report["budgets"]
    )
    return said


def _lost(report: Json) -> list[str]:
    said = [f"Left out: {name} ({reason})." for name, reason in report["left_out"].items()]
    systems = report["systems"].items()
    if told := ", ".join(f"{name} {s['unscored']}" for name, s in systems if s["unscored"]):
        said.append(
            f"Runs without a score (outages, undecided grades), not counted as wrong: {told}."
        )
    if told := ", ".join(f"{name} {s['invalid']}" for name, s in systems if s["invalid"]):
        said.append(f"Plans that asked for what the record has not, counted as wrong: {told}.")
    if told := ", ".join(f"{name} ${s['judge_usd']:.6f}" for name, s in systems if s["judge_usd"]):
        said.append(f"Of the dollars, what judging the answer took: {told}.")
    return said


def table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    rule = ["---", *(["---:"] * (len(heads) - 1))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *map(list, lines)))


def percent(share: float | None) -> str:
    """A share as per cent with one decimal."""
    return "–" if share is None else f"{100 * share:.1f}"


def dollars(value: float | None) -> str:
    """Dollars, six places; a dash if not known."""
    return "–" if value is None else f"{value:.6f}"


def decimal(value: float | None) -> str:
    """Two places; a dash if not known."""
    return "–" if value is None else f"{value:.2f}"


def whole(value: float | None) -> str:
    """A large number; a dash if not known."""
    return "–" if value is None else f"{value:,.0f}"


def _keys(systems: Json, part: str) -> list[str]:
    return sorted({key for figures in systems.values() for key in figures[part]})


def _accuracies(systems: Json, part: str, keys: list[str]) -> str:
    lines = (
        [name, *(percent(_of(figures, part, key, "accuracy")) for key in keys)]
        for name, figures in systems.items()
    )
    return table(["system", *keys], lines)


def _figures(systems: Json, part: str, keys: list[str]) -> str:
    lines = (
        [name, *(decimal(_of(figures, part, key, "depth")) for key in keys)]
        for name, figures in systems.items()
    )
    return table(["system", *keys], lines)


def _of(figures: Json, part: str, key: str, figure: str) -> Any:
    return figures[part].get(key, {}).get(figure)


PAIRED = ("system", "points", "95 %", "p", "p, Holm", "test", "questions")
"""The columns of the comparison with the first system."""


def paired(report: Json) -> list[list[str]]:
    """The lines of the comparison with the first system."""
    return [
        [
            label(name, report),
            f"{100 * delta['mean']:+.1f}",
            f"{100 * delta['low']:+.1f} to {100 * delta['high']:+.1f}",
            _chance(delta["p"]),
            _chance(delta["p_corrected"]),
            delta["test"],
            str(delta["questions"]),
        ]
        for name, delta in report["differences"]["systems"].items()
    ]


def _chance(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"  # noqa: PLR2004 - four places
