"""The routes of the web UI.

A new screen needs a route here, a template, and an entry in the navigation, which is in
`gateway/ui/session.py`: `SCREENS`, or `WebSession.screens` for a screen that only some visitors
have. The handler checks who may see the screen.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from batuta.gateway.access.caller import Authenticator
from batuta.gateway.access.oidc import OidcClient
from batuta.gateway.errors import not_found
from batuta.gateway.serving.deletions import Deletions
from batuta.gateway.serving.deliver import AnswerDelivery
from batuta.gateway.serving.drift import DriftMonitor
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.serving.pool_editor import PoolEditor
from batuta.gateway.ui.approvals import ApprovalPage
from batuta.gateway.ui.assets import ROOT, send_asset
from batuta.gateway.ui.audit import AuditPage
from batuta.gateway.ui.chosen_runs import ChosenRuns
from batuta.gateway.ui.comparison import ComparisonPage
from batuta.gateway.ui.conducted_session import ConductedSessionPage
from batuta.gateway.ui.keys import KeyPages
from batuta.gateway.ui.learning import LearningPages
from batuta.gateway.ui.own_keys import OwnKeyPages
from batuta.gateway.ui.page_runs import PageRuns
from batuta.gateway.ui.pictures import RunPictures
from batuta.gateway.ui.plan_editor import PlanEditorPage, PlanPreviewEndpoint
from batuta.gateway.ui.playground import ApiBodyEndpoint, PlaygroundEndpoint, PlaygroundPage
from batuta.gateway.ui.pool import PoolPage
from batuta.gateway.ui.pool_forms import PoolForms
from batuta.gateway.ui.question_table import QuestionTablePage
from batuta.gateway.ui.run_stream import RunEventsEndpoint
from batuta.gateway.ui.runs import RunPages
from batuta.gateway.ui.session import SIGN_IN_PATH, Handler, SessionManager, WebSession
from batuta.gateway.ui.sign_in import SignInPages
from batuta.gateway.ui.sources import SourcesPage
from batuta.gateway.ui.training_stop import TrainingStopForm
from batuta.gateway.ui.usage import UsagePage
from batuta.store import Store


def page_routes(
    catalogue: Catalogue,
    store: Store | None,
    authenticator: Authenticator,
    *,
    delivery: AnswerDelivery,
    drift: DriftMonitor,
    deletions: Deletions,
    pool_editor: PoolEditor | None = None,
    oidc: OidcClient | None = None,
) -> list[BaseRoute]:
    """Return the routes below `/ui`, and the redirects to them."""
    sessions, page_runs = SessionManager(authenticator.key_hasher), PageRuns(delivery.scopes)
    shown = catalogue, store, page_runs
    runs, comparison, playground = RunPages(*shown), ComparisonPage(*shown), PlaygroundPage(*shown)
    keys, sources = KeyPages(catalogue, store, authenticator), SourcesPage(store, page_runs)
    pool_forms = PoolForms(catalogue, store, pool_editor)
    signing, own_keys = SignInPages(authenticator, store, oidc), OwnKeyPages(store, authenticator)
    approvals, chosen = ApprovalPage(store), ChosenRuns(store, deletions)
    pictures = RunPictures(store, page_runs)
    screens = {
        "/ui/": playground.page,
        "/ui/chat/{session}": playground.chat,
        "/ui/runs": runs.list_page,
        "/ui/runs/{id}": runs.run_page,
        "/ui/runs/{id}/edit": PlanEditorPage(*shown).page,
        "/ui/runs/{id}/export.json": runs.export,
        "/ui/runs/{id}/pictures/{number}": pictures.send_asked,
        "/ui/runs/{id}/replies/{place}": runs.reply,
        "/ui/runs/{id}/made/{place}": pictures.send_made,
        "/ui/runs/{id}/sources": sources.page,
        "/ui/runs/{id}/report.{form}": sources.report,
        "/ui/compare": comparison.page,
        "/ui/compare/figures": comparison.difference,
        "/ui/compare/table": QuestionTablePage(store, page_runs).page,
        "/ui/approvals": approvals.page,
    }
    forms = {
        "/ui/runs": chosen.act,
        "/ui/runs/{id}/feedback": runs.feedback,
        "/ui/runs/{id}/stop": runs.stop,
        "/ui/sign-out": signing.sign_out,
        "/ui/budgets": keys.budget,
        "/ui/approvals/{id}": approvals.decide,
    }
    return [
        *_list_asking_routes(delivery, store, sessions, page_runs),
        *_list_sign_in_routes(sessions, signing),
        *_list_routes(sessions, screens, forms),
        *_list_key_routes(sessions, keys, own_keys),
        *_list_account_routes(sessions, *shown),
        *_list_learning_routes(sessions, catalogue, store),
        *_list_pool_routes(sessions, pool_forms, PoolPage(catalogue, store, drift, pool_forms)),
        *_list_other_routes(sessions),
    ]


def _list_key_routes(
    sessions: SessionManager, keys: KeyPages, own_keys: OwnKeyPages
) -> list[Route]:
    screens = {"/ui/keys": keys.page, "/ui/own-keys": own_keys.page}
    forms = {
        "/ui/keys": keys.create,
        "/ui/keys/{id}/{what}": keys.change,
        "/ui/own-keys": own_keys.create,
        "/ui/own-keys/{id}/revoke": own_keys.revoke,
    }
    return _list_routes(sessions, screens, forms)


def _list_account_routes(
    sessions: SessionManager, catalogue: Catalogue, store: Store | None, page_runs: PageRuns
) -> list[Route]:
    screens = {
        "/ui/usage": UsagePage(store).page,
        "/ui/sessions/{session}": ConductedSessionPage(catalogue, store, page_runs).page,
        "/ui/audit": AuditPage(store).page,
    }
    return _list_routes(sessions, screens)


def _list_pool_routes(sessions: SessionManager, forms: PoolForms, screen: PoolPage) -> list[Route]:
    changes = {
        "/ui/pool": forms.add,
        "/ui/pool-undo": forms.undo,
        "/ui/pool/{what}/{id:path}": forms.change,
    }
    return _list_routes(sessions, {"/ui/pool": screen.page}, changes)


def _list_learning_routes(
    sessions: SessionManager, catalogue: Catalogue, store: Store | None
) -> list[Route]:
    learning, form = LearningPages(catalogue), TrainingStopForm(catalogue, store)
    shown = {
        "/ui/learning": learning.page,
        "/ui/learning/training/{mark}": learning.training,
        "/ui/learning/report/{mark}": learning.report,
        "/ui/learning/report/{mark}/whole": learning.report_page,
        "/ui/learning/report/{mark}/questions": learning.question_page,
    }
    forms = {"/ui/learning/training/{mark}/stop": form.stop}
    return _list_routes(sessions, shown, forms)


def _list_other_routes(sessions: SessionManager) -> list[Route]:
    """List the redirects to the start screen, the static files, and the "not found" page."""
    return [
        *(Route(path, _redirect_home) for path in ("/", "/ui")),
        Route(ROOT + "{name}", send_asset),
        Route("/ui/{path:path}", sessions.page_endpoint(_page_not_found)),
    ]


def _list_asking_routes(
    delivery: AnswerDelivery, store: Store | None, sessions: SessionManager, page_runs: PageRuns
) -> list[Route]:
    """List the routes called by the page's script: start a run, price a plan, stream events."""
    asking = delivery, store, sessions, page_runs
    return [
        Route("/ui/ask", PlaygroundEndpoint(*asking), methods=["POST"]),
        Route("/ui/body", ApiBodyEndpoint(*asking), methods=["POST"]),
        Route("/ui/plan", PlanPreviewEndpoint(*asking), methods=["POST"]),
        Route("/ui/runs/{id}/events", RunEventsEndpoint(*asking), methods=["GET"]),
    ]


def _list_sign_in_routes(sessions: SessionManager, signing: SignInPages) -> list[Route]:
    """List the routes for visitors who have not signed in."""
    shown = {
        SIGN_IN_PATH: signing.page,
        "/ui/oidc/start": signing.start_oidc,
        "/ui/oidc/callback": signing.finish_oidc,
    }
    return _list_routes(sessions, shown, {SIGN_IN_PATH: signing.sign_in}, open_to_all=True)


def _list_routes(
    sessions: SessionManager,
    screens: Mapping[str, Handler],
    forms: Mapping[str, Handler] = MappingProxyType({}),
    *,
    open_to_all: bool = False,
) -> list[Route]:
    """List a GET route for each screen and a POST route for each form, by their paths.

    The handlers get the visitor's session.
    """
    return [
        Route(path, sessions.page_endpoint(handler, open_to_all=open_to_all), methods=[method])
        for method, handlers in (("GET", screens), ("POST", forms))
        for path, handler in handlers.items()
    ]


async def _redirect_home(request: Request) -> Response:
    if request.method == "HEAD":  # some agents check with HEAD whether the server is up
        return Response()
    return RedirectResponse("/ui/", 307)


async def _page_not_found(request: Request, _: WebSession) -> Response:
    raise not_found(f"The screen {request.url.path[:80]}")
