"""The report as one page that needs no other file and no network. Needs jinja2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batuta.distribution import install_hint
from batuta.errors import ConfigError
from batuta.evals import report_index
from batuta.evals.charts import ACCENT, GREY, GRID, INK, PAPER
from batuta.evals.cost_quality_text import cost_tables
from batuta.evals.markdown_report import (
    COMPARISON_HEADS,
    TABLE_HEADS,
    comparison_rows,
    format_percent,
    report_headline,
    report_notes,
    report_title,
    table_rows,
)
from batuta.evals.report import Json

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
except ImportError:
    raise ConfigError(f"a page needs jinja2: {install_hint('plots')}") from None

_COLOUR_VARIABLES = {
    INK: "--ink",
    GREY: "--grey",
    GRID: "--grid",
    PAPER: "--paper",
    ACCENT: "--accent",
}
"""Colours of the figures that follow the page's own, by day and by night."""


def render_report_html(found: Json, figures: Mapping[str, str]) -> str:
    """The page.

    Args:
        found: the report.
        figures: SVG documents by the figures' names.
    """
    return _render_template(
        "report.html.jinja",
        title=report_title(found),
        headline=report_headline(found),
        percent=format_percent,
        found=found,
        heads=TABLE_HEADS,
        rows=table_rows(found),
        notes=report_notes(found),
        paired_heads=COMPARISON_HEADS,
        paired=comparison_rows(found) if found["differences"] else [],
        cost_tables=cost_tables(found),
        figures={name: Markup(_inline_svg(text)) for name, text in figures.items()},  # noqa: S704
        families=sorted({f for s in found["systems"].values() for f in s["by_family"]}),
    )


def render_index_html(found: report_index.Reports) -> str:
    """The page that leads to the page of each report, in its folder."""
    return _render_template(
        "index.html.jinja",
        title=report_index.index_title(found),
        about=report_index.TABLE_LEGEND,
        heads=report_index.index_heads(found),
        lines=report_index.index_rows(found),
    )


def _render_template(template: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("batuta.evals", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def _inline_svg(svg: str) -> str:
    """The picture alone, in the page's colours and as wide as there is room."""
    svg = svg[svg.index("<svg") :]
    for colour, variable in _COLOUR_VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.replace("<svg ", '<svg aria-hidden="true" style="max-width:100%;height:auto" ', 1)
