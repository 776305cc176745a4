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
from batuta.gateway.ui.learning import Learning
from batuta.gateway.ui.playground import Ask, Playground
from batuta.gateway.ui.standing import PoolScreen
from batuta.gateway.ui.visitor import Door, Visitor


def page_routes(orchestra: Orchestra, player: Player) -> list[BaseRoute]:
    """Every route of the page."""
    door = Door(orchestra)
    archive, comparison = Archive(orchestra), Comparison(orchestra)
    learning = Learning(orchestra)
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
    }
    return [
        Route("/", _home),
        Route("/ui", _home),
        Route(ROOT + "{name}", send_asset),
        Route("/ui/ask", Ask(orchestra, player, door), methods=["POST"]),
        *(Route(address, door.screen(handler)) for address, handler in screens.items()),
        Route("/ui/runs/{id}/feedback", door.screen(archive.feedback), methods=["POST"]),
        Route("/ui/{path:path}", door.screen(_nowhere)),
    ]


async def _home(_: Request) -> Response:
    return RedirectResponse("/ui/", 307)


async def _nowhere(request: Request, _: Visitor) -> Response:
    raise not_found(f"The screen {request.url.path[:80]}")
