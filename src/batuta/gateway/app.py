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
from batuta.gateway.access.caller import Caller, CallerRole, caller_of
from batuta.gateway.admin.routes import AdminRoutes
from batuta.gateway.admin.runs import RunRoutes, json_response
from batuta.gateway.chat.endpoint import ChatEndpoint
from batuta.gateway.chat.text_completion import COMPLETIONS_PATH, TextCompletionEndpoint
from batuta.gateway.errors import APIError, model_not_found
from batuta.gateway.http.access_log import AccessLog
from batuta.gateway.http.authentication import AuthenticationMiddleware
from batuta.gateway.http.idempotency import IdempotencyMiddleware
from batuta.gateway.http.middleware import (
    ErrorMiddleware,
    HostCheck,
    RequestIdMiddleware,
    log_exception,
)
from batuta.gateway.http.overload import ConcurrencyMiddleware
from batuta.gateway.messages.endpoint import MessagesEndpoint, TokenCounter
from batuta.gateway.responses.background import BackgroundResponses
from batuta.gateway.responses.endpoint import ResponsesEndpoint
from batuta.gateway.responses.stored_routes import StoredResponseEndpoint, StoredResponseRoutes
from batuta.gateway.serving.admission import conductor_worker
from batuta.gateway.serving.models import ServedModel, ServerState
from batuta.gateway.serving.moderation import MODERATIONS_PATH, ModerationEndpoint
from batuta.gateway.telemetry.metrics import CONTENT_TYPE
from batuta.gateway.ui import page_routes

_NOT_FOUND = 404
_NO_METHOD = 405


def create_app(state: ServerState, background: BackgroundResponses | None = None) -> Starlette:
    """The ASGI app that serves `orchestra`; it opens and closes nothing of it.

    Args:
        state: what is served.
        background: plays jobs, if somebody lets it work; None: nobody does.
    """
    catalogue, runs = ServerRoutes(state), RunRoutes(state)
    background = background or BackgroundResponses.create(state)
    player, shelf = background.service, background.responses
    given = StoredResponseRoutes(shelf, background)
    routes = [
        Route("/v1/chat/completions", ChatEndpoint(state, player), methods=["POST"]),
        Route(
            "/v1/responses",
            ResponsesEndpoint(state, player, shelf, background),
            methods=["POST"],
        ),
        Route(
            "/v1/responses/{id}",
            StoredResponseEndpoint(state, shelf, background),
            methods=["GET", "DELETE"],
        ),
        Route("/v1/responses/{id}/cancel", given.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", given.input_items),
        Route("/v1/messages", MessagesEndpoint(state, player), methods=["POST"]),
        Route("/v1/messages/count_tokens", TokenCounter(player).count, methods=["POST"]),
        Route(COMPLETIONS_PATH, TextCompletionEndpoint(state, player), methods=["POST"]),
        Route(MODERATIONS_PATH, ModerationEndpoint(state).moderate, methods=["POST"]),
        Route("/v1/models", catalogue.list_models),
        Route("/v1/models/{id:path}", catalogue.get_model),
        Route("/v1/runs", runs.list_runs),
        Route("/v1/runs/{id}", runs.get_run, methods=["GET"]),
        Route("/v1/runs/{id}", runs.delete, methods=["DELETE"]),
        Route("/v1/runs/{id}/feedback", runs.feedback, methods=["POST"]),
        *AdminRoutes(state).routes(),
        Route("/healthz", catalogue.healthz),
        Route("/readyz", catalogue.readyz),
        Route("/metrics", catalogue.metrics),
        *page_routes(state, player),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(AccessLog, metrics=state.metrics, routes=routes),
            Middleware(RequestIdMiddleware),
            Middleware(ErrorMiddleware),
            Middleware(HostCheck, hosts=state.hosts, authenticator=state.authenticator),
            Middleware(AuthenticationMiddleware, authenticator=state.authenticator),
            Middleware(IdempotencyMiddleware, store=state.store),
            Middleware(ConcurrencyMiddleware, limiter=state.limiter),
        ],
        exception_handlers={HTTPException: _handle_http_error, StoreError: _handle_store_error},
    )
    app.router.redirect_slashes = False
    return app


@final
class ServerRoutes:
    """The served models, and whether the server lives and can work."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def list_models(self, request: Request) -> Response:
        """Every model that the caller may use."""
        created, caller = self._state.created, caller_of(request.scope)
        data = [m.model_object(created) for m in self._state.models if _may_use(caller, m)]
        # The last three are for Anthropic's clients.
        ends = {"has_more": False, "first_id": _id_of(data[:1]), "last_id": _id_of(data[-1:])}
        return json_response({"object": "list", "data": data, **ends})

    async def get_model(self, request: Request) -> Response:
        """One model."""
        name: str = request.path_params["id"]
        model = self._state.find_model(name)
        if model is None or not _may_use(caller_of(request.scope), model):
            raise model_not_found(name, None if model else self._state.unavailable_models.get(name))
        return json_response(model.model_object(self._state.created))

    async def healthz(self, _: Request) -> Response:
        """The process answers."""
        return json_response({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        """Runs can be served: the store is at the code's schema and takes them; no stop is near.

        The conductor is loaded before anything is served.
        """
        store, closing = self._state.store, self._state.limiter.is_closing
        stored = store is None or await store.is_ready()
        ready = stored and not closing
        status = "ok" if ready else "closing" if closing else "unavailable"
        body = {"status": status, "store": stored and store is not None}
        return json_response(body, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """What is counted; where keys are needed, for the admin."""
        if caller_of(request.scope).role not in {CallerRole.LOCAL, CallerRole.ADMIN}:
            raise APIError(403, "permission_denied", "This needs the admin's token.")
        return Response(self._state.metrics.text(), media_type=CONTENT_TYPE)


def _may_use(caller: Caller, model: ServedModel) -> bool:
    """Whether the model is worth showing; the admin sees what there is and plays none."""
    policy = caller.permissions
    if caller.role is not CallerRole.KEY:
        return True
    mind = conductor_worker(model)
    heard = any(policy.allows_worker(worker) for worker in model.pool)
    return policy.allows_model(model.name) and heard and (not mind or policy.allows_worker(mind))


def _id_of(entries: list[dict[str, Any]]) -> str | None:
    return entries[0]["id"] if entries else None


async def _handle_store_error(_: Request, error: Exception) -> Response:
    log_exception(error)
    message = "The store cannot be read now; try again."
    raise APIError(503, "overloaded", message, headers={"retry-after": "1"}) from error


async def _handle_http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses, in the API's form."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    headers = dict(error.headers or {})
    place = f"{request.method} {request.url.path}"
    if error.status_code == _NOT_FOUND:
        raise APIError(404, "not_found", f"There is nothing at {place}.")
    if error.status_code == _NO_METHOD:
        message = f"{place} is not possible: the method must be {headers.get('Allow', 'another')}."
        raise APIError(405, "method_not_allowed", message, headers=headers)
    raise APIError(error.status_code, "invalid_request", error.detail, headers=headers)
