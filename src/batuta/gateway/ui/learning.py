"""What is learned: training runs as they go, and reports of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from batuta.core import Pool, Round, Worker, WorkerId, Workflow
from batuta.core.conductor import Plan
from batuta.errors import WorkflowError
from batuta.gateway.models import Orchestra
from batuta.gateway.refusal import not_found
from batuta.gateway.ui import folders
from batuta.gateway.ui.charts import charts
from batuta.gateway.ui.folders import Found, Line
from batuta.gateway.ui.screens import HEADERS, fragment, screen
from batuta.gateway.ui.visitor import Visitor
from batuta.language import parse

REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
)
"""A report is one file with its own styles; it runs no script and reaches nothing."""
_LISTED = 40
"""Trainings whose figures are read for the list."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A workflow that was sampled in training."""

    line: Line
    pool: Pool | None
    played: Round | None
    """Its picture; None: the draft is no workflow."""
    why: str = ""
    """Why it is none."""


@final
class Learning:
    """The screens."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra

    async def page(self, request: Request, visitor: Visitor) -> Response:
        """Every training and every report."""
        runs = await run_sync(folders.trainings, self._folders)
        seen = [await run_sync(folders.read_training, each) for each in runs[:_LISTED]]
        found = await run_sync(folders.reports, self._folders)
        told = [(each, await run_sync(_headlines, each)) for each in found[:_LISTED]]
        return screen(
            request,
            "learning.html.jinja",
            visitor=visitor,
            trainings=seen,
            reports=[(each, lines) for each, lines in told if lines],
            folders=self._folders,
        )

    async def training(self, request: Request, visitor: Visitor) -> Response:
        """One training: curves and sampled workflows; `part` answers the moving part alone."""
        found = await self._named(request, folders.trainings)
        run = await run_sync(folders.read_training, found)
        drawn = charts(run.lines)
        if request.query_params.get("part"):
            body = fragment("curves.html.jinja", run=run, charts=drawn)
            return HTMLResponse(body, headers=HEADERS)
        samples = await run_sync(folders.read_samples, found)
        steps = sorted({step for line in samples if isinstance(step := line.get("step"), int)})
        wanted = _wanted(request.query_params.get("step"), steps)
        shown = [_sample(line) for line in samples if line.get("step") == wanted]
        return screen(
            request,
            "training.html.jinja",
            visitor=visitor,
            run=run,
            charts=drawn,
            steps=steps,
            step=wanted,
            samples=shown,
            everybody=_everybody(self._orchestra.pool, shown),
        )

    async def report(self, request: Request, visitor: Visitor) -> Response:
        """One report's figures."""
        found = await self._named(request, folders.reports)
        told = await run_sync(folders.read_report, found)
        return screen(
            request,
            "report.html.jinja",
            visitor=visitor,
            found=found,
            reports=[(each, ranking(each)) for each in told],
            whole=(found.path / folders.REPORT_PAGE).is_file(),
        )

    async def whole(self, request: Request, _: Visitor) -> Response:
        """The report's own page, with its figures, as it was written."""
        found = await self._named(request, folders.reports)
        path = found.path / folders.REPORT_PAGE
        if not await run_sync(path.is_file):
            raise not_found("The report's page")
        headers = {**HEADERS, "content-security-policy": REPORT_POLICY}
        return HTMLResponse(await run_sync(path.read_bytes), headers=headers)

    @property
    def _folders(self) -> Sequence[Path]:
        """Where to look; the settings may be read again while the server runs."""
        return self._orchestra.showcase.folders

    async def _named(self, request: Request, search: Any) -> Found:
        found = folders.named(await run_sync(search, self._folders), request.path_params["mark"])
        if found is None:
            raise not_found("What you look for")
        return found


def ranking(report: Line) -> list[tuple[str, Line]]:
    """The systems of a report, the best first."""
    systems: Mapping[str, Line] = report["systems"]
    return sorted(systems.items(), key=lambda item: -(item[1].get("accuracy") or 0.0))


def _headlines(found: Found) -> list[str]:
    """A sentence for each report of a file."""
    return [_headline(each) for each in folders.read_report(found)][:5]


def _headline(report: Line) -> str:
    references = report.get("references") or ()
    known = [each for each in ranking(report) if each[0] not in references and each[1].get("n")]
    asked = f"{report.get('tasks', 'tasks')}: {report.get('questions', '?')} questions"
    if not known:
        return asked
    name, figures = known[0]
    return f"{asked}; right most often: {name}, {100 * (figures.get('accuracy') or 0):.1f}\u00a0%"


def _wanted(given: str | None, steps: Sequence[int]) -> int | None:
    """The step that was asked for, or the last."""
    if given and given.isascii() and given.isdigit() and int(given[:9]) in steps:
        return int(given[:9])
    return steps[-1] if steps else None


def _everybody(pool: Pool, samples: Sequence[Sample]) -> Pool:
    """The workers of all samples, this server's first: each has one colour in all pictures."""
    seen = {worker.id: worker for sample in samples if sample.pool for worker in sample.pool}
    others = [seen[name] for name in sorted(seen) if name not in pool]
    return Pool((*pool, *others))


def _sample(line: Line) -> Sample:
    names: Any = line.get("pool")
    try:
        pool = Pool(tuple(Worker(WorkerId(str(name)), str(name)) for name in names))
        flow = parse(str(line.get("draft", "")), pool)
    except WorkflowError as error:
        return Sample(line, None, None, str(error))
    except (TypeError, ValueError):
        return Sample(line, None, None)
    if not isinstance(flow, Workflow):
        return Sample(line, None, None)
    return Sample(line, pool, Round(Plan(flow), workflow=flow))
