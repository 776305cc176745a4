"""A report for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batuta.core import formatting
from batuta.evals.cost_quality_text import cost_notes, cost_tables
from batuta.evals.report import Json
from batuta.evals.stats import MIN_GROUPS
from batuta.evals.systems import BEST_SINGLE

TABLE_HEADS = (
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

UNKNOWN = "–"
"""Which is not zero."""

MAX_FAMILIES = 12
"""Families that fit into a table's columns."""


def render_markdown(report: Json) -> str:
    """The whole report as Markdown."""
    systems = report["systems"]
    families = _group_keys(systems, "by_family")
    levels = sorted(_group_keys(systems, "by_difficulty"), key=float)
    parts = [
        f"# {report_title(report)}",
        report_headline(report),
        "\n".join(f"- {line}" for line in report_notes(report)),
        markdown_table(TABLE_HEADS, table_rows(report)),
    ]
    if (differences := report["differences"]) and differences["systems"]:
        against = f"## Against {differences['against']}, on the same questions"
        parts.append(f"{against}\n\n{markdown_table(COMPARISON_HEADS, comparison_rows(report))}")
    parts += (
        f"## {heading}\n\n{markdown_table(heads, lines)}"
        for heading, heads, lines in cost_tables(report)
    )
    if 1 < len(families) <= MAX_FAMILIES:
        parts.append(f"## Right % by family\n\n{_accuracy_table(systems, 'by_family', families)}")
        parts.append(f"## Depth by family\n\n{_depth_table(systems, 'by_family', families)}")
    elif families[MAX_FAMILIES:]:
        parts.append(f"Right % by family: {len(families)} families, in report.json.")
    if len(levels) > 1:
        parts.append(
            f"## Right % by difficulty\n\n{_accuracy_table(systems, 'by_difficulty', levels)}"
        )
        parts.append(f"## Depth by difficulty\n\n{_depth_table(systems, 'by_difficulty', levels)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def report_title(report: Json) -> str:
    """What was asked, in a line."""
    questions = f"{report['tasks']}: {report['questions']} questions"
    if not report["split"]:
        return questions
    splits = len(report["seeds"])
    of = "a split" if splits == 1 else f"{splits} splits"
    unseen = " of whole families" if report["split"] == "unseen" else " by lot"
    return f"{questions} held out, {of}{unseen}"


def report_headline(report: Json) -> str:
    """The outcome in a sentence; empty if nothing was scored."""
    systems: Json = report["systems"]
    known = [n for n in systems if n not in report["references"] and systems[n]["n"]]
    if not known:
        return ""
    best = max(known, key=lambda name: systems[name]["accuracy"])
    low, high = systems[best]["ci95"] or (None, None)
    found = (
        f"Right most often: {system_label(best, report)}, "
        f"{format_percent(systems[best]['accuracy'])} % "
        f"({format_percent(low)}–{format_percent(high)})"
    )
    delta = report["differences"] and report["differences"]["systems"].get(best)
    if not delta:
        return f"{found}."
    return (
        f"{found}; {100 * delta['mean']:+.1f} points against {report['differences']['against']} "
        f"on the same questions ({100 * delta['low']:+.1f} to {100 * delta['high']:+.1f})."
    )


def table_rows(report: Json) -> list[list[str]]:
    """The main table's lines, best first."""
    systems: Json = report["systems"]
    order = sorted(systems, key=lambda name: -(systems[name]["accuracy"] or 0))
    return [_table_row(name, systems[name], report) for name in order]


def _table_row(name: str, figures: Json, report: Json) -> list[str]:
    low, high = figures["ci95"] or (None, None)
    unscored = f" (+{figures['unscored']} unscored)" if figures["unscored"] else ""
    return [
        system_label(name, report),
        format_percent(figures["accuracy"]),
        f"{format_percent(low)}–{format_percent(high)}",
        f"{figures['n']}{unscored}",
        format_decimal(figures["calls"]),
        format_decimal(figures["steps"]),
        _mark_partial_mean(format_count(figures["tokens"]), figures, "tokens_unknown"),
        _mark_partial_mean(format_dollars(figures["usd"]), figures, "usd_unknown"),
        format_decimal(figures["seconds"]),
        format_count(figures["conductor_tokens"]),
    ]


def _mark_partial_mean(shown: str, figures: Json, unknown: str) -> str:
    """The mean, marked where it is that of some runs only."""
    return f"{shown}†" if figures[unknown] and shown != UNKNOWN else shown


def system_label(name: str, report: Json) -> str:
    """The system's name: in brackets a reference line, with a star if its replies are simulated."""
    star = "*" if report["systems"][name]["simulated_runs"] else ""
    if name in report["calibration"]["unmeasured"]:
        star += f" [{report['calibration']['assumed']}‡]" if name == BEST_SINGLE else "‡"
    return f"({name}){star}" if name in report["references"] else f"{name}{star}"


def report_notes(report: Json) -> list[str]:
    """What a reader must know to read the table."""
    said = [
        *_worker_notes(report),
        *_calibration_notes(report),
        *_reading_notes(report),
        *_missing_notes(report),
        *cost_notes(report),
    ]
    if report["command"]:
        said.append(f"Command: `{report['command']}`")
    return said


def _worker_notes(report: Json) -> list[str]:
    said: list[str] = []
    if report["simulated"]:
        said.append("The workers are simulated: programs of the rehearsal, no language models.")
    if report["recorded"]:
        said.append(
            "The workers are a record of what was once answered; here nothing was called. "
            "Tokens and dollars are those of the record, or unknown (–); seconds are not reported."
        )
    if any(figures["simulated_runs"] for figures in report["systems"].values()):
        said.append(
            "* A check, a repair or a summary that the record cannot know is simulated by one of "
            "the model's recorded answers to the question: no measurement of that method."
        )
    return said


def _calibration_notes(report: Json) -> list[str]:
    found: dict[str, float | None] = report["calibration"]["strengths"]
    known = {worker: strength for worker, strength in found.items() if strength is not None}
    if not known:
        return _unmeasured_best_worker_lines(report) if report["calibration"]["needed"] else []
    best = max(known, key=lambda worker: known[worker])
    questions = report["calibration"]["questions"]
    chosen = (
        f"Best single worker on {questions} other questions: {best}, "
        f"{format_percent(known[best])} % "
        "right there; it was chosen by those, not by the questions of this table."
    )
    said = [chosen]
    if report["fitted"]:
        said.append(f"Learned from the same other questions: {', '.join(report['fitted'])}.")
    return said


def _unmeasured_best_worker_lines(report: Json) -> list[str]:
    """What stands for the best worker where no other questions were left to measure by."""
    believed = report["calibration"]["believed"]
    why = "the pool's own strengths name it" if believed else "it is the first of the pool"
    who = report["calibration"]["assumed"]
    told = (
        "‡ There were no other questions to measure the workers on: for the best single worker "
        f"stands {who}, since {why}; another one may be better. Ask fewer questions with --limit, "
        "and the rest measure it."
    )
    return [told]


def _reading_notes(report: Json) -> list[str]:
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
            f"{MIN_GROUPS} families there are none."
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


def _missing_notes(report: Json) -> list[str]:
    said = [f"Left out: {name} ({reason})." for name, reason in report["left_out"].items()]
    systems = report["systems"].items()
    if report["incomplete"]:
        few = f"{report['incomplete']:,}"
        said.append(f"Questions that not every worker answered, left out: {few}.")
    for what, word in (("tokens", "tokens"), ("usd", "dollars")):
        partly = [(name, s[f"{what}_unknown"]) for name, s in systems if s[what] is not None]
        if told := ", ".join(f"{name} {n}" for name, n in partly if n):
            said.append(f"† Runs whose {word} are not known, left out of that mean: {told}.")
    if told := ", ".join(f"{name} {s['unscored']}" for name, s in systems if s["unscored"]):
        said.append(
            f"Runs without a score (outages, undecided grades), not counted as wrong: {told}."
        )
    if told := ", ".join(f"{name} {s['invalid']}" for name, s in systems if s["invalid"]):
        said.append(f"Plans that asked for what the record has not, counted as wrong: {told}.")
    if told := ", ".join(
        f"{name} {format_dollars(s['judge_usd'])}" for name, s in systems if s["judge_usd"]
    ):
        said.append(f"Of the dollars, what judging the answer took: {told}.")
    return said


def markdown_table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    rule = ["---", *(["---:"] * (len(heads) - 1))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *map(list, lines)))


def format_percent(share: float | None) -> str:
    """A share as per cent with one decimal, for a column of them; a dash if not known."""
    return UNKNOWN if share is None else f"{100 * share:.1f}"


def format_dollars(value: float | None) -> str:
    """Dollars as every screen shows them; a dash if not known."""
    return UNKNOWN if value is None else formatting.format_usd(value)


def format_decimal(value: float | None) -> str:
    """Two places; a dash if not known."""
    return UNKNOWN if value is None else f"{value:.2f}"


def format_count(value: float | None) -> str:
    """A large number; a dash if not known."""
    return UNKNOWN if value is None else formatting.format_count(value)


def _group_keys(systems: Json, part: str) -> list[str]:
    return sorted({key for figures in systems.values() for key in figures[part]})


def _accuracy_table(systems: Json, part: str, keys: list[str]) -> str:
    lines = (
        [name, *(format_percent(_group_figure(figures, part, key, "accuracy")) for key in keys)]
        for name, figures in systems.items()
    )
    return markdown_table(["system", *keys], lines)


def _depth_table(systems: Json, part: str, keys: list[str]) -> str:
    lines = (
        [name, *(format_decimal(_group_figure(figures, part, key, "depth")) for key in keys)]
        for name, figures in systems.items()
    )
    return markdown_table(["system", *keys], lines)


def _group_figure(figures: Json, part: str, key: str, figure: str) -> Any:
    return figures[part].get(key, {}).get(figure)


COMPARISON_HEADS = ("system", "points", "95 %", "p", "p, Holm", "test", "questions")
"""The columns of the comparison with the first system."""


def comparison_rows(report: Json) -> list[list[str]]:
    """The lines of the comparison with the first system."""
    return [
        [
            system_label(name, report),
            f"{100 * delta['mean']:+.1f}",
            f"{100 * delta['low']:+.1f} to {100 * delta['high']:+.1f}",
            _format_p_value(delta["p"]),
            _format_p_value(delta["p_corrected"]),
            delta["test"],
            str(delta["questions"]),
        ]
        for name, delta in report["differences"]["systems"].items()
    ]


def _format_p_value(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"  # noqa: PLR2004 - four places
