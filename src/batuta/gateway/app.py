"""The app: routes, and the onion around them."""

from __future__ import annotations

from typing import Any, final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from batuta.errors import StoreError
from batuta.gateway.admin import AdminRoutes
from batuta.gateway.admission import mind_of
from batuta.gateway.auth import Auth
from batuta.gateway.background import Background
from batuta.gateway.caller import Caller, Role, caller_of
from batuta.gateway.chat import ChatEndpoint
from batuta.gateway.crowd import Doorkeeper
from batuta.gateway.measured import Measured
from batuta.gateway.messages import MessagesEndpoint, TokenCounter
from batuta.gateway.metrics import CONTENT_TYPE
from batuta.gateway.middleware import ErrorForm, Guard, RequestId, log_fault
from batuta.gateway.models import Orchestra, Served
from batuta.gateway.once import Once
from batuta.gateway.refusal import Refusal, no_model
from batuta.gateway.response_routes import ResponseEndpoint, ResponseRoutes
from batuta.gateway.responses import ResponsesEndpoint
from batuta.gateway.runs import RunRoutes, json_response
from batuta.gateway.ui import page_routes

_NOT_FOUND = 404
_NO_METHOD = 405


def create_app(orchestra: Orchestra, background: Background | None = None) -> Starlette:
    """The ASGI app that serves `orchestra`; it opens and closes nothing of it.

    Args:
        orchestra: what is served.
        background: plays jobs, if somebody lets it work; None: nobody does.
    """
    catalogue, runs = Catalogue(orchestra), RunRoutes(orchestra)
    background = background or Background.of(orchestra)
    player, shelf = background.player, background.shelf
    given = ResponseRoutes(shelf, background)
    routes = [
        Route("/v1/chat/completions", ChatEndpoint(orchestra, player), methods=["POST"]),
        Route(
            "/v1/responses",
            ResponsesEndpoint(orchestra, player, shelf, background),
            methods=["POST"],
        ),
        Route(
            "/v1/responses/{id}",
            ResponseEndpoint(orchestra, shelf, background),
            methods=["GET", "DELETE"],
        ),
        Route("/v1/responses/{id}/cancel", given.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", given.inputs),
        Route("/v1/messages", MessagesEndpoint(orchestra, player), methods=["POST"]),
        Route("/v1/messages/count_tokens", TokenCounter(player).count, methods=["POST"]),
        Route("/v1/models", catalogue.page),
        Route("/v1/models/{id:path}", catalogue.one),
        Route("/v1/runs", runs.page),
        Route("/v1/runs/{id}", runs.one),
        Route("/v1/runs/{id}/feedback", runs.feedback, methods=["POST"]),
        *AdminRoutes(orchestra).routes(),
        Route("/healthz", catalogue.alive),
        Route("/readyz", catalogue.ready),
        Route("/metrics", catalogue.metrics),
        *page_routes(orchestra, player),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Measured, metrics=orchestra.metrics, routes=routes),
            Middleware(RequestId),
            Middleware(ErrorForm),
            Middleware(Guard, hosts=orchestra.hosts, gate=orchestra.gate),
            Middleware(Auth, gate=orchestra.gate),
            Middleware(Once, store=orchestra.store),
            Middleware(Doorkeeper, crowd=orchestra.crowd),
        ],
        exception_handlers={HTTPException: _unrouted, StoreError: _unstored},
    )
    app.router.redirect_slashes = False
    return app


@final
class Catalogue:
    """The served models, and whether the server lives and can work."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra

    async def page(self, request: Request) -> Response:
        """Every model that the caller may use."""
        created, caller = self._orchestra.created, caller_of(request.scope)
        data = [m.entry(created) for m in self._orchestra.models if _may_use(caller, m)]
        # The last three are for Anthropic's clients.
        ends = {"has_more": False, "first_id": _id_of(data[:1]), "last_id": _id_of(data[-1:])}
        return json_response({"object": "list", "data": data, **ends})

    async def one(self, request: Request) -> Response:
        """One model."""
        name: str = request.path_params["id"]
        model = self._orchestra.find(name)
        if model is None:
            raise no_model(name, self._orchestra.absent.get(name))
        return json_response(model.entry(self._orchestra.created))

    async def alive(self, _: Request) -> Response:
        """The process answers."""
        return json_response({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Runs can be served: the store is at the code's schema and takes them; no stop is near.

        The conductor is loaded before anything is served.
        """
        store, closing = self._orchestra.store, self._orchestra.crowd.closing
        stored = store is None or await store.ready()
        ready = stored and not closing
        status = "ok" if ready else "closing" if closing else "unavailable"
        body = {"status": status, "store": stored and store is not None}
        return json_response(body, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """What is counted; where keys are needed, for the admin."""
        if caller_of(request.scope).role not in {Role.LOCAL, Role.ADMIN}:
            raise Refusal(403, "permission_denied", "This needs the admin's token.")
        return Response(self._orchestra.metrics.text(), media_type=CONTENT_TYPE)


def _may_use(caller: Caller, model: Served) -> bool:
    """Whether the model is worth showing; the admin sees what there is and plays none."""
    policy = caller.policy
    if caller.role is not Role.KEY:
        return True
    mind = mind_of(model)
    heard = any(policy.allows_worker(worker) for worker in model.pool)
    return policy.allows_model(model.name) and heard and (not mind or policy.allows_worker(mind))


def _id_of(entries: list[dict[str, Any]]) -> str | None:
    return entries[0]["id"] if entries else None


async def _unstored(_: Request, error: Exception) -> Response:
    log_fault(error)
    message = "The store cannot be read now; try again."
    raise Refusal(503, "overloaded", message, headers={"retry-after": "1"}) from error


async def _unrouted(request: Request, error: Exception) -> Response:
    """What the router itself refuses, in the API's form."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    headers = dict(error.headers or {})
    place = f"{request.method} {request.url.path}"
    if error.status_code == _NOT_FOUND:
        raise Refusal(404, "not_found", f"There is nothing at {place}.")
    if error.status_code == _NO_METHOD:
        message = f"{place} is not possible: the method must be {headers.get('Allow', 'another')}."
        raise Refusal(405, "method_not_allowed", message, headers=headers)
    raise Refusal(error.status_code, "invalid_request", error.detail, headers=headers)
