"""The page's addresses."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from batuta.gateway.errors import not_found
from batuta.gateway.serving.execute import RunService
from batuta.gateway.serving.models import ServerState
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


def page_routes(state: ServerState, service: RunService) -> list[BaseRoute]:
    """Every route of the page."""
    door = SessionManager()
    archive, comparison = RunPages(state), ComparisonPage(state)
    learning, entrance, keyring = LearningPages(state), SignInPages(state), KeyPages(state)
    own_keys = OwnKeyPages(state)
    screens = {
        "/ui/": PlaygroundPage(state).page,
        "/ui/runs": archive.list_page,
        "/ui/runs/{id}": archive.run_page,
        "/ui/runs/{id}/export.json": archive.export,
        "/ui/compare": comparison.page,
        "/ui/compare/figures": comparison.difference,
        "/ui/pool": PoolPage(state).page,
        "/ui/learning": learning.page,
        "/ui/learning/training/{mark}": learning.training,
        "/ui/learning/report/{mark}": learning.report,
        "/ui/learning/report/{mark}/whole": learning.report_page,
        "/ui/keys": keyring.page,
        "/ui/own-keys": own_keys.page,
    }
    forms = {
        "/ui/runs/{id}/feedback": archive.feedback,
        "/ui/sign-out": entrance.sign_out,
        "/ui/keys": keyring.create,
        "/ui/keys/{id}/{what}": keyring.change,
        "/ui/own-keys": own_keys.create,
        "/ui/own-keys/{id}/revoke": own_keys.revoke,
        "/ui/budgets": keyring.budget,
    }
    sign_in = door.page_endpoint(entrance.sign_in, open_to_all=True)
    return [
        Route("/", _redirect_home),
        Route("/ui", _redirect_home),
        Route(ROOT + "{name}", send_asset),
        Route("/ui/ask", PlaygroundEndpoint(state, service, door), methods=["POST"]),
        Route(SIGN_IN_PATH, door.page_endpoint(entrance.page, open_to_all=True), methods=["GET"]),
        Route(SIGN_IN_PATH, sign_in, methods=["POST"]),
        *(
            Route(place, door.page_endpoint(show, open_to_all=True), methods=["GET"])
            for place, show in (
                ("/ui/oidc/start", entrance.start_oidc),
                ("/ui/oidc/callback", entrance.finish_oidc),
            )
        ),
        *(
            Route(place, door.page_endpoint(show), methods=["GET"])
            for place, show in screens.items()
        ),
        *(
            Route(place, door.page_endpoint(take), methods=["POST"])
            for place, take in forms.items()
        ),
        Route("/ui/{path:path}", door.page_endpoint(_page_not_found)),
    ]


async def _redirect_home(_: Request) -> Response:
    return RedirectResponse("/ui/", 307)


async def _page_not_found(request: Request, _: WebSession) -> Response:
    raise not_found(f"The screen {request.url.path[:80]}")
