"""What a tuning found: as JSON, as Markdown, as a page; and the settings that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from batuta.core import Task
from batuta.core.formatting import format_usd
from batuta.errors import StoreError
from batuta.solvers.workflow_selector import describe_steps, save_workflow_selector
from batuta.tune.candidate_runner import CallMeter
from batuta.tune.context import TuneSettings
from batuta.tune.judge import Comparison, Verdict
from batuta.tune.library import Candidate, write_continuation, write_workflow
from batuta.tune.parts import QuestionParts
from batuta.tune.result import TuneResult
from batuta.tune.stages import BEST_SINGLE, MINI, ULTRA
from batuta.tune.systems import TunedSystem, with_about

Json = dict[str, Any]

SELECTOR = "selector"
"""The folder of the selector, beside the report."""
_GOOD = frozenset({Verdict.BETTER, Verdict.CHEAPER})


def describe_tuning(
    result: TuneResult, parts: QuestionParts, settings: TuneSettings, meter: CallMeter
) -> Json:
    """Everything that is known, as JSON values; the same for the same replies."""
    return {
        "kind": "tuning",
        "budget": {
            "usd": _usd_number(settings.allowance.usd),
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
        "questions": {
            "search": len(parts.search),
            "selection": len(parts.selection),
            "finalists": len(parts.finalists),
            "judgement": len(parts.judgement),
            "doubles": parts.doubles,
        },
        "groups": list(result.grouping.names),
        "workers": [_card_json(card) for card in result.cards],
        "left_out": list(result.left_out),
        "tried": result.tried,
        "expected": result.believed,
        "workflows": _describe_workflows(result),
        "rewritten": _describe_rewriting(result),
        "selection": [asdict(one) | {"seconds": None} for one in result.selection],
        "finalists": [asdict(one) | {"seconds": None} for one in result.finalists],
        "judged": [asdict(one) | {"seconds": None} for one in result.judged],
        "comparisons": [asdict(one) for one in result.comparisons],
        "break_even": break_even(result.comparisons, float(meter.usd)),
        "recommendation": recommend_systems(result),
    }


def _usd_number(usd: Any) -> float | None:
    return None if usd is None else float(usd)


def _card_json(card: Any) -> Json:
    return {name: value for name, value in asdict(card).items() if name != "seconds"}


def _describe_workflows(result: TuneResult) -> list[Json]:
    """The workflow of each group, for the system that was nominated; the hardest group first."""
    system = (result.nominees or {}).get(ULTRA)
    if system is None:
        return []
    rank = system.selector.rank_glw
    rows: list[Json] = []
    for group, name in enumerate(result.grouping.names):
        levels = [system.library[int(place)] for place in rank[group, :, 0]]
        for level, candidate in enumerate(levels):
            if level and candidate == levels[level - 1]:
                rows[-1]["to"] = level + 1
                continue
            steps = _all_steps(candidate)
            rows.append(
                {"group": name, "from": level + 1, "to": level + 1, "levels": len(levels),
                 "workflow": str(candidate), "steps": steps}
            )  # fmt: skip
    return rows


def _describe_rewriting(result: TuneResult) -> Json | None:
    """What became of the subtasks of the workflow that is run most."""
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
    """Those after a look too."""
    later = write_continuation(candidate)
    return describe_steps(write_workflow(candidate)) + (describe_steps(later) if later else [])


def recommend_systems(result: TuneResult) -> Json:
    """Which system is recommended for mini and for ultra, and the sentence why."""
    best = result.pool.ranked()[0].id
    if not result.comparisons:
        why = "Nothing was judged, so nothing is recommended beyond the best single worker."
        return {ULTRA: None, MINI: None, "best": best, "why": [why]}
    chosen: dict[str, str | None] = {}
    reasons: list[str] = []
    for one in result.comparisons:
        good = one.verdict in _GOOD
        chosen[one.nominee] = SELECTOR if good else None
        reasons.append(_recommendation_reason(one, best, good=good))
    return {**chosen, "best": best, "why": reasons}


def _recommendation_reason(one: Comparison, best: str, *, good: bool) -> str:
    served = f"batuta-{one.nominee}"
    if one.verdict is Verdict.SAME:
        return f"{served}: the best single worker, {best}; the search found nothing else for it."
    if one.difference is None or one.low is None or one.high is None:
        return f"{served}: the best single worker, {best}; {one.questions} questions judge nothing."
    gain = f"{100 * one.difference:+.1f} points ({100 * one.low:+.1f} to {100 * one.high:+.1f})"
    against = f"{gain} against {one.opponent} on {one.questions} questions kept back"
    if one.verdict is Verdict.BETTER:
        return f"{served}: the selector; {against}, p = {one.p_corrected:.2g} after Holm."
    if good:
        return f"{served}: the selector; {against}: not worse by more than 2 points, and cheaper."
    if one.verdict is Verdict.WORSE:
        return f"{served}: the best single worker, {best}; the selector is worse, {against}."
    could = (
        ""
        if one.detectable is None
        else (f"; so many questions show a gain from {100 * one.detectable:.1f} points on")
    )
    no_proof = f"the selector has {against}, which is no proof{could}"
    return f"{served}: the best single worker, {best}; {no_proof}."


def break_even(comparisons: Sequence[Comparison], spent: float) -> Json:
    """After how many questions the tuning has paid for itself, where the nominee is cheaper."""
    found: Json = {}
    for one in comparisons:
        saves = one.verdict in _GOOD and one.usd_saved > 0
        found[one.nominee] = round(spent / one.usd_saved) if saves else None
    return found


def write_results(
    folder: Path,
    found: Json,
    result: TuneResult,
    tasks: Sequence[Task],
    *,
    settings_text: str | None,
) -> None:
    """Write the report, the selector, the settings and what a conductor may learn from.

    Raises:
        StoreError: the folder cannot be written.
    """
    system = (result.nominees or {}).get(ULTRA) or (result.systems or (None,))[-1]
    files = {
        "report.json": orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n",
        "report.md": render_markdown(found),
        "report.html": render_html(found),
    }
    if settings_text is not None:
        files["batuta.toml"] = settings_text
    if system is not None:
        save_workflow_selector(with_about(system, _summary_fields(found)), folder / SELECTOR)
        files["workflows.jsonl"] = _examples_text(system, tasks)
    write_files(folder, files)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write each text under its name.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from None


def _summary_fields(found: Json) -> Json:
    return {name: found[name] for name in ("spent", "judged", "comparisons", "recommendation")}


def _examples_text(system: TunedSystem, tasks: Sequence[Task]) -> str:
    """Each question of the search with the workflow that the system runs on it."""
    assignment = system.assign(tasks)
    lines: list[str] = []
    for task in tasks:
        steps = describe_steps(write_workflow(assignment[task.id].without_look()))
        lines.append(
            orjson.dumps({"id": task.id, "question": task.question, "steps": steps}).decode()
        )
    return "\n".join(lines) + "\n"


# -- for people ----------------------------------------------------------------------------


def render_markdown(found: Json) -> str:
    """The report as Markdown."""
    return (
        _template_environment(html=False)
        .get_template("report.md.jinja")
        .render(**_template_values(found))
    )


def render_html(found: Json) -> str:
    """The report as one page that needs no other file."""
    return (
        _template_environment(html=True)
        .get_template("report.html.jinja")
        .render(**_template_values(found))
    )


def _template_environment(*, html: bool) -> Environment:
    loader = ChoiceLoader([PackageLoader("batuta.tune", ""), PackageLoader("batuta.evals", "")])
    return Environment(
        loader=loader,
        autoescape=html,  # noqa: S701 - Markdown is no HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _template_values(found: Json) -> Json:
    judged = found["judged"] or found["finalists"] or found["selection"]
    return {
        "found": found,
        "judged": judged,
        "percent": format_percent,
        "dollars": format_dollars,
        "title": "A tuned pool",
        "front": Markup(draw_front(judged)),  # noqa: S704 - names are escaped there
        "best": BEST_SINGLE,
    }


def format_percent(share: float | None) -> str:
    """With one decimal; a dash for nothing."""
    return "–" if share is None else f"{100 * share:.1f}"


def format_dollars(usd: float | None) -> str:
    """As every screen shows dollars; a dash for nothing."""
    return "–" if usd is None else format_usd(usd)


_WIDTH, _HEIGHT, _EDGE = 560, 260, 46


def draw_front(systems: Sequence[Mapping[str, Any]]) -> str:
    """The share right over the dollars of a question, as SVG; over calls where all is free."""
    known = [one for one in systems if one["share"] is not None]
    if not known:
        return ""
    unit = "usd" if any(one["usd"] for one in known) else "calls"
    most = max(float(one[unit]) for one in known) * 1.1 or 1.0
    low = min(float(one["low"]) for one in known)
    span = max(1.0 - low, 0.05)
    marks: list[str] = []
    for one in known:
        x = _EDGE + (_WIDTH - 3 * _EDGE) * float(one[unit]) / most

        def at(share: float) -> float:
            return _EDGE / 2 + (_HEIGHT - 1.5 * _EDGE) * (1 - (share - low) / span)

        y = at(float(one["share"]))
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{at(one["low"]):.1f}" y2="{at(one["high"]):.1f}" '
            'stroke="var(--grid)" stroke-width="3"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="var(--accent)"/>'
            f'<text x="{x + 9:.1f}" y="{y + 4:.1f}" fill="var(--ink)" font-size="12">'
            f"{Markup.escape(one['name'])} {100 * one['share']:.0f} %</text>"
        )
    label = "dollars a question" if unit == "usd" else "calls a question"
    axis = (
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 8}" fill="var(--grey)" font-size="12" '
        f'text-anchor="middle">{label} (0 to {most:.3g})</text>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="Share right over {label}" style="max-width:100%;height:auto">'
        f"{''.join(marks)}{axis}</svg>"
    )
