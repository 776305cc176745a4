"""Writes a page of an evaluation's questions, with each system's answer, grade and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from batuta.core import Question, Reply, Run, Task
from batuta.core.formatting import format_usd
from batuta.lab.evals.evaluation import Evaluation
from batuta.lab.evals.html_report import render_template
from batuta.lab.evals.report_files import write_files
from batuta.lab.evals.result_log import TrialResult
from batuta.lab.evals.run_archive import MAX_EXPECTED
from batuta.store import Store

PAGE = "questions.html"
MOST_QUESTIONS = 200
"""Maximum number of questions on the page; questions on which systems differ are preferred."""
_MOST_TEXT = 4_000
"""Maximum number of characters shown of a question, a prompt or a reply."""
_RIGHT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step of a run, as the page shows it."""

    worker: str
    prompt: str
    reply: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """One system's result and run of one question."""

    system: str
    result: TrialResult | None
    run: Run | None

    @property
    def mark(self) -> str:
        """The grade as a sign; `·` stands for no grade."""
        score = None if self.result is None else self.result.score
        return "·" if score is None else "✓" if score >= _RIGHT else "✗"

    @property
    def about(self) -> str:
        """The grade in words, and the cost of the run."""
        one = self.result
        if one is None:
            return "not run"
        cost = "of unknown cost" if one.usd is None else format_usd(float(one.usd))
        grade = f"{one.unscored}: {one.reason}" if one.unscored else one.reason
        return f"{grade or one.outcome} · {one.calls} call{'' if one.calls == 1 else 's'}, {cost}"

    @property
    def drawing(self) -> Markup:
        """A drawing of the workflow; `to_html` escapes the models' texts."""
        return Markup("" if self.run is None else self.run.to_html())  # noqa: S704 - see above

    @property
    def steps(self) -> list[_Step]:
        """The steps with the workers' prompts and replies."""
        if self.run is None:
            return []
        return [
            _Step(
                worker=str(step.worker),
                prompt=_shorten_text(
                    "\n\n".join(one.text for one in step.request.messages) if step.request else ""
                ),
                reply=_shorten_text(
                    step.result.text if isinstance(step.result, Reply) else str(step.result)
                ),
            )
            for step in self.run.steps
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A question with every system's result."""

    number: int
    task: Task
    cells: tuple[_Cell, ...]

    @property
    def text(self) -> str:
        return _shorten_text(Question.of(self.task.question).text)

    @property
    def expected(self) -> str:
        target = str(self.task.target)
        return target if len(target) <= MAX_EXPECTED else ""

    @property
    def kind(self) -> str:
        """`differ` if grades differ, `wrong` if all are wrong, else `right` (also if ungraded)."""
        marks = {cell.mark for cell in self.cells} - {"·"}
        return "differ" if len(marks) > 1 else "wrong" if marks == {"✗"} else "right"


async def write_question_page(folder: Path, evaluation: Evaluation, runs: Path) -> Path | None:
    """Write the page of the first seed's runs, and return the file.

    None if all questions are private, or if no runs were stored. `runs` is the archive's file.

    Raises:
        StoreError: the archive cannot be read, or the page cannot be written.
    """
    shown = [task for part in evaluation.parts for task in part.tasks.tasks if not task.private]
    if not shown or not runs.is_file():
        return None
    rows = _list_rows(evaluation, shown)
    order = {"differ": 0, "wrong": 1, "right": 2}
    first = sorted(rows, key=lambda row: order[row.kind])[:MOST_QUESTIONS]
    async with Store.open(runs) as store:
        shown_rows = [
            await _read_runs(store, row) for row in sorted(first, key=lambda row: row.number)
        ]
    systems = list(evaluation.results)
    text = render_template(
        "questions.html.jinja", rows=shown_rows, count=len(rows), systems=systems
    )
    write_files(folder, {PAGE: text})
    return folder / PAGE


def _list_rows(evaluation: Evaluation, tasks: Sequence[Task]) -> list[_Row]:
    """Return every question with its results of the first seed; the runs are not read."""
    seed = min(evaluation.options.seeds)
    found = {
        system: {one.task: one for one in results if one.seed == seed}
        for system, results in evaluation.results.items()
    }
    return [
        _Row(
            number=number,
            task=task,
            cells=tuple(
                _Cell(system=system, result=by_task.get(task.id), run=None)
                for system, by_task in found.items()
            ),
        )
        for number, task in enumerate(tasks, 1)
    ]


async def _read_runs(store: Store, row: _Row) -> _Row:
    """Return the row with the stored run of each result."""
    cells = [
        replace(cell, run=await store.get(cell.result.run))
        if cell.result is not None and cell.result.run
        else cell
        for cell in row.cells
    ]
    return replace(row, cells=tuple(cells))


def _shorten_text(text: str) -> str:
    left = len(text) - _MOST_TEXT
    return text if left <= 0 else f"{text[:_MOST_TEXT]}\n… {left:,} more characters"
