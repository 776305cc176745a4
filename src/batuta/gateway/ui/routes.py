"""The page's addresses."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from batuta.gateway.models import Orchestra
from batuta.gateway.play import Player
from batuta.gateway.refusal import not_found
from batuta.gateway.ui.archive import Archive
from batuta.gateway.ui.assets import ROOT, send_asset
from batuta.gateway.ui.comparison import Comparison
from batuta.gateway.ui.entrance import Entrance
from batuta.gateway.ui.keyring import Keyring
from batuta.gateway.ui.learning import Learning
from batuta.gateway.ui.playground import Ask, Playground
from batuta.gateway.ui.standing import PoolScreen
from batuta.gateway.ui.visitor import SIGN_IN, Door, Visitor


def page_routes(orchestra: Orchestra, player: Player) -> list[BaseRoute]:
    """Every route of the page."""
    door = Door()
    archive, comparison = Archive(orchestra), Comparison(orchestra)
    learning, entrance, keyring = Learning(orchestra), Entrance(orchestra), Keyring(orchestra)
    screens = {
        "/ui/": Playground(orchestra).page,
        "/ui/runs": archive.page,
        "/ui/runs/{id}": archive.one,
        "/ui/runs/{id}/export.json": archive.export,
        "/ui/compare": comparison.page,
        "/ui/compare/figures": comparison.figures,
        "/ui/pool": PoolScreen(orchestra).page,
        "/ui/learning": learning.page,
        "/ui/learning/training/{mark}": learning.training,
        "/ui/learning/report/{mark}": learning.report,
        "/ui/learning/report/{mark}/whole": learning.whole,
        "/ui/keys": keyring.page,
    }
    forms = {
        "/ui/runs/{id}/feedback": archive.feedback,
        "/ui/sign-out": entrance.sign_out,
        "/ui/keys": keyring.create,
        "/ui/keys/{id}/{what}": keyring.change,
        "/ui/budgets": keyring.budget,
    }
    sign_in = door.screen(entrance.sign_in, open_to_all=True)
    return [
        Route("/", _home),
        Route("/ui", _home),
        Route(ROOT + "{name}", send_asset),
        Route("/ui/ask", Ask(orchestra, player, door), methods=["POST"]),
        Route(SIGN_IN, door.screen(entrance.page, open_to_all=True), methods=["GET"]),
        Route(SIGN_IN, sign_in, methods=["POST"]),
        *(Route(place, door.screen(show), methods=["GET"]) for place, show in screens.items()),
        *(Route(place, door.screen(take), methods=["POST"]) for place, take in forms.items()),
        Route("/ui/{path:path}", door.screen(_nowhere)),
    ]


async def _home(_: Request) -> Response:
    return RedirectResponse("/ui/", 307)


async def _nowhere(request: Request, _: Visitor) -> Response:
    raise not_found(f"The screen {request.url.path[:80]}")
