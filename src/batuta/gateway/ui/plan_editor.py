"""The plan editor: edits a run's workflow, estimates its cost, and executes it as a new run."""

from __future__ import annotations

from typing import final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from batuta.core import MAX_STEPS, Round, Run, Workflow
from batuta.core.formatting import format_cost, format_count
from batuta.core.workflow import Plan
from batuta.gateway.errors import not_found
from batuta.gateway.serving.models import Catalogue, ServedModel
from batuta.gateway.serving.prepare import PlanEstimate
from batuta.gateway.ui.page_runs import PageRuns
from batuta.gateway.ui.playground import ScriptEndpoint, default_model, edited_call, load_run
from batuta.gateway.ui.rendering import PAGE_HEADERS, render_fragment, render_page
from batuta.gateway.ui.session import WebSession
from batuta.store import Store
from batuta.usage import usage_cost


def planned_rounds(run: Run) -> list[tuple[int, Workflow]]:
    """Return the workflows of a run, each with the number of its round, from 1."""
    return [
        (number, round_.workflow)
        for number, round_ in enumerate(run.rounds, 1)
        if round_.workflow is not None
    ]


def find_executing_model(catalogue: Catalogue, run: Run) -> ServedModel:
    """Return the run's served model if it writes workflows, else the default model."""
    own = catalogue.find_model(run.header.model or "")
    if own is not None and own.writes_workflows:
        return own
    found = catalogue.find_model(default_model(catalogue))
    assert found is not None  # noqa: S101 - the default model is served
    return found


def estimate_notes(estimate: PlanEstimate) -> list[str]:
    """Return the expected tokens and cost of each step, in words."""
    workers = [estimate.pool[step.worker] for step in estimate.workflow.steps]
    return [
        f"about {format_count(usage.total)} tok, {format_cost(usage_cost(usage, worker.price))}"
        for worker, usage in zip(workers, estimate.expected.steps, strict=True)
    ]


@final
class PlanEditorPage:
    """Serves /ui/runs/{id}/edit."""

    def __init__(self, catalogue: Catalogue, store: Store | None, page_runs: PageRuns) -> None:
        self._catalogue = catalogue
        self._store = store
        self._page_runs = page_runs

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the steps of one round, by default the first with a workflow, for editing.

        Raises:
            APIError: the run cannot be shown, or the round has no workflow.
        """
        run_id: str = request.path_params["id"]
        run = await load_run(self._store, self._page_runs, run_id, session)
        rounds = planned_rounds(run)
        selected = request.query_params.get("round")
        chosen = [each for each in rounds if selected in {None, "", str(each[0])}]
        if not chosen:
            raise not_found(f"A workflow of the run '{run_id[:80]}'")
        served = find_executing_model(self._catalogue, run)
        number, workflow = chosen[0]
        allows = session.caller.permissions.allows_worker
        return render_page(
            request,
            "plan.html.jinja",
            session=session,
            run=run,
            rounds=[each for each, _ in rounds],
            number=number,
            steps=workflow.steps,
            reads_round_before=any(step.previous for step in workflow.steps),
            model=served.name,
            workers=[str(worker.id) for worker in served.pool if allows(worker)],
            most_steps=min(MAX_STEPS, served.limits.steps),
        )


@final
class PlanPreviewEndpoint(ScriptEndpoint):
    """POST /ui/plan: renders an edited plan with its estimated cost.

    The workflow is parsed as in the API. No worker is called, and nothing is reserved or stored.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: the plan cannot be executed, for the reason in the message.
        """
        visitor, body = await self._read(scope, receive)
        run = await load_run(self._store, self._page_runs, body.need_text("edit"), visitor)
        estimate = self._delivery.service.estimate_plan(edited_call(run, body), visitor.caller)
        workflow = estimate.workflow
        html = render_fragment(
            "plan_preview.html.jinja",
            round=Round(decision=Plan(workflow), workflow=workflow),
            estimate=estimate,
            notes=estimate_notes(estimate),
        )
        await HTMLResponse(html, headers=PAGE_HEADERS)(scope, receive, send)
