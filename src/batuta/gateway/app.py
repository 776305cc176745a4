"""The app: what it is put together from, its routes, and the layers around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, final

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Scope

from batuta.core.conductor import conductor_worker
from batuta.errors import StoreError
from batuta.gateway.access.caller import Authenticator, Caller, CallerRole, caller_of
from batuta.gateway.access.oidc import OidcClient
from batuta.gateway.access.rate_limit import LocalRateLimiter, RateLimiter
from batuta.gateway.admin.approvals import ApprovalRoutes
from batuta.gateway.admin.routes import AdminRoutes
from batuta.gateway.admin.runs import RunRoutes
from batuta.gateway.chat.endpoint import CHAT_FORM, CompletionEndpoint
from batuta.gateway.chat.text_completion import COMPLETIONS_PATH, TEXT_FORM
from batuta.gateway.embeddings.endpoint import EmbeddingsEndpoint
from batuta.gateway.errors import APIError, log_exception, model_not_found
from batuta.gateway.files.endpoint import FileRoutes
from batuta.gateway.http.body import header_value, json_response, read_fields
from batuta.gateway.http.middleware import RequestMiddleware
from batuta.gateway.http.request_slots import ConcurrencyLimiter
from batuta.gateway.mcp.endpoint import McpEndpoint, McpOffer
from batuta.gateway.messages.endpoint import MessagesEndpoint, TokenCounter
from batuta.gateway.openapi.document import DocumentEndpoint
from batuta.gateway.responses.background import BackgroundResponses, KeyLimitGate
from batuta.gateway.responses.endpoint import (
    CompactionEndpoint,
    ResponsesEndpoint,
    StoredResponseEndpoint,
    StoredResponseRoutes,
)
from batuta.gateway.responses.store import ResponseStore
from batuta.gateway.serving.answer_cache import RepeatedAnswers
from batuta.gateway.serving.deletions import Deletions
from batuta.gateway.serving.deliver import AnswerDelivery, RequestScopes, StreamTimeouts
from batuta.gateway.serving.drift import DriftMonitor, drift_of
from batuta.gateway.serving.execute import RunService
from batuta.gateway.serving.models import Catalogue, ServedModel
from batuta.gateway.serving.moderation import MODERATIONS_PATH, ModerationEndpoint
from batuta.gateway.serving.pool_editor import PoolEditor
from batuta.gateway.serving.shadow import ShadowRuns
from batuta.gateway.serving.tenant_memory import LocalSessions, SessionMemory
from batuta.gateway.serving.uploaded_files import FileLimits, UploadedFiles
from batuta.gateway.serving.waiting_runs import PendingToolRuns, SharedWaitingRuns
from batuta.gateway.telemetry.metrics import CONTENT_TYPE, Metrics
from batuta.gateway.telemetry.spans import RunSpanExporter
from batuta.gateway.ui import page_routes
from batuta.gateway.ui.api_reference import ApiReference
from batuta.jobs import Jobs
from batuta.store import Store

_READY_SECONDS = 1.0
"""Seconds for which what the store has said of itself is believed."""
_NOT_FOUND = 404
_NO_METHOD = 405
_NO_SOCKET = 426


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The parts of a server; only the app and the process around it name it.

    It owns nothing: clients, store and jobs are opened and closed by whoever gives them.
    """

    catalogue: Catalogue
    """The workers and the models."""
    store: Store | None = None
    """Keeps the runs; None: nothing is kept."""
    jobs: Jobs | None = None
    """Runs the background jobs; None: nothing runs in the background."""
    authenticator: Authenticator = field(default_factory=Authenticator)
    """Tells who asks; if not given, everybody is the local tenant."""
    rate_limiter: RateLimiter = field(default_factory=LocalRateLimiter)
    """Counts what keys use."""
    limiter: ConcurrencyLimiter = field(default_factory=ConcurrencyLimiter)
    """Counts the requests that are served and those that wait."""
    stream_timeouts: StreamTimeouts = field(default_factory=StreamTimeouts)
    hosts: frozenset[str] = frozenset()
    """Names under which the server is reached, besides those of the loopback."""
    origins: frozenset[str] = frozenset()
    """Origins of the other web pages that may use the API."""
    span_exporter: RunSpanExporter | None = None
    """The exporter of runs' spans; None for none."""
    answer_cache: RepeatedAnswers | None = None
    """Finds answers that are given again; None: none is."""
    sessions: SessionMemory = field(default_factory=LocalSessions)
    """The states of sessions; if not given, they live as long as the process."""
    waiting_runs: SharedWaitingRuns | None = None
    """The place where replicas find each other's waiting runs; None: each keeps its own."""
    pool_editor: PoolEditor | None = None
    """Changes the settings file of the pool; None: there is none."""
    oidc: OidcClient | None = None
    """The identity provider by which people sign in to the page; None: by keys alone."""
    file_limits: FileLimits | None = None
    """How much of uploaded files is kept; None: no files are."""
    mcp: McpOffer | None = None
    """How hosts of the Model Context Protocol are served; None: they are not."""
    request_scopes: RequestScopes = field(default_factory=RequestScopes)
    """The requests that are being answered."""

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return the metrics of this moment."""
        now: dict[str, tuple[str, float]] = {
            "running": ("Requests being answered.", self.limiter.running),
            "waiting": ("Requests in the queue.", self.limiter.waiting),
            "turned_away_total": ("Requests for which there was no place.", self.limiter.rejected),
            "tasks": ("Tasks of the event loop.", len(anyio.get_running_tasks())),
        }
        cache = self.answer_cache
        if cache is not None:
            now["answers_repeated_total"] = ("Answers that were given again.", cache.hits)
            now["answers_not_found_total"] = ("Answers that might have been.", cache.misses)
        if self.store is not None:
            now["unwritten_runs"] = ("Runs that wait to be written.", self.store.pending_count)
            now["lost_runs_total"] = ("Runs that the database refused.", self.store.lost_count)
        return now


def create_app(state: ServerState) -> Starlette:
    """Return the ASGI app that serves what `state` names; nobody runs its background jobs."""
    return assemble_app(state)[0]


def assemble_app(state: ServerState) -> tuple[Starlette, BackgroundResponses, ShadowRuns]:
    """Return the ASGI app, and what works in the background while their `work` goes on."""
    catalogue, store, authenticator = state.catalogue, state.store, state.authenticator
    drift = DriftMonitor(catalogue, store)
    pending = PendingToolRuns(store, state.waiting_runs)
    metrics = Metrics(state.gauges, lambda: catalogue.health, lambda: drift.latest)
    files = UploadedFiles(store, state.file_limits)
    service = RunService(
        catalogue,
        store=store,
        rate_limiter=state.rate_limiter,
        pending_tool_runs=pending,
        metrics=metrics,
        span_exporter=state.span_exporter,
        answer_cache=state.answer_cache,
        sessions=state.sessions,
        files=files,
        key_watch=authenticator.key_watch,
    )
    delivery = AnswerDelivery(service, state.request_scopes, state.stream_timeouts)
    deletions = Deletions(state.jobs, authenticator, pending)
    responses = ResponseStore(store)
    gate = KeyLimitGate(authenticator, state.rate_limiter.concurrency)
    background = BackgroundResponses(service, responses, state.jobs, authenticator, gate=gate)
    stored = StoredResponseEndpoint(
        delivery, responses, background, store=store, deletions=deletions
    )
    read = read_fields if store is None or state.file_limits is None else files.read_fields
    posted: dict[str, Any] = {
        "/v1/chat/completions": CompletionEndpoint(delivery, CHAT_FORM, read),
        "/v1/responses": ResponsesEndpoint(delivery, responses, background, read),
        "/v1/responses/compact": CompactionEndpoint(delivery, responses, read),
        COMPLETIONS_PATH: CompletionEndpoint(delivery, TEXT_FORM, read),
        MODERATIONS_PATH: ModerationEndpoint(catalogue, state.rate_limiter).moderate,
        "/v1/embeddings": EmbeddingsEndpoint(delivery),
        "/v1/messages": MessagesEndpoint(delivery, read),
        "/v1/messages/count_tokens": TokenCounter(service, read).count,
    }
    routes = [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posted.items()),
        Route("/v1/responses/{id}", stored, methods=["GET", "DELETE"]),
        *StoredResponseRoutes(responses, background).routes(),
        *ServerRoutes(state, metrics, drift).routes(),
        *FileRoutes(files).routes(),
        *RunRoutes(store, deletions).routes(),
        *ApprovalRoutes(store, catalogue).routes(),
        *AdminRoutes(catalogue, store, authenticator, deletions).routes(),
        *_list_page_routes(state, delivery=delivery, deletions=deletions, drift=drift),
    ]
    document = DocumentEndpoint(routes)
    routes.append(Route("/openapi.json", document.send))
    routes.append(Route("/docs", ApiReference(document.read).page))
    mcp = None if state.mcp is None else McpEndpoint(state.mcp)
    routes += [] if mcp is None else [mcp.route()]
    app = _open_app(routes, _request_layer(state, metrics, routes), mcp)
    return app, background, service.shadows


def _list_page_routes(
    state: ServerState, *, delivery: AnswerDelivery, deletions: Deletions, drift: DriftMonitor
) -> list[BaseRoute]:
    """List the routes of the web page."""
    return page_routes(
        state.catalogue,
        state.store,
        state.authenticator,
        delivery=delivery,
        deletions=deletions,
        drift=drift,
        pool_editor=state.pool_editor,
        oidc=state.oidc,
    )


def _open_app(
    routes: Sequence[BaseRoute], around: Callable[[ASGIApp], ASGIApp], mcp: McpEndpoint | None
) -> Starlette:
    """Return the app of those routes; whoever runs it finds there what else is to be run."""
    app = _GatewayApp(routes, around)
    app.router.redirect_slashes = False
    app.state.mcp = mcp
    if mcp is not None:
        mcp.attach(app)
    return app


def _request_layer(
    state: ServerState, metrics: Metrics, routes: Sequence[BaseRoute]
) -> Callable[[ASGIApp], ASGIApp]:
    """Return the layer that every request passes through on its way to the routes."""
    return partial(
        RequestMiddleware,
        metrics=metrics,
        routes=routes,
        authenticator=state.authenticator,
        limiter=state.limiter,
        rate_limiter=state.rate_limiter,
        hosts=state.hosts,
        origins=state.origins,
        store=state.store,
        explain=_explain_error,
    )


@final
class ServerRoutes:
    """The served models, and whether the server lives and can work."""

    def __init__(self, state: ServerState, metrics: Metrics, drift: DriftMonitor) -> None:
        self._catalogue = state.catalogue
        self._store = state.store
        self._limiter = state.limiter
        self._metrics = metrics
        self._drift = drift
        self._asking = anyio.Lock(fast_acquire=True)
        self._asked_at = float("-inf")
        self._stored = False

    def routes(self) -> list[Route]:
        """Return the routes of these methods."""
        return [
            Route("/v1/models", self.list_models),
            Route("/v1/models/{id:path}", self.get_model),
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route("/metrics", self.metrics),
        ]

    async def list_models(self, request: Request) -> Response:
        """Return every model that the caller may use."""
        created, caller = self._catalogue.created, caller_of(request.scope)
        drift, whole = await self._drift.read(), caller.role is not CallerRole.KEY
        data = [
            m.model_object(created) | drift_of(m, drift, whole=whole)
            for m in self._catalogue.models
            if _may_use(caller, m)
        ]
        data += [
            m.model_object(created, alias)
            for alias in self._catalogue.aliases.configured
            if (m := self._catalogue.resolve_model(alias)) and _may_use(caller, m)
        ]
        # The last three are for Anthropic's clients.
        ends = {"has_more": False, "first_id": _id_of(data[:1]), "last_id": _id_of(data[-1:])}
        return json_response({"object": "list", "data": data, **ends})

    async def get_model(self, request: Request) -> Response:
        """Return one model."""
        name: str = request.path_params["id"]
        model = self._catalogue.resolve_model(name)
        caller = caller_of(request.scope)
        if model is None or not _may_use(caller, model):
            why = None if model else self._catalogue.unavailable_models.get(name)
            raise model_not_found(name, why)
        whole = caller.role is not CallerRole.KEY
        known = drift_of(model, await self._drift.read(), whole=whole)
        return json_response(model.model_object(self._catalogue.created, name) | known)

    async def healthz(self, _: Request) -> Response:
        """Say that the process answers."""
        return json_response({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        """Tell whether runs can be served: the store takes them, and no stop is near.

        The conductor is loaded before anything is served.
        """
        stored = await self._is_store_ready()
        body: dict[str, Any] = {"status": "ok", "store": stored and self._store is not None}
        if self._limiter.is_closing:
            body |= {"status": "closing", "message": "The server is about to stop."}
        elif not stored:
            message = "The store cannot be read and written now; the server's log says why."
            body |= {"status": "unavailable", "message": message}
        return json_response(body, 200 if body["status"] == "ok" else 503)

    async def _is_store_ready(self) -> bool:
        """Ask the store, once a second at most: anybody may ask whether the server is ready."""
        if self._store is None:
            return True
        async with self._asking:
            if monotonic() - self._asked_at >= _READY_SECONDS:
                self._stored = await self._store.is_ready()
                self._asked_at = monotonic()
            return self._stored

    async def metrics(self, request: Request) -> Response:
        """Show the metrics; where keys are needed, to the admin alone."""
        if caller_of(request.scope).role not in {CallerRole.LOCAL, CallerRole.ADMIN}:
            raise APIError(403, "permission_denied", "This needs the admin's token.")
        await self._drift.read()
        return Response(await self._metrics.render(), media_type=CONTENT_TYPE)


def _may_use(caller: Caller, model: ServedModel) -> bool:
    """Return True if the model is worth showing; the admin sees all models and runs none."""
    policy = caller.permissions
    if caller.role is not CallerRole.KEY:
        return True
    drafts = conductor_worker(model.conductor)
    reachable = any(policy.allows_worker(worker) for worker in model.pool)
    allows_drafts = drafts is None or policy.allows_worker(drafts)
    return policy.allows_model(model.name) and reachable and allows_drafts


def _id_of(entries: list[dict[str, Any]]) -> str | None:
    return entries[0]["id"] if entries else None


@final
class _GatewayApp(Starlette):
    """Starlette's routes and state, within our one layer in place of its own."""

    def __init__(self, routes: Sequence[BaseRoute], around: Callable[[ASGIApp], ASGIApp]) -> None:
        super().__init__(routes=routes)
        self._around = around

    def build_middleware_stack(self) -> ASGIApp:
        """Return the layer, and the routes within it."""
        return self._around(self.router)


def _explain_error(scope: Scope, error: Exception) -> APIError | None:
    """Explain a store that fails, and requests that the router itself refuses."""
    if isinstance(error, StoreError):
        log_exception(error)
        message = "The store cannot be used now; try again."
        return APIError(503, "overloaded", message, headers={"retry-after": "1"})
    return _explain_refusal(scope, error) if isinstance(error, HTTPException) else None


def _allowed_methods(scope: Scope) -> list[str]:
    """Return the methods of every route of that path; the router names those of the first alone."""
    routes = (route for route in scope["app"].routes if isinstance(route, Route))
    there = (route for route in routes if route.matches(scope)[0] is not Match.NONE)
    return sorted({method for route in there for method in route.methods or ()})


def _explain_refusal(scope: Scope, error: HTTPException) -> APIError:
    """Explain in the API's form why the router itself refuses a request."""
    headers = dict(error.headers or {})
    place = f"{scope['method']} {scope['path']}"
    if error.status_code == _NOT_FOUND:
        return APIError(404, "not_found", f"There is nothing at {place}.")
    if error.status_code == _NO_METHOD and header_value(scope, b"upgrade") == b"websocket":
        # Codex tries this first, and goes on without at this status alone.
        message = f"There are no WebSockets here: send POST {scope['path']}."
        return APIError(_NO_SOCKET, "websocket_unsupported", message, headers=headers)
    if error.status_code == _NO_METHOD:
        allowed = ", ".join(_allowed_methods(scope))
        message = f"{place} is not possible: the method must be {allowed}."
        return APIError(405, "method_not_allowed", message, headers={**headers, "Allow": allowed})
    return APIError(error.status_code, "invalid_request", error.detail, headers=headers)
