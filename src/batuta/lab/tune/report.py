"""Writes the result of a tuning run: a report with a figure, selectors, settings and examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from batuta.conductors.workflow_selector import (
    WorkflowSelector,
    save_workflow_selector,
)
from batuta.core import Task
from batuta.core.formatting import format_usd
from batuta.core.workflow import steps_json
from batuta.lab.evals.html_report import ACCENT, GREY, GRID, INK, render_page
from batuta.lab.evals.markdown_report import escape_cell, format_dollars, format_percent
from batuta.lab.evals.report_files import write_files
from batuta.lab.tune.calibrate import WorkerCard
from batuta.lab.tune.candidate_runner import CallMeter
from batuta.lab.tune.context import TuneSettings
from batuta.lab.tune.decision import (
    SELECTOR,
    SINGLES_SELECTOR,
    format_probability,
    recommend_systems,
)
from batuta.lab.tune.judge import Comparison
from batuta.lab.tune.library import Candidate, write_continuation, write_workflow
from batuta.lab.tune.parts import QuestionParts
from batuta.lab.tune.result import TuneResult
from batuta.lab.tune.stages import MINI, ULTRA
from batuta.lab.tune.systems import TunedSystem

Json = dict[str, Any]


def describe_tuning(
    result: TuneResult, parts: QuestionParts, settings: TuneSettings, meter: CallMeter
) -> Json:
    """Return the whole result as JSON values; all calls must have been made.

    The seconds of calls are left out, so that equal replies give equal values. `meter` has the
    calls and dollars of the whole tuning run.
    """
    advice = recommend_systems(result, only_proven=settings.only_proven)
    return {
        "kind": "tuning",
        "budget": {
            "usd": None if settings.allowance.usd is None else float(settings.allowance.usd),
            "calls": settings.allowance.calls,
            "minutes": settings.allowance.minutes,
        },
        "spent": {"usd": round(float(meter.usd), 6), "calls": meter.calls},
        "settings": {
            "labelled": settings.labelled,
            "call_weight": settings.call_weight,
            "mean_calls": settings.mean_calls,
            "worth": settings.worth,
            "seed": settings.seed,
        },
        "questions": parts.counts,
        "groups": list(result.grouping.names),
        "workers": [card_json(card) for card in result.cards],
        "left_out": list(result.left_out),
        "team": None if result.team is None else asdict(result.team),
        "tried": result.tried,
        "expected": result.expected_accuracy,
        "workflows": _describe_workflows(result),
        "pattern": None if result.pattern is None else str(result.pattern),
        "rewritten": _describe_rewriting(result),
        "selection": [asdict(one) for one in result.selection],
        "finalists": [asdict(one) for one in result.finalists],
        "judged": [asdict(one) for one in result.judged],
        "comparisons": [asdict(one) for one in result.comparisons],
        "break_even": break_even(result.comparisons, advice, float(meter.usd)),
        "recommendation": advice,
    }


def card_json(card: WorkerCard) -> Json:
    """Return the card without the seconds, which differ between equal runs."""
    return {name: value for name, value in asdict(card).items() if name != "seconds"}


def _describe_workflows(result: TuneResult) -> list[Json]:
    """Return the workflows of the search's nominee for ultra, by group, the hardest level first.

    Neighbouring levels with the same workflow form one row. Empty if there is no such nominee.
    """
    system = (result.nominees or {}).get(ULTRA)
    if system is None:
        return []
    rank = system.selector.rank_glw
    rows: list[Json] = []
    for group, name in enumerate(result.grouping.names):
        levels = [system.library[int(index)] for index in rank[group, :, 0]]
        for level, candidate in enumerate(levels):
            if level and candidate == levels[level - 1]:
                rows[-1]["to"] = level + 1
                continue
            steps = _all_steps(candidate)
            rows.append(
                {"group": name, "from": level + 1, "to": level + 1, "levels": len(levels),
                 "workflow": str(candidate), "steps": steps,
                 "questions": _count_runs(result, group, candidate)}
            )  # fmt: skip
    return rows


def _count_runs(result: TuneResult, group: int, candidate: Candidate) -> int | None:
    """Return the number of the group's questions on which a workflow ran in the search.

    None for a workflow that the search did not keep, such as a reworded workflow.
    """
    table = result.table
    if table is None or candidate not in table.library:
        return None
    return int(table.runs_gw[group, table.library.index(candidate)])


def _describe_rewriting(result: TuneResult) -> Json | None:
    one = result.rewritten
    if one is None:
        return None
    return {
        "workflow": str(one.before),
        "steps": _all_steps(one.after),
        "kept": one.kept,
        "gain": round(one.gain, 6),
        "questions": one.questions,
        "reason": one.reason,
    }


def _all_steps(candidate: Candidate) -> list[Json]:
    """Return all steps as JSON, including those that run only if the first answers differ."""
    later = write_continuation(candidate)
    return steps_json(write_workflow(candidate)) + (steps_json(later) if later else [])


def break_even(comparisons: Sequence[Comparison], advice: Mapping[str, Any], spent: float) -> Json:
    """Return the number of questions after which ultra and mini have saved the dollars `spent`.

    The system recommended for each is compared with its first opponent. None if the best single
    worker is recommended, or if the system costs at least as much as its opponent.
    """
    first: dict[str, Comparison] = {}
    for one in comparisons:
        first.setdefault(one.nominee, one)
    found: Json = {}
    for served in first:
        folder = advice.get(served)
        saved = first[MINI if folder == SINGLES_SELECTOR else served].usd_saved if folder else 0.0
        found[served] = round(spent / saved) if saved > 0 else None
    return found


def write_results(
    folder: Path,
    found: Json,
    result: TuneResult,
    tasks: Sequence[Task],
    *,
    settings_text: str | None,
) -> None:
    """Write the report, the selectors, and examples for training a conductor.

    Without a system, as before the end of the search, no selectors and examples are written.
    `settings_text` is a settings file to write too, or None; `tasks` are the examples' questions.

    Raises:
        StoreError: the folder cannot be written.
    """
    files = report_files(found)
    if settings_text is not None:
        files["batuta.toml"] = settings_text
    written = selectors_of(found, result)
    for name, (_, selector) in written.items():
        save_workflow_selector(selector, folder / name)
    if SELECTOR in written:
        files["workflows.jsonl"] = _examples_text(written[SELECTOR][0], tasks)
    write_files(folder, files)


def saved_systems(result: TuneResult) -> dict[str, TunedSystem]:
    """Return the systems to save, by folder.

    Without a nominee for ultra, the finest system is saved; empty if there is no system.
    """
    nominees = result.nominees or {}
    systems = {
        SELECTOR: nominees.get(ULTRA) or (result.systems or (None,))[-1],
        SINGLES_SELECTOR: nominees.get(MINI),
    }
    return {name: one for name, one in systems.items() if one is not None}


def selectors_of(
    found: Json, result: TuneResult
) -> dict[str, tuple[TunedSystem, WorkflowSelector]]:
    """Return the systems to save, each with the selector that serves it, by folder.

    The selectors state the spending and the judgement of `found`.
    """
    about = {name: found[name] for name in ("spent", "judged", "comparisons", "recommendation")}
    return {
        name: (one, replace(one.selector, about=about))
        for name, one in saved_systems(result).items()
    }


def _examples_text(system: TunedSystem, tasks: Sequence[Task]) -> str:
    """Return each question with the workflow that the system runs on it, as JSON lines.

    The workflows have all their steps, without an early stop.
    """
    assignment = system.assign(tasks)
    lines: list[str] = []
    for task in tasks:
        steps = steps_json(write_workflow(assignment[task.id].without_look()))
        lines.append(
            orjson.dumps({"id": task.id, "question": task.question, "steps": steps}).decode()
        )
    return "\n".join(lines) + "\n"


# -- rendering -----------------------------------------------------------------------------


def render_markdown(found: Json) -> str:
    """Return the report as Markdown."""
    environment = Environment(
        loader=PackageLoader("batuta.lab.tune", ""),
        autoescape=False,  # noqa: S701 - Markdown is not HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.md.jinja").render(**_template_values(found))


def report_files(found: Json) -> dict[str, str]:
    """Return the report as JSON, as Markdown and as a page, by file name.

    The SVG of its figure is added if a system was scored.
    """
    text, front = render_markdown(found), draw_front(_compared_systems(found))
    return {
        "report.json": orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n",
        "report.md": text,
        "report.html": render_page(text, {"front": front}),
        **({"front.svg": front} if front else {}),
    }


def _compared_systems(found: Json) -> list[Json]:
    """Return the figures of the systems on the last part on which any ran; empty if none did."""
    return found["judged"] or found["finalists"] or found["selection"]


def _template_values(found: Json) -> Json:
    judged = _compared_systems(found)
    return {
        "found": found,
        "judged": judged,
        "percent": format_percent,
        "cell": escape_cell,
        "count": "{:,}".format,
        "ease": _describe_ease,
        "share_of": _describe_share,
        "probability": format_probability,
        "dollars": format_dollars,
        "has_front": any(one["share"] is not None for one in judged),
    }


def _describe_ease(row: Mapping[str, Any]) -> str:
    first, last, levels = row["from"], row["to"], row["levels"]
    if last - first + 1 == levels:
        return "all"
    return f"{first} of {levels}" if first == last else f"{first}–{last} of {levels}"


def _describe_share(one: Mapping[str, Any]) -> str:
    if one["share"] is None:
        return "–"
    interval = f"{format_percent(one['low'])}–{format_percent(one['high'])}"
    return f"{100 * one['share']:.1f} % ({interval}) of {one['questions']}"


_WIDTH, _HEIGHT = 620, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 150, 14, 44
"""The margins of the drawing, with room for ticks, names and labels."""
_TICK_DISTANCES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The possible distances between two ticks of accuracy, as shares."""
_MAX_DISTANCES = 6
"""Maximum number of distances between the lowest bound of an interval and 1."""


def draw_front(systems: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG drawing of accuracy over dollars per question; empty if no system was scored.

    The systems are points with their intervals. If all are free, or the dollars of any system are
    unknown, calls replace dollars.
    """
    known = [one for one in systems if one["share"] is not None]
    if not known:
        return ""
    usd = [one["usd"] for one in known]
    unit = "usd" if any(usd) and None not in usd else "calls"
    most = max(float(one[unit]) for one in known) * 1.1 or 1.0
    low = min(float(one["low"]) for one in known)
    distance = next(one for one in _TICK_DISTANCES if (1 - low) / one <= _MAX_DISTANCES)
    low = min(math.floor(low / distance) * distance, 1 - distance)

    def x_of(cost: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * cost / most

    def y_of(share: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - share) / (1 - low)

    shares = [low + distance * n for n in range(round((1 - low) / distance) + 1)]
    costs = [most * n / 4 for n in range(5)]
    marks = [_draw_tick(_LEFT, y_of(one), f"{100 * one:.0f}", x_end=x_of(most)) for one in shares]
    marks += [
        f'<text x="{x_of(one):.1f}" y="{_HEIGHT - 26}" fill="{GREY}" font-size="11" '
        f'text-anchor="middle">{format_usd(one) if unit == "usd" else f"{one:.2g}"}</text>'
        for one in costs
    ]
    marks += [_draw_system(one, x_of(float(one[unit])), y_of) for one in known]
    label = "dollars per question" if unit == "usd" else "calls per question"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f"{''.join(marks)}"
        f'<text x="{_LEFT}" y="{_TOP - 4}" fill="{GREY}" font-size="11">accuracy, %</text>'
        f'<text x="{(_LEFT + x_of(most)) / 2:.1f}" y="{_HEIGHT - 8}" fill="{GREY}" '
        f'font-size="12" text-anchor="middle">{label}</text></svg>'
    )


def _draw_tick(x: float, y: float, text: str, *, x_end: float) -> str:
    return (
        f'<line x1="{x:.1f}" x2="{x_end:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>'
        f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" fill="{GREY}" font-size="11" '
        f'text-anchor="end">{text}</text>'
    )


def _draw_system(one: Mapping[str, Any], x: float, y_of: Callable[[float], float]) -> str:
    y = y_of(float(one["share"]))
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y_of(one["low"]):.1f}" y2="{y_of(one["high"]):.1f}" '
        f'stroke="{GREY}" stroke-width="2"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{ACCENT}"/>'
        f'<text x="{x + 9:.1f}" y="{y + 4:.1f}" fill="{INK}" font-size="12">'
        f"{Markup.escape(one['name'])} {100 * one['share']:.0f} %</text>"
    )
