"""The tables and the notes of a report on cost and quality."""

from __future__ import annotations

from batuta.evals.cost_quality_report import Json

CURVE_HEADS = ("method", "systems", "AIQ, %")
GAP_HEADS = ("router", "weak", "strong", "APGR", "CPT(50 %)", "CPT(80 %)")
CostTable = tuple[str, tuple[str, ...], list[list[str]]]
"""Heading, heads, lines."""
_UNIT_WORDS = {"usd": "dollars", "tokens": "tokens", "calls": "calls"}


def cost_tables(report: Json) -> list[CostTable]:
    """The tables that the report has figures for."""
    tables: list[CostTable] = []
    if (found := report["cost_quality"]) is not None:
        words = _UNIT_WORDS[found["unit"]]
        span = " to ".join(_format_cost(found[end], found["unit"]) for end in ("low", "high"))
        ranked = sorted(found["curves"].items(), key=lambda item: -item[1]["aiq"])
        lines = [
            [name, ", ".join(curve["systems"]), f"{100 * curve['aiq']:.1f}"]
            for name, curve in ranked
        ]
        tables.append((f"Quality over cost, {span} {words} a question", CURVE_HEADS, lines))
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
        tables.append(("Between a weak and a strong worker", GAP_HEADS, lines))
    return tables


def cost_notes(report: Json) -> list[str]:
    """How the tables are to be read, and what is missing."""
    said: list[str] = []
    if report["cost_quality"] is not None:
        said.append(
            "AIQ (RouterBench, arXiv 2403.12031): the mean height of a method's non-decreasing "
            "convex hull over the range of cost of all systems; each hull begins with the cheapest "
            "of them."
        )
    recovered = report["recovered_gap"]
    if recovered["systems"]:
        said.append(
            "APGR and CPT (RouteLLM, arXiv 2406.18665): of the gap between two workers, the share "
            "recovered on average over the share of calls of the strong one (0.5: no better than a "
            "lot), and the least share of its calls that recovers half, or 80 %. Strong is the "
            "best worker on other questions, weak the cheapest of the others (without dollars: "
            "the weakest)."
        )
    if recovered["missing"]:
        workers = ", ".join(recovered["missing"])
        said.append(f"For APGR and CPT measure these too: --systems …,{workers.replace(' ', '')}.")
    said += (f"{name}: {about}." for name, lines in report["asks"].items() for about in lines)
    return said


def _format_share(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _format_cost(cost: float, unit: str) -> str:
    return (
        f"{cost:.3g}" if unit == "usd" else f"{cost:,.10g}" if unit == "tokens" else f"{cost:.2f}"
    )
