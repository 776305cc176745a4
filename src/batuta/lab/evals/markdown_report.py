"""Renders a report as Markdown, from which `html_report` makes a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batuta.core import formatting
from batuta.lab.evals.report import Json
from batuta.lab.evals.stats import MIN_GROUPS
from batuta.lab.evals.systems import BEST_SINGLE

TABLE_HEADS = (
    "system", "right %", "95 %", "n", "calls", "steps", "tokens", "dollars", "seconds",
    "conductor's tokens",
)  # fmt: skip
"""Columns of the main table. From `calls` on, figures are means per question; the last column is
the part of the tokens that was spent on planning."""

UNKNOWN = "–"
"""The sign for an unknown figure, which is not the same as zero."""

LOST = "outages, or answers that could not be graded"
"""The reasons why a worker is not measured on a question, for notes."""

_SYSTEMS = (
    "Ways of answering questions with a pool of language models, on the same questions and with "
    "the same accounting. A system is one such way: a model alone, a vote, a pipeline, or a "
    "conductor that decides for each question which models do what."
)
_COLUMNS = """\
- right %: accuracy, the share of answers that the grader accepts
- 95 %: confidence interval of the accuracy
- calls, steps: model calls per question, including the conductor's; steps of the workflow
- tokens, dollars: means per question, including planning; – if a price or a count is not known
- seconds: wall-clock time from question to answer"""
_COMPARED = (
    "Difference in points of accuracy; p: the p-value (McNemar's exact test if every question was "
    "run once and is right or wrong, else the paired bootstrap), and the p-value corrected for the "
    "number of comparisons by {}'s method."
)
CAPTIONS = {
    "accuracy": "Each system with its interval. Hollow: a reference line, not a method. "
    "Dotted: the best single worker.",
    "front": "Up is better, left is cheaper. The dashed line joins the systems that are better "
    "than every cheaper one.",
    "curves": "Accuracy of each method over the cost per question; beyond its most expensive "
    "system a curve is level.",
    "gap": "The questions on which a router rates the strong worker most above the weak one go to "
    "it first.",
    "difficulty": "Accuracy by difficulty, with easy questions on the left.",
    "depth": "Sequential steps by difficulty, one line per family.",
    "team": "The share of each system's calls that goes to each worker.",
    "calls": "The workers that the conductor calls, by family and by kind of subtask.",
}
"""Captions of the figures, by name."""


def render_markdown(report: Json, figures: Iterable[str] = ()) -> str:
    """Return the whole report as Markdown.

    `figures` are the names of the figures that exist as PNG files beside the report.
    """
    systems = report["systems"]
    levels = sorted(_group_keys(systems, "by_difficulty"), key=float)
    families = _group_keys(systems, "by_family")
    parts = [
        f"# {report_title(report)}",
        report_headline(report),
        _SYSTEMS,
        "\n".join(f"- {line}" for line in report_notes(report)),
        markdown_table(TABLE_HEADS, table_rows(report)),
        _COLUMNS,
        *(f"![{CAPTIONS[name]}]({name}.png)" for name in figures),
    ]
    if (differences := report["differences"]) and differences["systems"]:
        parts += [
            f"## Against {differences['against']}, on the same questions",
            _COMPARED.format(differences["correction"]),
            markdown_table(COMPARISON_HEADS, comparison_rows(report)),
        ]
    for heading, heads, lines in _cost_tables(report):
        parts += [f"## {heading}", markdown_table(heads, lines)]
    if len(report["seeds"]) > 1:
        heads = ["system", *map(str, report["seeds"]), "standard deviation"]
        shares = (
            [*(one["by_seed"].get(str(seed)) for seed in report["seeds"]), one["seed_sd"]]
            for one in systems.values()
        )
        lines = [[n, *map(format_percent, row)] for n, row in zip(systems, shares, strict=True)]
        parts += ["## Right % with each seed", markdown_table(heads, lines)]
    for keys, part in ((families, "family"), (levels, "difficulty")):
        if len(keys) > 1:
            parts += [f"## Right % by {part}", _group_table(systems, part, keys, "accuracy")]
            parts += [f"## Depth by {part}", _group_table(systems, part, keys, "depth")]
    return "\n\n".join(part for part in parts if part) + "\n"


def report_title(report: Json) -> str:
    """Return a title: the task set, the number of questions, and how they were held out, if so."""
    questions = f"{report['tasks']}: {report['questions']} questions"
    if report["split"] in {None, "all"}:
        return questions
    splits = len(report["seeds"])
    of = "a split" if splits == 1 else f"{splits} splits"
    unseen = " of whole families" if report["split"] == "unseen" else " at random"
    return f"{questions} held out, {of}{unseen}"


def report_headline(report: Json) -> str:
    """Return the main result in a sentence; empty if no method was scored."""
    systems: Json = report["systems"]
    known = [n for n in systems if n not in report["references"] and systems[n]["n"]]
    if not known:
        return ""
    most = max(systems[name]["accuracy"] for name in known)
    equal = [name for name in known if systems[name]["accuracy"] == most]
    if most == 0:
        return f"No system was right: 0.0 %, {_describe_equals(equal, report)}."
    if len(equal) > 1:
        return f"Right most often: {_describe_equals(equal, report)}; {format_percent(most)} %."
    (best,) = equal
    found = (
        f"Right most often: {system_label(best, report)}, {format_percent(most)} % "
        f"({_format_interval(systems[best]['ci95'])})"
    )
    delta = report["differences"] and report["differences"]["systems"].get(best)
    if not delta:
        return f"{found}."
    return (
        f"{found}; {100 * delta['mean']:+.1f} points against {report['differences']['against']} "
        f"on the same questions ({100 * delta['low']:+.1f} to {100 * delta['high']:+.1f})."
    )


def _describe_equals(names: Sequence[str], report: Json) -> str:
    """Return the labels of equally accurate systems, the cheapest first if costs are known."""
    systems: Json = report["systems"]
    if len(names) == 1:
        return system_label(names[0], report)
    unit = next(
        (u for u in ("usd", "tokens") if all(systems[n][u] is not None for n in names)), None
    )
    ordered = sorted(names, key=lambda name: systems[name][unit]) if unit else list(names)
    labels = [system_label(name, report) for name in ordered]
    equals = f"{formatting.join_words(labels)} alike"
    if unit is None or systems[ordered[0]][unit] == systems[ordered[1]][unit]:
        return equals
    return f"{equals}, the cheapest first"


def table_rows(report: Json) -> list[list[str]]:
    """Return the rows of the main table, the most accurate system first."""
    systems: Json = report["systems"]
    order = sorted(systems, key=lambda name: -(systems[name]["accuracy"] or 0))
    return [_table_row(name, systems[name], report) for name in order]


def _table_row(name: str, figures: Json, report: Json) -> list[str]:
    unscored = f" (+{figures['unscored']} unscored)" if figures["unscored"] else ""
    return [
        system_label(name, report),
        format_percent(figures["accuracy"]),
        _format_interval(figures["ci95"]),
        f"{figures['n']}{unscored}",
        format_decimal(figures["calls"]),
        format_decimal(figures["steps"]),
        _mark_partial_mean(format_count(figures["tokens"]), figures, "tokens_unknown"),
        _mark_partial_mean(format_dollars(figures["usd"]), figures, "usd_unknown"),
        format_decimal(figures["seconds"]),
        format_count(figures["conductor_tokens"]),
    ]


def _mark_partial_mean(shown: str, figures: Json, unknown: str) -> str:
    """Mark a mean that covers only some runs; the notes explain the mark."""
    return f"{shown}†" if figures[unknown] and shown != UNKNOWN else shown


def system_label(name: str, report: Json) -> str:
    """Return the system's name with its marks, which the notes explain.

    A reference line is in brackets. A star marks simulated replies. ‡ and § mark systems that
    depend on a best worker chosen without measuring all workers.
    """
    star = "*" if report["systems"][name]["simulated_runs"] else ""
    if name in report["calibration"]["unmeasured"]:
        star += f" [{report['calibration']['assumed']}‡]" if name == BEST_SINGLE else "‡"
    elif name == BEST_SINGLE and (lacking := _unmeasured_workers(report)):
        star += f" [not measured: {', '.join(lacking)}§]"
    return f"({name}){star}" if name in report["references"] else f"{name}{star}"


def _unmeasured_workers(report: Json) -> list[str]:
    """Return the workers without a measured strength."""
    found: dict[str, float | None] = report["calibration"].get("strengths", {})
    return [worker for worker, strength in found.items() if strength is None]


def report_notes(report: Json) -> list[str]:
    """Return the notes that a reader of the table needs."""
    notes = [
        *_worker_notes(report),
        *_calibration_notes(report),
        *_reading_notes(report),
        *_missing_notes(report),
        *_cost_notes(report),
    ]
    if report["command"]:
        notes.append(f"Command: `{report['command']}`")
    return notes


def _worker_notes(report: Json) -> list[str]:
    notes: list[str] = []
    if report["simulated"]:
        notes.append("The workers are simulated: programs, not language models.")
    if report["recorded"]:
        notes.append(
            "The workers replay recorded answers; no model was called. Tokens and dollars are "
            "those of the record, or unknown (–); seconds are not reported."
        )
    if any(figures["simulated_runs"] for figures in report["systems"].values()):
        notes.append(
            "\\* A check, a repair or a summary that the record cannot contain is simulated by one "
            "of the model's recorded answers to the question: this does not measure the method."
        )
    return notes


def _calibration_notes(report: Json) -> list[str]:
    found: dict[str, float | None] = report["calibration"]["strengths"]
    known = {worker: strength for worker, strength in found.items() if strength is not None}
    if not known:
        return _unmeasured_best_worker_lines(report) if report["calibration"]["needed"] else []
    chosen_by_price = report["calibration"]["assumed"]
    best = max(known, key=lambda worker: (known[worker], worker == chosen_by_price))
    questions = report["calibration"]["questions"]
    chosen = (
        f"Best single worker on {questions} other questions: {best}, "
        f"{format_percent(known[best])} % "
        "right there; it was chosen on those, not on the questions of this table."
    )
    notes = [chosen, *_lost_calibration_notes(report)]
    if report["fitted"]:
        notes.append(f"Fitted to the same other questions: {', '.join(report['fitted'])}.")
    return notes


def _lost_calibration_notes(report: Json) -> list[str]:
    """Return notes on workers that were measured on only some calibration questions, or on none."""
    asked, measured = report["calibration"]["asked"], report["calibration"]["measured"]
    lacking = _unmeasured_workers(report)
    notes: list[str] = []
    if lacking:
        notes.append(
            f"§ {', '.join(lacking)} could not be measured on the other questions ({LOST}), and "
            "could not be chosen as the best single worker."
        )
    fewer = [f"{w} on {n}" for w, n in measured.items() if n < asked and w not in lacking]
    if fewer and not report["recorded"]:
        notes.append(
            f"Of {asked} other questions some workers were measured on fewer ({LOST}): "
            f"{', '.join(fewer)}."
        )
    return notes


def _unmeasured_best_worker_lines(report: Json) -> list[str]:
    """Return a note on the worker that is taken as the best because no worker was measured."""
    known = report["calibration"]
    lost = bool(known["strengths"])
    why = (
        f"No worker could be measured on the other questions ({LOST})"
        if lost
        else "There were no other questions to measure the workers on"
    )
    note = (
        f"‡ {why}: {known['assumed']} is taken as the best single worker, because {known['why']}; "
        "another worker may be better."
    )
    more = (
        "Use fewer questions with --limit (for a record another --split), so that the rest can "
        "measure the workers."
    )
    return [note if lost else f"{note} {more}"]


def _reading_notes(report: Json) -> list[str]:
    notes: list[str] = []
    if report["references"]:
        notes.append(
            "In brackets: reference lines, not methods. oracle and pass@k: right if any reply "
            "is. skill-oracle@k: each question goes to the worker that did best on its other "
            "samples."
        )
    if report["split"] == "unseen":
        notes.append(
            "Intervals and tests resample whole families, since whole families were held out; "
            f"they need at least {MIN_GROUPS} families."
        )
    if report["sub_pool"]:
        notes.append(f"Each question had {report['sub_pool']} random workers in random order.")
    if not report["recorded"]:
        others = report["concurrency"] - 1
        unknown = any(one["n"] and one["seconds"] is None for one in report["systems"].values())
        replayed = "; unknown (–) if replies of finished calls were used again" if unknown else ""
        notes.append(f"Seconds were measured with up to {others} other runs in parallel{replayed}.")
    rounding = "rounded up, or all that the record has" if report["recorded"] else "rounded up"
    notes += (
        f"Equal {budget['what']}: {budget['of']} takes {budget['amount']:.4g} per question, "
        f"compared with {budget['k']} samples of the best worker ({rounding})."
        for budget in report["budgets"]
    )
    return notes


def _record_notes(report: Json) -> list[str]:
    """Return notes on the questions and texts that a record lacks."""
    notes: list[str] = []
    if report["incomplete"]:
        few = f"{report['incomplete']:,}"
        notes.append(f"Questions that not every worker answered, left out: {few}.")
    if sets := ", ".join(report.get("unread", ())):
        notes.append(
            "Sets whose questions are not in the data folder, so that routers read only their ids: "
            f"{sets} (`batuta tasks fetch` gets a set)."
        )
    return notes


def _missing_notes(report: Json) -> list[str]:
    notes: list[str] = []
    if missing := report.get("unasked"):
        notes.append(
            f"The budget was spent before all runs were started: {missing} runs are missing."
        )
    notes += [f"Left out: {name} ({reason})." for name, reason in report["left_out"].items()]
    systems = report["systems"].items()
    notes += _record_notes(report)
    for what, word in (("tokens", "tokens"), ("usd", "dollars")):
        partly = [(name, s[f"{what}_unknown"]) for name, s in systems if s[what] is not None]
        if listed := ", ".join(f"{name} {n}" for name, n in partly if n):
            notes.append(f"† Runs whose {word} are not known, left out of that mean: {listed}.")
    if unscored := ", ".join(f"{name} {s['unscored']}" for name, s in systems if s["unscored"]):
        notes.append(
            f"Runs without a score (outages, undecided grades), not counted as wrong: {unscored}."
        )
    if listed := ", ".join(f"{name} {s['invalid']}" for name, s in systems if s["invalid"]):
        notes.append(
            f"Plans that asked for something the record lacks, counted as wrong: {listed}."
        )
    if judged := ", ".join(
        f"{name} {format_dollars(s['judge_usd'])}" for name, s in systems if s["judge_usd"]
    ):
        notes.append(f"Dollars per question for grading the answers, included above: {judged}.")
    return notes


def markdown_table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; all columns but the first are right-aligned."""
    head, *rows = ([escape_cell(cell) for cell in line] for line in (heads, *lines))
    rule = ["---", *(["---:"] * (len(head) - 1))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def escape_cell(text: str) -> str:
    """Return the text for one cell of a Markdown table: in one line, with escaped bars."""
    return " ".join(text.splitlines()).replace("|", r"\|")


def format_percent(share: float | None) -> str:
    """Return a share in per cent with one decimal; a dash if unknown."""
    return UNKNOWN if share is None else f"{100 * share:.1f}"


def _format_interval(bounds: tuple[float, float] | None) -> str:
    return UNKNOWN if bounds is None else f"{format_percent(bounds[0])}–{format_percent(bounds[1])}"


def format_dollars(value: float | None) -> str:
    """Return an amount in dollars; a dash if unknown."""
    return UNKNOWN if value is None else formatting.format_usd(value)


def format_decimal(value: float | None) -> str:
    """Return a number with two decimals; a dash if unknown."""
    return UNKNOWN if value is None else f"{value:.2f}"


def format_count(value: float | None) -> str:
    """Return a number without decimals, with thousands separators; a dash if unknown."""
    return UNKNOWN if value is None else formatting.format_count(value)


def _group_keys(systems: Json, part: str) -> list[str]:
    return sorted({key for figures in systems.values() for key in figures[part]})


def _group_table(systems: Json, part: str, keys: list[str], figure: str) -> str:
    """Return a table of a figure with a row per key and a column per system."""
    shown = format_percent if figure == "accuracy" else format_decimal
    lines = (
        [key, *(shown(one[f"by_{part}"].get(key, {}).get(figure)) for one in systems.values())]
        for key in keys
    )
    return markdown_table([part, *systems], lines)


COMPARISON_HEADS = ("system", "points", "95 %", "p", "p, Holm", "test", "questions")
"""Columns of the comparison with the first system."""


def comparison_rows(report: Json) -> list[list[str]]:
    """Return the rows of the comparison with the first system."""
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


# -- cost and quality ---------------------------------------------------------------------

_CURVE_HEADS = ("method", "systems", "AIQ, %")
_GAP_HEADS = ("router", "weak", "strong", "APGR", "CPT(50 %)", "CPT(80 %)")
_CostTable = tuple[str, tuple[str, ...], list[list[str]]]
"""The heading, the column heads and the rows of a table."""
_UNIT_WORDS = {"usd": "dollars", "tokens": "tokens", "calls": "calls"}


def _cost_tables(report: Json) -> list[_CostTable]:
    """Return the tables on cost and quality for which there are figures."""
    tables: list[_CostTable] = []
    if (found := report["cost_quality"]) is not None:
        words = _UNIT_WORDS[found["unit"]]
        span = " to ".join(_format_cost(found[end], found["unit"]) for end in ("low", "high"))
        ranked = sorted(found["curves"].items(), key=lambda item: -item[1]["aiq"])
        lines = [
            [name, ", ".join(curve["systems"]), f"{100 * curve['aiq']:.1f}"]
            for name, curve in ranked
        ]
        tables.append((f"Quality over cost, {span} {words} per question", _CURVE_HEADS, lines))
    if routers := report["recovered_gap"]["systems"]:
        ranked = sorted(routers.items(), key=lambda item: -item[1]["apgr"])
        lines = [
            [
                name,
                ", ".join(one["weak"]),
                ", ".join(one["strong"]),
                f"{one['apgr']:.3f}",
                _format_share(one["cpt50"]),
                _format_share(one["cpt80"]),
            ]
            for name, one in ranked
        ]
        tables.append(("Between a weak and a strong worker", _GAP_HEADS, lines))
    return tables


def _cost_notes(report: Json) -> list[str]:
    """Return notes on how to read the cost tables, and on what they lack."""
    notes: list[str] = []
    if report["cost_quality"] is not None:
        notes.append(
            "AIQ (RouterBench, arXiv 2403.12031): the mean height of a method's non-decreasing "
            "convex hull over the range of cost of all systems; each hull begins with the cheapest "
            "of them."
        )
    recovered = report["recovered_gap"]
    if recovered["systems"]:
        notes.append(
            "APGR and CPT (RouteLLM, arXiv 2406.18665): APGR is the share of the gap between a "
            "weak and a strong worker that is recovered, averaged over the share of calls to the "
            "strong one (0.5: no better than chance). CPT is the smallest share of such calls that "
            "recovers 50 % or 80 % of the gap. Strong is the best worker on other questions, weak "
            "the cheapest of the others (without dollars: the weakest)."
        )
    if recovered["missing"]:
        workers = ", ".join(recovered["missing"])
        notes.append(f"For APGR and CPT measure these too: --systems …,{workers.replace(' ', '')}.")
    notes += (f"{name}: {about}." for name, lines in report["asks"].items() for about in lines)
    return notes


def _format_share(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def _format_cost(cost: float, unit: str) -> str:
    form = {"usd": ".3g", "tokens": ",.10g"}.get(unit, ".2f")
    return f"{cost:{form}}"
