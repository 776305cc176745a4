"""Renders a run for notebooks: the workflow as a drawing and a table, then the answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_COLUMN, _ROW, _RADIUS = 92, 46, 15
_FILL = {"done": "#2f855a", "failed": "#c53030", "waiting": "#718096"}
_HEAD = ("step", "worker", "reads", "subtask", "tokens", "cost", "time")
_CELL = "text-align:left;vertical-align:top;padding:2px 10px 2px 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step of a workflow, formatted for display."""

    worker: str
    subtask: str
    reads: tuple[int, ...]
    """Indices of the earlier steps that the step reads."""
    level: int
    """Number of steps that must end one after another before this one starts."""
    state: str = "waiting"
    """`done`, `failed` or `waiting`."""
    tokens: str = ""
    cost: str = ""
    time: str = ""


def render_run_html(rounds: Sequence[Sequence[StepRow]], summary: str, answer: str | None) -> str:
    """Return HTML without scripts or external styles, with all model output escaped.

    Args:
        rounds: the steps of each round's workflow.
        summary: one line on the whole run.
        answer: the answer's text, shown below the summary; None: none is shown.
    """
    drawn = "".join(_render_round(rows) for rows in rounds if rows)
    shown = "" if answer is None else f'<pre style="white-space:pre-wrap">{escape(answer)}</pre>'
    return f'<div class="batuta-run">{drawn}<p><small>{escape(summary)}</small></p>{shown}</div>'


def _render_round(rows: Sequence[StepRow]) -> str:
    head = "".join(f'<th style="{_CELL}">{name}</th>' for name in _HEAD)
    body = "".join(_render_row(index, row) for index, row in enumerate(rows))
    return (
        f"{_render_graph(rows)}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _render_row(index: int, row: StepRow) -> str:
    reads = ", ".join(str(earlier + 1) for earlier in row.reads) or "–"
    subtask = row.subtask or "the question itself"
    cells = (str(index + 1), row.worker, reads, subtask, row.tokens, row.cost, row.time)
    return "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in cells) + "</tr>"


def _render_graph(rows: Sequence[StepRow]) -> str:
    """Draw circles from left to right by level, with lines from each step to its readers."""
    cells = _place_steps(rows)
    width = _COLUMN * (1 + max(row.level for row in rows))
    height = _ROW * (1 + max(y for _, y in cells))
    lines = "".join(
        _render_line(cells[earlier], cells[index])
        for index, row in enumerate(rows)
        for earlier in row.reads
    )
    dots = "".join(
        _render_dot(cell, index, row)
        for index, (cell, row) in enumerate(zip(cells, rows, strict=True))
    )
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="workflow of {len(rows)} steps">{lines}{dots}</svg>'
    )


def _place_steps(rows: Sequence[StepRow]) -> list[tuple[int, int]]:
    taken = Counter[int]()
    cells: list[tuple[int, int]] = []
    for row in rows:
        cells.append((row.level, taken[row.level]))
        taken[row.level] += 1
    return cells


def _dot_centre(cell: tuple[int, int]) -> tuple[int, int]:
    return cell[0] * _COLUMN + _COLUMN // 2, cell[1] * _ROW + _RADIUS + 2


def _render_line(start: tuple[int, int], end: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = _dot_centre(start), _dot_centre(end)
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#a0aec0" stroke-width="1.5"/>'


def _render_dot(cell: tuple[int, int], index: int, row: StepRow) -> str:
    x, y = _dot_centre(cell)
    middle = f'x="{x}" text-anchor="middle"'
    return (
        f'<circle cx="{x}" cy="{y}" r="{_RADIUS}" fill="{_FILL[row.state]}"/>'
        f'<text {middle} y="{y + 4}" font-size="12" fill="#fff">{index + 1}</text>'
        f'<text {middle} y="{y + _RADIUS + 12}" font-size="10" fill="currentColor">'
        f"{escape(row.worker[:14])}</text>"
    )
