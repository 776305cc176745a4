"""Up to ten questions by up to four systems: a table whose cells are runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response

from batuta.core import Cost, Outcome, Run
from batuta.gateway.errors import APIError, invalid_value
from batuta.gateway.ui.comparison import SIDES
from batuta.gateway.ui.page_runs import PageRun, PageRuns
from batuta.gateway.ui.playground import load_run
from batuta.gateway.ui.rendering import PageResponse, render_fragment, render_page
from batuta.gateway.ui.session import WebSession
from batuta.language.answer_extraction import final_answer
from batuta.store import RunSummary, Store
from batuta.usage import ZERO_COST

MOST_QUESTIONS = 10
"""Questions that are asked at once."""
_MOST_RUNS = MOST_QUESTIONS * len(SIDES)
_SHOWN = 160
"""Characters of an answer in a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """A run in the table, or one that goes on."""

    id: str
    question: str
    model: str
    outcome: Outcome | None = None
    """The outcome; None while it goes on."""
    answer: str = ""
    """The words that it ends with, or the reason why there are none."""
    cost: Cost = ZERO_COST
    seconds: float = 0.0

    @classmethod
    def of(cls, run: Run) -> TableCell:
        """Return the cell of a run that has ended."""
        answer = (final_answer(run.answer) or run.answer) if run.answer else run.error or ""
        return cls(
            id=run.id,
            question=run.header.question.text,
            model=run.header.model or run.header.conductor,
            outcome=run.outcome,
            answer=answer,
            cost=run.cost,
            seconds=run.seconds,
        )

    @classmethod
    def of_live(cls, run: PageRun) -> TableCell:
        """Return the cell of a run that goes on."""
        return cls(id=run.id, question=run.question, model=run.model, seconds=run.elapsed())

    @classmethod
    def of_summary(cls, row: RunSummary) -> TableCell:
        """Return the cell of a run of which the numbers alone can be shown."""
        return cls(
            id=row.id,
            question=row.question_preview or "content not kept",
            model=row.model or row.conductor,
            outcome=row.outcome,
            answer=row.answer_preview or "",
            cost=row.cost,
            seconds=row.seconds,
        )

    @property
    def shown(self) -> str:
        """The answer, cut to what a cell has room for."""
        return self.answer if len(self.answer) <= _SHOWN else f"{self.answer[:_SHOWN]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A question, with the run of each system; None where a system was not asked."""

    question: str
    cells: tuple[TableCell | None, ...]

    @property
    def common_answer(self) -> str:
        """The answer that all systems gave to the letter; empty if they differ or go on."""
        found = [cell for cell in self.cells if cell is not None]
        answered = all(cell.outcome is not None and cell.answer for cell in found)
        same = len({cell.answer for cell in found}) == 1
        return found[0].shown if len(found) > 1 and answered and same else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTotal:
    """The sum of a system's runs in the table."""

    model: str
    answered: int
    runs: int
    cost: Cost
    seconds: float
    """The mean time of those that have ended."""


def arrange_cells(cells: Sequence[TableCell]) -> tuple[list[TableRow], list[SystemTotal]]:
    """Return a row for each question and the totals of each system, both in the order given."""
    models = list(dict.fromkeys(cell.model for cell in cells))
    by_place = {(cell.question, cell.model): cell for cell in cells}
    rows = [
        TableRow(question=text, cells=tuple(by_place.get((text, model)) for model in models))
        for text in dict.fromkeys(cell.question for cell in cells)
    ]
    return rows, [_sum_system(model, list(by_place.values())) for model in models]


def _sum_system(model: str, cells: Sequence[TableCell]) -> SystemTotal:
    own = [cell for cell in cells if cell.model == model]
    ended = [cell for cell in own if cell.outcome is not None]
    return SystemTotal(
        model=model,
        answered=sum(cell.outcome is Outcome.ANSWERED for cell in own),
        runs=len(own),
        cost=sum((cell.cost for cell in ended), ZERO_COST),
        seconds=sum(cell.seconds for cell in ended) / len(ended) if ended else 0.0,
    )


@final
class QuestionTablePage:
    """The screen."""

    def __init__(self, store: Store | None, page_runs: PageRuns) -> None:
        self._store = store
        self._page_runs = page_runs

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the runs of the address as a table; `part` answers the table alone.

        Raises:
            APIError: a run is not there, or there are too many.
        """
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 0 < len(names) <= _MOST_RUNS:
            raise invalid_value("run", f"name between one run and {_MOST_RUNS}.")
        rows, totals = arrange_cells([await self._read_cell(name, session) for name in names])
        compared = [row for row in rows if sum(cell is not None for cell in row.cells) > 1]
        shown: dict[str, Any] = {
            "rows": rows,
            "totals": totals,
            "same": sum(bool(row.common_answer) for row in compared),
            "compared": len(compared),
            "goes_on": any(cell and cell.outcome is None for row in rows for cell in row.cells),
        }
        if request.query_params.get("part"):
            body = render_fragment("question_table.html.jinja", **shown)
            return PageResponse(body)
        address = f"{request.url.path}?{request.url.query}"
        return render_page(
            request, "question_table_page.html.jinja", session=session, address=address, **shown
        )

    async def _read_cell(self, name: str, session: WebSession) -> TableCell:
        live = await self._page_runs.find_going_on(name, session)
        if live is not None:
            return TableCell.of_live(live)
        try:
            return TableCell.of(await load_run(self._store, self._page_runs, name, session))
        except APIError:  # its content was not kept, or is too large: its numbers are shown
            summary = self._store and await self._store.summary(name, session.tenant)
            if not summary:
                raise
            return TableCell.of_summary(summary)
