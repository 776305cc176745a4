"""Lays out a workflow's steps and arrows as a picture.

Steps are arranged in rows, each step below all steps that it reads. An arrow that passes through a
row gets its own lane there, so that it never runs behind a step. Widths are relative to the picture
and heights are in pixels, so that the picture fits narrow and wide screens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from batuta.core import Workflow

WIDTH = 1000.0
"""The width of a picture, in the units of its view box."""
BOX_HEIGHT = 92
"""Height of a box in pixels."""
GAP = 38
"""Distance between two rows in pixels."""
_LANE = 0.16
"""Width of a lane, in box widths."""
_SPACE = 0.08
"""Distance between two neighbours in a row, in box widths."""
_WIDEST = 0.62
"""Maximum width of a box, as a fraction of the picture's width."""
_SWEEPS = 4
"""Number of passes that reorder the rows."""


class LayoutCell(NamedTuple):
    """A cell of a row: a step, or the lane of an arrow."""

    row: int
    source: int
    target: int
    """The arrow's target; equal to `source` if the cell is a step."""


LayoutRows = list[list[LayoutCell]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A step's rectangle; `x` and `width` are in units of the view box, `y` in pixels."""

    index: int
    x: float
    y: int
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """An arrow from a step to a step that reads it."""

    source: int
    target: int
    path: str
    """The SVG path."""
    passes_rows: bool
    """Whether the arrow passes through rows between its ends."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes in the order of their steps, and the arrows between them; the height is in pixels."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    height: int


def draw_workflow(workflow: Workflow) -> Picture:
    """Return the picture of a workflow."""
    levels = workflow.levels
    chains = [
        _arrow_cells(source, target, levels)
        for target, step in enumerate(workflow.steps)
        for source in step.access
    ]
    cells = {LayoutCell(level, index, index) for index, level in enumerate(levels)}.union(*chains)
    rows = _order_rows(
        [sorted(c for c in cells if c.row == r) for r in range(max(levels) + 1)], chains
    )
    unit = min(WIDTH / max(map(_row_width, rows)), WIDTH * _WIDEST)
    middles = {cell: x for row in rows for cell, x in _cell_middles(row, unit)}
    boxes = tuple(
        Box(
            index=i,
            x=round(middles[LayoutCell(level, i, i)] - unit / 2, 1),
            y=_row_top(level),
            width=round(unit, 1),
        )
        for i, level in enumerate(levels)
    )
    arrows = tuple(
        Arrow(
            source=c[0].source,
            target=c[-1].source,
            path=_arrow_path(c, middles),
            passes_rows=len(c) > 2,  # noqa: PLR2004 - more than its two ends
        )
        for c in chains
    )
    return Picture(boxes, arrows, _row_top(workflow.depth) - GAP)


def _row_top(row: int) -> int:
    return row * (BOX_HEIGHT + GAP)


def _arrow_cells(source: int, target: int, levels: Sequence[int]) -> list[LayoutCell]:
    """Return the cells that an arrow touches, from its source to its target."""
    between = range(levels[source] + 1, levels[target])
    lanes = [LayoutCell(row, source, target) for row in between]
    return [
        LayoutCell(levels[source], source, source),
        *lanes,
        LayoutCell(levels[target], target, target),
    ]


def _order_rows(rows: LayoutRows, chains: Sequence[Sequence[LayoutCell]]) -> LayoutRows:
    """Sort each row by the positions of linked cells, so that few arrows cross; return the rows."""
    links = [link for chain in chains for link in pairwise(chain)]
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            beside = rows[row - 1 if down else row + 1]
            at = {cell: (index + 0.5) / len(beside) for index, cell in enumerate(beside)}
            pairs = [(b, a) if down else (a, b) for a, b in links]
            pulls = {c: [at[o] for own, o in pairs if own == c and o in at] for c in rows[row]}
            rows[row].sort(key=lambda cell: fmean(pulls[cell] or [0.5]))
    return rows


def _cell_width(cell: LayoutCell) -> float:
    return 1.0 if cell.source == cell.target else _LANE


def _row_width(row: Sequence[LayoutCell]) -> float:
    """Return the row's width, in box widths."""
    return sum(map(_cell_width, row)) + _SPACE * (len(row) - 1)


def _cell_middles(row: Sequence[LayoutCell], unit: float) -> Iterator[tuple[LayoutCell, float]]:
    """Yield the horizontal centre of each cell; the row is centred in the picture."""
    left = (WIDTH - _row_width(row) * unit) / 2
    for cell in row:
        width = _cell_width(cell) * unit
        yield cell, left + width / 2
        left += width + _SPACE * unit


def _arrow_path(chain: Sequence[LayoutCell], middles: Mapping[LayoutCell, float]) -> str:
    """Return the SVG path of an arrow, which leaves and enters each row vertically."""
    parts = [f"M{middles[chain[0]]:.1f} {_row_top(chain[0].row) + BOX_HEIGHT}"]
    for before, cell in pairwise(chain):
        x, y = middles[cell], _row_top(cell.row)
        bend = f"{y - GAP / 2:g}"
        parts.append(f"C{middles[before]:.1f} {bend} {x:.1f} {bend} {x:.1f} {y}")
        if cell is not chain[-1]:
            parts.append(f"V{y + BOX_HEIGHT}")
    return "".join(parts)
