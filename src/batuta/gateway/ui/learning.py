"""Screens of training runs as they go, and of reports of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from batuta.core import Pool, Round, Worker, WorkerId, Workflow
from batuta.core.decision import Plan
from batuta.core.formatting import format_percent
from batuta.errors import WorkflowError
from batuta.gateway.errors import not_found
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.ui import result_files
from batuta.gateway.ui.charts import draw_charts
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_fragment, render_page
from batuta.gateway.ui.result_files import JsonRecord, ResultFolder
from batuta.gateway.ui.session import WebSession
from batuta.language import parse_workflow

REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
)
"""A report is one file with its own styles; it runs no script and reaches nothing."""
_MAX_LISTED = 40
"""Trainings whose figures are read for the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """A workflow that was sampled in training."""

    line: JsonRecord
    pool: Pool | None
    round: Round | None
    """The picture of the draft; None if it is no workflow."""
    reason: str = ""
    """Why it is none."""


@final
class LearningPages:
    """The screens."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def page(self, request: Request, session: WebSession) -> Response:
        """Every training and every report."""
        runs = await run_sync(result_files.find_trainings, self._folders)
        seen = [await run_sync(result_files.read_training, each) for each in runs[:_MAX_LISTED]]
        found = await run_sync(result_files.find_reports, self._folders)
        found = await run_sync(result_files.drop_copies, found[: 2 * _MAX_LISTED])
        told = [(each, await run_sync(_report_headlines, each)) for each in found[:_MAX_LISTED]]
        return render_page(
            request,
            "learning.html.jinja",
            session=session,
            trainings=seen,
            reports=[(each, lines) for each, lines in told if lines],
            folders=self._folders,
        )

    async def training(self, request: Request, session: WebSession) -> Response:
        """One training: curves and sampled workflows; `part` answers the moving part alone."""
        found = await self._find_folder(request, result_files.find_trainings)
        run = await run_sync(result_files.read_training, found)
        drawn = draw_charts(run.lines)
        if request.query_params.get("part"):
            body = render_fragment("curves.html.jinja", run=run, charts=drawn)
            return HTMLResponse(body, headers=PAGE_HEADERS)
        samples = await run_sync(result_files.read_samples, found)
        steps = sorted({step for line in samples if isinstance(step := line.get("step"), int)})
        wanted = _selected_step(request.query_params.get("step"), steps)
        shown = [_parse_sample(line) for line in samples if line.get("step") == wanted]
        return render_page(
            request,
            "training.html.jinja",
            session=session,
            run=run,
            charts=drawn,
            steps=steps,
            step=wanted,
            samples=shown,
            everybody=_all_workers(self._catalogue.pool, shown),
        )

    async def report(self, request: Request, session: WebSession) -> Response:
        """One report's figures."""
        found = await self._find_folder(request, result_files.find_reports)
        told = await run_sync(result_files.read_report, found)
        return render_page(
            request,
            "report.html.jinja",
            session=session,
            found=found,
            reports=[(each, rank_systems(each)) for each in told],
            whole=(found.path / result_files.REPORT_PAGE).is_file(),
        )

    async def report_page(self, request: Request, _: WebSession) -> Response:
        """The report's own page, with its figures, as it was written."""
        found = await self._find_folder(request, result_files.find_reports)
        path = found.path / result_files.REPORT_PAGE
        if not await run_sync(path.is_file):
            raise not_found("The report's page")
        headers = {**PAGE_HEADERS, "content-security-policy": REPORT_POLICY}
        return HTMLResponse(await run_sync(path.read_bytes), headers=headers)

    @property
    def _folders(self) -> Sequence[Path]:
        """The folders to look in; the settings may be read again while the server runs."""
        return self._catalogue.page_context.folders

    async def _find_folder(self, request: Request, search: Any) -> ResultFolder:
        found = result_files.folder_by_mark(
            await run_sync(search, self._folders), request.path_params["mark"]
        )
        if found is None:
            raise not_found("What you look for")
        return found


def rank_systems(report: JsonRecord) -> list[tuple[str, JsonRecord]]:
    """The systems of a report, the best first."""
    systems: Mapping[str, JsonRecord] = report["systems"]
    return sorted(systems.items(), key=lambda item: -(item[1].get("accuracy") or 0.0))


def _report_headlines(found: ResultFolder) -> list[str]:
    """A sentence for each report of a file."""
    return [_report_headline(each) for each in result_files.read_report(found)][:5]


def _report_headline(report: JsonRecord) -> str:
    if report.get("why"):
        return " ".join(map(str, report["why"]))
    references = report.get("references") or ()
    known = [
        each for each in rank_systems(report) if each[0] not in references and each[1].get("n")
    ]
    asked = f"{report.get('tasks', 'tasks')}: {report.get('questions', '?')} questions"
    if not known:
        return asked
    name, figures = known[0]
    return f"{asked}; right most often: {name}, {format_percent(figures.get('accuracy') or 0, 1)}"


def _selected_step(given: str | None, steps: Sequence[int]) -> int | None:
    """The step that was asked for, or the last."""
    if given and given.isascii() and given.isdigit() and int(given[:9]) in steps:
        return int(given[:9])
    return steps[-1] if steps else None


def _all_workers(pool: Pool, samples: Sequence[TrainingSample]) -> Pool:
    """The workers of all samples, this server's first: each has one colour in all pictures."""
    seen = {worker.id: worker for sample in samples if sample.pool for worker in sample.pool}
    others = [seen[name] for name in sorted(seen) if name not in pool]
    return Pool((*pool, *others))


def _parse_sample(writer: JsonRecord) -> TrainingSample:
    names: Any = writer.get("pool")
    try:
        pool = Pool(tuple(Worker(id=WorkerId(str(name)), model=str(name)) for name in names))
        flow = parse_workflow(str(writer.get("draft", "")), pool)
    except WorkflowError as error:
        return TrainingSample(line=writer, pool=None, round=None, reason=str(error))
    except (TypeError, ValueError):
        return TrainingSample(line=writer, pool=None, round=None)
    if not isinstance(flow, Workflow):
        return TrainingSample(line=writer, pool=None, round=None)
    return TrainingSample(line=writer, pool=pool, round=Round(decision=Plan(flow), workflow=flow))
