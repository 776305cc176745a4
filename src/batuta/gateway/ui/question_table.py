"""The table of up to ten questions asked to up to four systems; each cell is a run."""

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
"""Maximum number of questions asked at the same time."""
_MOST_RUNS = MOST_QUESTIONS * len(SIDES)
_SHOWN = 160
"""Maximum number of characters of an answer in a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """An ended or running run in the table."""

    id: str
    question: str
    model: str
    outcome: Outcome | None = None
    """The outcome; None while the run is running."""
    answer: str = ""
    """The final answer; empty if there is none."""
    error: str = ""
    """Why there is no answer."""
    cost: Cost = ZERO_COST
    seconds: float = 0.0

    @classmethod
    def of(cls, run: Run) -> TableCell:
        """Return the cell of a run that has ended."""
        answer = (final_answer(run.answer) or run.answer) if run.answer else ""
        return cls(
            id=run.id,
            question=run.header.question.text,
            model=run.header.model or run.header.conductor,
            outcome=run.outcome,
            answer=answer,
            error=run.error or "",
            cost=run.cost,
            seconds=run.seconds,
        )

    @classmethod
    def of_live(cls, run: PageRun) -> TableCell:
        """Return the cell of a run that is still running."""
        return cls(id=run.id, question=run.question, model=run.model, seconds=run.elapsed())

    @classmethod
    def of_summary(cls, row: RunSummary) -> TableCell:
        """Return the cell of a run whose content was not stored or cannot be shown."""
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
        """The answer, or else the error, truncated to the size of a cell."""
        text = self.answer or self.error
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A question with the run of each system; None for a system that was not asked."""

    question: str
    cells: tuple[TableCell | None, ...]

    @property
    def common_answer(self) -> str:
        """The answer, as shown, if two or more systems were asked and all gave exactly the same.

        It is empty if they did not, or while a system is still running.
        """
        found = [cell for cell in self.cells if cell is not None]
        answered = all(cell.outcome is not None and cell.answer for cell in found)
        same = len({cell.answer for cell in found}) == 1
        return found[0].shown if len(found) > 1 and answered and same else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTotal:
    """The figures of a system's runs in the table."""

    model: str
    answered: int
    """Number of runs with the outcome `answered`."""
    runs: int
    cost: Cost
    """The cost of the runs that have ended."""
    seconds: float
    """The mean time of the runs that have ended; 0 if none has."""


def arrange_cells(cells: Sequence[TableCell]) -> tuple[list[TableRow], list[SystemTotal]]:
    """Return a row for each question and the totals of each system, both in the cells' order.

    Of several runs of one system on the same question, only the last counts.
    """
    models = list(dict.fromkeys(cell.model for cell in cells))
    by_key = {(cell.question, cell.model): cell for cell in cells}
    rows = [
        TableRow(question=text, cells=tuple(by_key.get((text, model)) for model in models))
        for text in dict.fromkeys(cell.question for cell in cells)
    ]
    return rows, [_sum_system(model, list(by_key.values())) for model in models]


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
    """Serves /ui/compare/table."""

    def __init__(self, store: Store | None, page_runs: PageRuns) -> None:
        self._store = store
        self._page_runs = page_runs

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the runs in the URL as a table; `part` selects the table alone, as a fragment.

        Raises:
            APIError: a run does not exist, or the URL names none or too many.
        """
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 0 < len(names) <= _MOST_RUNS:
            raise invalid_value("run", f"name between 1 and {_MOST_RUNS} runs.")
        rows, totals = arrange_cells([await self._read_cell(name, session) for name in names])
        compared = [row for row in rows if sum(cell is not None for cell in row.cells) > 1]
        shown: dict[str, Any] = {
            "rows": rows,
            "totals": totals,
            "same": sum(bool(row.common_answer) for row in compared),
            "compared": len(compared),
            "is_running": any(cell and cell.outcome is None for row in rows for cell in row.cells),
        }
        if request.query_params.get("part"):
            body = render_fragment("question_table.html.jinja", **shown)
            return PageResponse(body)
        address = f"{request.url.path}?{request.url.query}"
        return render_page(
            request, "question_table_page.html.jinja", session=session, address=address, **shown
        )

    async def _read_cell(self, name: str, session: WebSession) -> TableCell:
        live = await self._page_runs.find_running(name, session)
        if live is not None:
            return TableCell.of_live(live)
        try:
            return TableCell.of(await load_run(self._store, self._page_runs, name, session))
        except APIError:  # the content cannot be shown
            summary = self._store and await self._store.summary(name, session.tenant)
            if not summary:
                raise
            return TableCell.of_summary(summary)
