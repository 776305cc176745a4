"""The page's addresses."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from batuta.gateway.access.caller import Authenticator
from batuta.gateway.access.oidc import OidcClient
from batuta.gateway.errors import not_found
from batuta.gateway.serving.deliver import AnswerDelivery
from batuta.gateway.serving.drift import DriftMonitor
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.ui.asked_runs import AskedRuns
from batuta.gateway.ui.assets import ROOT, send_asset
from batuta.gateway.ui.comparison import ComparisonPage
from batuta.gateway.ui.keys import KeyPages
from batuta.gateway.ui.learning import LearningPages
from batuta.gateway.ui.own_keys import OwnKeyPages
from batuta.gateway.ui.playground import PlaygroundEndpoint, PlaygroundPage
from batuta.gateway.ui.pool import PoolPage
from batuta.gateway.ui.runs import RunPages
from batuta.gateway.ui.session import SIGN_IN_PATH, SessionManager, WebSession
from batuta.gateway.ui.sign_in import SignInPages
from batuta.store import Store


def page_routes(
    catalogue: Catalogue,
    store: Store | None,
    authenticator: Authenticator,
    *,
    delivery: AnswerDelivery,
    drift: DriftMonitor,
    oidc: OidcClient | None = None,
) -> list[BaseRoute]:
    """Every route of the page."""
    sessions, asked_runs = SessionManager(), AskedRuns()
    shown = catalogue, store, asked_runs
    runs, comparison = RunPages(*shown), ComparisonPage(*shown)
    learning, keys = LearningPages(catalogue), KeyPages(store, authenticator)
    signing, own_keys = SignInPages(authenticator, store, oidc), OwnKeyPages(store, authenticator)
    playground = PlaygroundEndpoint(delivery, store, sessions, asked_runs)
    screens = {
        "/ui/": PlaygroundPage(*shown).page,
        "/ui/runs": runs.list_page,
        "/ui/runs/{id}": runs.run_page,
        "/ui/runs/{id}/export.json": runs.export,
        "/ui/compare": comparison.page,
        "/ui/compare/figures": comparison.difference,
        "/ui/pool": PoolPage(catalogue, store, drift).page,
        "/ui/learning": learning.page,
        "/ui/learning/training/{mark}": learning.training,
        "/ui/learning/report/{mark}": learning.report,
        "/ui/learning/report/{mark}/whole": learning.report_page,
        "/ui/keys": keys.page,
        "/ui/own-keys": own_keys.page,
    }
    forms = {
        "/ui/runs/{id}/feedback": runs.feedback,
        "/ui/sign-out": signing.sign_out,
        "/ui/keys": keys.create,
        "/ui/keys/{id}/{what}": keys.change,
        "/ui/own-keys": own_keys.create,
        "/ui/own-keys/{id}/revoke": own_keys.revoke,
        "/ui/budgets": keys.budget,
    }
    sign_in_page = sessions.page_endpoint(signing.page, open_to_all=True)
    sign_in = sessions.page_endpoint(signing.sign_in, open_to_all=True)
    return [
        *(Route(place, _redirect_home) for place in ("/", "/ui")),
        Route(ROOT + "{name}", send_asset),
        Route("/ui/ask", playground, methods=["POST"]),
        Route(SIGN_IN_PATH, sign_in_page, methods=["GET"]),
        Route(SIGN_IN_PATH, sign_in, methods=["POST"]),
        *(
            Route(place, sessions.page_endpoint(show, open_to_all=True), methods=["GET"])
            for place, show in (
                ("/ui/oidc/start", signing.start_oidc),
                ("/ui/oidc/callback", signing.finish_oidc),
            )
        ),
        *(
            Route(place, sessions.page_endpoint(show), methods=["GET"])
            for place, show in screens.items()
        ),
        *(
            Route(place, sessions.page_endpoint(take), methods=["POST"])
            for place, take in forms.items()
        ),
        Route("/ui/{path:path}", sessions.page_endpoint(_page_not_found)),
    ]


async def _redirect_home(_: Request) -> Response:
    return RedirectResponse("/ui/", 307)


async def _page_not_found(request: Request, _: WebSession) -> Response:
    raise not_found(f"The screen {request.url.path[:80]}")
