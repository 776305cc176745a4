"""The ASGI app: the parts it is built from, its routes and its middleware."""

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
from batuta.gateway.errors import APIError, leaf_exceptions, log_exception, model_not_found
from batuta.gateway.files.endpoint import FileRoutes
from batuta.gateway.http.body import header_value, json_response, read_fields
from batuta.gateway.http.middleware import RequestMiddleware
from batuta.gateway.http.request_slots import ConcurrencyLimiter
from batuta.gateway.mcp.endpoint import McpEndpoint, McpOptions
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
"""Seconds for which the result of a readiness check is reused."""
_NOT_FOUND = 404
_METHOD_NOT_ALLOWED = 405
_UPGRADE_REQUIRED = 426


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The parts of a server; whoever made them opens and closes them."""

    catalogue: Catalogue
    """The workers and the models."""
    store: Store | None = None
    """Stores the runs; None: nothing is stored."""
    jobs: Jobs | None = None
    """Runs background requests; None: such requests are refused."""
    authenticator: Authenticator = field(default_factory=Authenticator)
    """Identifies callers; by default every caller is the local tenant."""
    rate_limiter: RateLimiter = field(default_factory=LocalRateLimiter)
    """Counts requests, tokens and concurrent requests per key, and bytes read per caller."""
    limiter: ConcurrencyLimiter = field(default_factory=ConcurrencyLimiter)
    """Limits the concurrent requests that call models, and queues further ones."""
    stream_timeouts: StreamTimeouts = field(default_factory=StreamTimeouts)
    hosts: frozenset[str] = frozenset()
    """Host names of the server, besides those of the loopback."""
    origins: frozenset[str] = frozenset()
    """Other origins (CORS) whose web pages may use `/v1`, but not the admin's routes; "*": any
    origin, if a key is needed."""
    span_exporter: RunSpanExporter | None = None
    """Exports the spans of runs; None: spans are not exported."""
    answer_cache: RepeatedAnswers | None = None
    """The cache of answers; None: answers are not cached."""
    sessions: SessionMemory = field(default_factory=LocalSessions)
    """The states of sessions; by default in the memory of the process."""
    waiting_runs: SharedWaitingRuns | None = None
    """Shares paused runs between replicas; None: each process keeps its own."""
    pool_editor: PoolEditor | None = None
    """Edits the pool's settings file; None: the pool has no TOML file."""
    oidc: OidcClient | None = None
    """The identity provider for sign-in to the page; None: not configured."""
    file_limits: FileLimits | None = None
    """Limits on uploaded files; None: files are not accepted."""
    mcp: McpOptions | None = None
    """Options of the Model Context Protocol endpoint; None: there is no such endpoint."""
    request_scopes: RequestScopes = field(default_factory=RequestScopes)
    """The requests that are being answered, each of which can be cancelled."""

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return the current gauges and counters: by name, the description and the value."""
        now: dict[str, tuple[str, float]] = {
            "running": ("Requests with a concurrency slot.", self.limiter.running),
            "waiting": ("Requests in the queue.", self.limiter.waiting),
            "turned_away_total": (
                "Requests that the full queue refused or displaced, or that waited too long.",
                self.limiter.rejected,
            ),
            "tasks": ("Tasks of the event loop.", len(anyio.get_running_tasks())),
        }
        cache = self.answer_cache
        if cache is not None:
            now["answers_repeated_total"] = ("Answers served from the cache.", cache.hits)
            now["answers_not_found_total"] = ("Cache lookups without an answer.", cache.misses)
        if self.store is not None:
            now["unwritten_runs"] = ("Runs waiting to be written.", self.store.pending_count)
            now["lost_runs_total"] = ("Runs that the database rejected.", self.store.lost_count)
        return now


def create_app(state: ServerState) -> Starlette:
    """Return the ASGI app that serves `state`, without its background services."""
    return assemble_app(state)[0]


def assemble_app(state: ServerState) -> tuple[Starlette, BackgroundResponses, ShadowRuns]:
    """Return the ASGI app and two background services.

    The caller must run the `work` of both, and that of `app.state.mcp` unless it is None.
    """
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
    deletions = Deletions(state.jobs, authenticator, pending, service.before_calls)
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
    """Return the app of these routes; the `work` of `app.state.mcp`, if any, must run beside it."""
    app = _GatewayApp(routes, around)
    app.router.redirect_slashes = False
    app.state.mcp = mcp
    if mcp is not None:
        mcp.attach(app)
    return app


def _request_layer(
    state: ServerState, metrics: Metrics, routes: Sequence[BaseRoute]
) -> Callable[[ASGIApp], ASGIApp]:
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
    """Routes for the served models, liveness, readiness and metrics."""

    def __init__(self, state: ServerState, metrics: Metrics, drift: DriftMonitor) -> None:
        self._catalogue = state.catalogue
        self._store = state.store
        self._limiter = state.limiter
        self._metrics = metrics
        self._drift = drift
        self._check_lock = anyio.Lock(fast_acquire=True)
        self._checked_at = float("-inf")
        self._store_ready = False

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
        """Return the models that the caller may see, then the aliases of such models."""
        created, caller = self._catalogue.created, caller_of(request.scope)
        drift, whole = await self._drift.read(), caller.role is not CallerRole.KEY
        data = [
            m.model_object(created) | drift_of(m, drift, whole=whole)
            for m in self._catalogue.models
            if _may_see(caller, m)
        ]
        data += [
            m.model_object(created, alias)
            for alias in self._catalogue.aliases.configured
            if (m := self._catalogue.resolve_model(alias)) and _may_see(caller, m)
        ]
        # These three fields are for Anthropic's clients.
        ends = {"has_more": False, "first_id": _id_of(data[:1]), "last_id": _id_of(data[-1:])}
        return json_response({"object": "list", "data": data, **ends})

    async def get_model(self, request: Request) -> Response:
        """Return the model of a name, worker id or alias.

        Raises:
            APIError: there is no such model, or the caller may not see it.
        """
        name: str = request.path_params["id"]
        model = self._catalogue.resolve_model(name)
        caller = caller_of(request.scope)
        if model is None or not _may_see(caller, model):
            why = None if model else self._catalogue.unavailable_models.get(name)
            raise model_not_found(name, why)
        whole = caller.role is not CallerRole.KEY
        drift = drift_of(model, await self._drift.read(), whole=whole)
        return json_response(model.model_object(self._catalogue.created, name) | drift)

    async def healthz(self, _: Request) -> Response:
        """Return 200: the process is alive."""
        return json_response({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        """Return 503 if the server is stopping or its store is not usable, else 200.

        The conductor needs no check: it is loaded before the server starts.
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
        """Return True if the store is usable, or there is none.

        The store is checked at most once a second, since `/readyz` needs no key.
        """
        if self._store is None:
            return True
        async with self._check_lock:
            if monotonic() - self._checked_at >= _READY_SECONDS:
                self._store_ready = await self._store.is_ready()
                self._checked_at = monotonic()
            return self._store_ready

    async def metrics(self, request: Request) -> Response:
        """Return the metrics.

        Raises:
            APIError: keys are needed, and the caller is not the admin.
        """
        if caller_of(request.scope).role not in {CallerRole.LOCAL, CallerRole.ADMIN}:
            message = "This request needs the admin token or the session of an administrator."
            raise APIError(403, "permission_denied", message)
        await self._drift.read()
        return Response(await self._metrics.render(), media_type=CONTENT_TYPE)


def _may_see(caller: Caller, model: ServedModel) -> bool:
    """Return True if the caller may see the model; a key limits this to what it may use."""
    if caller.role is not CallerRole.KEY:
        return True
    policy, conductor = caller.permissions, conductor_worker(model.conductor)
    return (
        policy.allows_model(model.name)
        and any(policy.allows_worker(worker) for worker in model.pool)
        and (conductor is None or policy.allows_worker(conductor))
    )


def _id_of(entries: list[dict[str, Any]]) -> str | None:
    return entries[0]["id"] if entries else None


@final
class _GatewayApp(Starlette):
    """Starlette's app with our middleware in place of Starlette's."""

    def __init__(self, routes: Sequence[BaseRoute], around: Callable[[ASGIApp], ASGIApp]) -> None:
        super().__init__(routes=routes)
        self._around = around

    def build_middleware_stack(self) -> ASGIApp:
        """Wrap the router in our middleware."""
        return self._around(self.router)


def _explain_error(scope: Scope, error: Exception) -> APIError | None:
    """Return the API error for a failure of the store (which is logged) or a refusal of the router.

    Return None for any other error.
    """
    if all(isinstance(leaf, StoreError) for leaf in leaf_exceptions(error)):
        log_exception(error)
        message = "The store cannot be used now; try again."
        return APIError(503, "overloaded", message, headers={"retry-after": "1"})
    return _explain_refusal(scope, error) if isinstance(error, HTTPException) else None


def _allowed_methods(scope: Scope) -> list[str]:
    """Return the methods of all routes of the path; Starlette names only the first route's."""
    routes = (route for route in scope["app"].routes if isinstance(route, Route))
    matching = (route for route in routes if route.matches(scope)[0] is not Match.NONE)
    return sorted({method for route in matching for method in route.methods or ()})


def _explain_refusal(scope: Scope, error: HTTPException) -> APIError:
    """Return the router's refusal of a request as an API error."""
    headers = dict(error.headers or {})
    target = f"{scope['method']} {scope['path']}"
    if error.status_code == _NOT_FOUND:
        return APIError(404, "not_found", f"No endpoint: {target}.")
    if error.status_code == _METHOD_NOT_ALLOWED and header_value(scope, b"upgrade") == b"websocket":
        # Codex tries a WebSocket first and falls back to HTTP only at this status.
        message = f"WebSockets are not supported: send POST {scope['path']}."
        return APIError(_UPGRADE_REQUIRED, "websocket_unsupported", message, headers=headers)
    if error.status_code == _METHOD_NOT_ALLOWED:
        allowed = ", ".join(_allowed_methods(scope))
        message = f"{target} is not allowed: the method must be {allowed}."
        return APIError(405, "method_not_allowed", message, headers={**headers, "Allow": allowed})
    return APIError(error.status_code, "invalid_request", error.detail, headers=headers)
