"""Where the steps of a workflow stand in its picture. Pure.

Steps stand in rows: each below everything it reads. An arrow that passes a row it does not end in
has a lane of its own there, so that it never runs behind a step. Widths are shares of the
picture's width and heights are pixels, so that the same picture fits a phone and a desk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from batuta.core import Workflow

WIDTH = 1000.0
"""Of a picture, in its own units."""
BOX_HEIGHT = 92
"""Pixels."""
GAP = 38
"""Pixels between two rows."""
_LANE = 0.16
"""Width of a lane, in boxes."""
_SPACE = 0.08
"""Between two neighbours, in boxes."""
_WIDEST = 0.62
"""Share of the picture that a box may take."""
_SWEEPS = 4


class Cell(NamedTuple):
    """A place in a row: a step, or the lane of an arrow."""

    row: int
    source: int
    target: int
    """The arrow's; `source` again where the cell is a step."""


Rows = list[list[Cell]]


@dataclass(frozen=True, slots=True)
class Box:
    """A step's rectangle."""

    index: int
    x: float
    y: int
    width: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """From a step to one that reads it."""

    source: int
    target: int
    path: str
    """As SVG writes it."""
    far: bool
    """Whether it passes a row on its way."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes in the order of their steps, and the arrows between them."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    height: int


def draw(workflow: Workflow) -> Picture:
    """The picture of a workflow."""
    levels = workflow.levels
    chains = [
        _chain(source, target, levels)
        for target, step in enumerate(workflow.steps)
        for source in step.access
    ]
    cells = {Cell(level, index, index) for index, level in enumerate(levels)}.union(*chains)
    rows = _ordered(
        [sorted(c for c in cells if c.row == r) for r in range(max(levels) + 1)], chains
    )
    unit = min(WIDTH / max(map(_span, rows)), WIDTH * _WIDEST)
    middles = {cell: x for row in rows for cell, x in _middles(row, unit)}
    boxes = tuple(
        Box(i, round(middles[Cell(level, i, i)] - unit / 2, 1), _top(level), round(unit, 1))
        for i, level in enumerate(levels)
    )
    arrows = tuple(
        Arrow(c[0].source, c[-1].source, _path(c, middles), far=len(c) > 2)  # noqa: PLR2004 - ends
        for c in chains
    )
    return Picture(boxes, arrows, _top(workflow.depth) - GAP)


def _top(row: int) -> int:
    return row * (BOX_HEIGHT + GAP)


def _chain(source: int, target: int, levels: Sequence[int]) -> list[Cell]:
    """The cells that an arrow touches, from its source to its target."""
    between = range(levels[source] + 1, levels[target])
    lanes = [Cell(row, source, target) for row in between]
    return [Cell(levels[source], source, source), *lanes, Cell(levels[target], target, target)]


def _ordered(rows: Rows, chains: Sequence[Sequence[Cell]]) -> Rows:
    """The rows, each sorted by where its neighbours stand, so that few arrows cross."""
    links = [link for chain in chains for link in pairwise(chain)]
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            beside = rows[row - 1 if down else row + 1]
            at = {cell: (place + 0.5) / len(beside) for place, cell in enumerate(beside)}
            pairs = [(b, a) if down else (a, b) for a, b in links]
            pulls = {c: [at[o] for own, o in pairs if own == c and o in at] for c in rows[row]}
            rows[row].sort(key=lambda cell: fmean(pulls[cell] or [0.5]))
    return rows


def _weight(cell: Cell) -> float:
    return 1.0 if cell.source == cell.target else _LANE


def _span(row: Sequence[Cell]) -> float:
    """The row's width, in boxes."""
    return sum(map(_weight, row)) + _SPACE * (len(row) - 1)


def _middles(row: Sequence[Cell], unit: float) -> Iterator[tuple[Cell, float]]:
    """The middle of each cell; the row stands in the middle of the picture."""
    left = (WIDTH - _span(row) * unit) / 2
    for cell in row:
        width = _weight(cell) * unit
        yield cell, left + width / 2
        left += width + _SPACE * unit


def _path(chain: Sequence[Cell], middles: Mapping[Cell, float]) -> str:
    """A line that leaves and enters each row upright."""
    parts = [f"M{middles[chain[0]]:.1f} {_top(chain[0].row) + BOX_HEIGHT}"]
    for cell in chain[1:]:
        x, y, before = middles[cell], _top(cell.row), middles[chain[cell.row - chain[0].row - 1]]
        parts.append(f"C{before:.1f} {y - GAP / 2:g} {x:.1f} {y - GAP / 2:g} {x:.1f} {y}")
        if cell is not chain[-1]:
            parts.append(f"V{y + BOX_HEIGHT}")
    return "".join(parts)
