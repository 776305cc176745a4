"""The report as one page that needs no other file and no network. Needs jinja2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batuta.errors import ConfigError
from batuta.evals import index
from batuta.evals.charts import ACCENT, GREY, GRID, INK, PAPER
from batuta.evals.markdown import HEADS, PAIRED, headline, notes, paired, percent, rows, title
from batuta.evals.report import Json

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
except ImportError:
    raise ConfigError("a page needs jinja2: pip install 'batuta[plots]'") from None

_VARIABLES = {INK: "--ink", GREY: "--grey", GRID: "--grid", PAPER: "--paper", ACCENT: "--accent"}
"""Colours of the figures that follow the page's own, by day and by night."""


def html(found: Json, figures: Mapping[str, str]) -> str:
    """The page.

    Args:
        found: the report.
        figures: SVG documents by the figures' names.
    """
    return _rendered(
        "report.html.jinja",
        title=title(found),
        headline=headline(found),
        percent=percent,
        found=found,
        heads=HEADS,
        rows=rows(found),
        notes=notes(found),
        paired_heads=PAIRED,
        paired=paired(found) if found["differences"] else [],
        figures={name: Markup(_inline(text)) for name, text in figures.items()},  # noqa: S704
        families=sorted({f for s in found["systems"].values() for f in s["by_family"]}),
    )


def index_html(found: index.Reports) -> str:
    """The page that leads to the page of each report, in its folder."""
    return _rendered(
        "index.html.jinja",
        title=index.title(found),
        about=index.ABOUT,
        heads=index.heads(found),
        lines=index.lines(found),
    )


def _rendered(template: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("batuta.evals", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def _inline(svg: str) -> str:
    """The picture alone, in the page's colours and as wide as there is room."""
    svg = svg[svg.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.replace("<svg ", '<svg aria-hidden="true" style="max-width:100%;height:auto" ', 1)
