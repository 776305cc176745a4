"""/v1/runs and /v1/sessions: lists, sums, reads, judges and deletes stored runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from batuta.gateway.access.caller import actor_of, caller_of, record_reading
from batuta.gateway.admin.paging import check_query, parse_limit
from batuta.gateway.errors import invalid_value, not_found, require_part
from batuta.gateway.http.body import encode_json, json_response, read_fields
from batuta.gateway.http.stored_reads import in_pieces, read_stored_run
from batuta.gateway.serving.deletions import Deletions
from batuta.store import RunSummary, Store
from batuta.store.run_filter import RUN_PARAMETERS, RunFilter, RunFilterError, parse_run_filter
from batuta.store.run_list import RunTotals
from batuta.store.savings import list_savings, saving_json, sum_savings

_DEFAULT_PAGE = 20
_MAX_COMMENT = 10_000


@final
class RunRoutes:
    """Lists, sums, reads, judges and deletes the stored runs.

    Each route raises `APIError` if its request is invalid, its run does not exist, or the server
    has no store; and `StoreError` if the database fails.
    """

    def __init__(self, store: Store | None, deletions: Deletions) -> None:
        self._optional_store = store
        self._deletions = deletions

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/runs", self.list_runs),
            Route("/v1/runs/totals", self.sum_runs, methods=["GET"]),
            Route("/v1/sessions", self.list_sessions, methods=["GET"]),
            Route("/v1/runs/{id}", self.get_run, methods=["GET"]),
            Route("/v1/runs/{id}", self.delete, methods=["DELETE"]),
            Route("/v1/runs/{id}/feedback", self.feedback, methods=["POST"]),
        ]

    async def list_runs(self, request: Request) -> Response:
        """Return a page of the runs that match the query's filter, in the form of `RunPage`."""
        query = request.query_params
        run_filter = _read_filter(request, "limit", "after")
        limit = parse_limit(query, _DEFAULT_PAGE)
        try:
            page = await self._store.find(run_filter, limit, query.get("after"))
        except ValueError:
            raise invalid_value("after", "it is not a cursor of this list.") from None
        return json_response(
            {
                "object": "list",
                "data": [run_entry(row) for row in page.rows],
                "has_more": page.next_cursor is not None,
                "next_cursor": page.next_cursor,
                "searched_to": page.searched_to,
            }
        )

    async def sum_runs(self, request: Request) -> Response:
        """Return the totals of the runs that match the query's filter; see `RunTotals`."""
        totals = await self._store.totals(_read_filter(request))
        return json_response(totals_entry(totals))

    async def list_sessions(self, request: Request) -> Response:
        """Return sessions compared with the best single worker, the most recently active first.

        `total` sums the runs since `since`, with or without a session, even if the query names a
        `session`. Both read the newest `SAVINGS_WINDOW` runs at most.
        """
        run_filter = _read_filter(request, "limit", names=("since", "session", "tenant"))
        limit = parse_limit(request.query_params, _DEFAULT_PAGE)
        database, tenant, since = self._store.database, run_filter.tenant, run_filter.since
        await self._store.flush()
        found = await list_savings(
            database, limit, tenant=tenant, session=run_filter.session, since=since
        )
        total = await sum_savings(database, tenant=tenant, since=since)
        data = [{"object": "session", **saving_json(saving)} for saving in found]
        return json_response({"object": "list", "data": data, "total": saving_json(total)})

    async def get_run(self, request: Request) -> Response:
        """Return a run with its trace; the trace is null if the content was not stored."""
        check_query(request.query_params)
        summary, caller = await self._find(request), caller_of(request.scope)
        await record_reading(self._store, caller, summary.id, summary.tenant)
        tenant = caller.visible_tenant
        encoded = await read_stored_run(self._store, summary.id, tenant, request.scope)
        return _send_run(run_entry(summary), encoded)

    async def delete(self, request: Request) -> Response:
        """Delete a run with its content and the runs that continue it."""
        run, by = await self._find(request), actor_of(request)
        deleted = await self._deletions.delete_run(self._store, run.id, run.tenant, by=by)
        return json_response({"id": run.id, "object": "run", "deleted": True, "runs": deleted})

    async def feedback(self, request: Request) -> Response:
        """Judge a run by a `score` in [0, 1] and a `comment`; they replace earlier ones.

        A score of null removes the earlier score, and an absent comment the earlier comment.
        """
        run_id, tenant = request.path_params["id"], caller_of(request.scope).visible_tenant
        body = await read_fields(request.scope, request.receive)
        if "score" not in body.names:
            body.need("score")
        score = body.number("score", 0, 1)
        comment = body.text("comment") or ""
        if len(comment) > _MAX_COMMENT:
            raise invalid_value("comment", f"it exceeds {_MAX_COMMENT} characters.")
        if not await self._store.score(run_id, score, comment, tenant):
            raise not_found(f"The run '{run_id}'")
        return json_response({"id": run_id, "object": "run.feedback", "score": score})

    async def _find(self, request: Request) -> RunSummary:
        """Return the summary of the run in the path, if the caller may see the run.

        Raises:
            APIError: there is no such run, or this server keeps no runs.
        """
        run_id: str = request.path_params["id"]
        summary = await self._store.summary(run_id, caller_of(request.scope).visible_tenant)
        if summary is None:
            raise not_found(f"The run '{run_id}'")
        return summary

    @property
    def _store(self) -> Store:
        return require_part(self._optional_store, "This server keeps no runs.")


def _send_run(entry: dict[str, Any], trace: bytes | None) -> Response:
    """Return a response with the entry and the trace as one object; the trace is not parsed."""
    if trace is None:
        return json_response({**entry, "trace": None})
    parts = (encode_json(entry).removesuffix(b"}"), b',"trace":', trace, b"}")
    headers = {"content-length": str(sum(map(len, parts)))}
    return StreamingResponse(in_pieces(*parts), media_type="application/json", headers=headers)


def run_entry(row: RunSummary) -> dict[str, Any]:
    """Return a run as an entry of a list; an unknown cost is null."""
    return {
        "id": row.id,
        "object": "run",
        "created": row.created,
        "model": row.model,
        "conductor": row.conductor,
        "parent": row.parent,
        "session": row.session,
        "acting": row.acted.acting,
        "took_over_from": row.acted.took_over_from,
        "reason": row.acted.reason,
        "user": row.user,
        "tags": row.tags,
        "workers": row.workers,
        "outcome": row.outcome.value,
        "error_code": row.error_code,
        "question": row.question_preview,
        "answer": row.answer_preview,
        "steps": row.steps,
        "rounds": row.rounds,
        "calls": row.calls,
        "input_tokens": row.input_tokens,
        "cached_tokens": row.cached_tokens,
        "output_tokens": row.output_tokens,
        "reasoning_tokens": row.reasoning_tokens,
        "cost_usd": None if row.cost.is_unknown else f"{row.cost.usd:f}",
        "unpriced_calls": row.cost.unpriced_calls,
        "seconds": row.seconds,
        "best_single_usd_estimate": None if row.alone_usd is None else f"{row.alone_usd:f}",
        "shadow": row.shadow,
        "score": row.score,
        "comment": row.score_comment,
    }


def totals_entry(totals: RunTotals) -> dict[str, Any]:
    """Return the totals as an object of the API; an unknown cost is null."""
    return {
        "object": "run.totals",
        "runs": totals.runs,
        "unanswered": totals.unanswered,
        "cost_usd": None if totals.cost.is_unknown else f"{totals.cost.usd:f}",
        "unpriced_calls": totals.cost.unpriced_calls,
        "input_tokens": totals.input_tokens,
        "output_tokens": totals.output_tokens,
        "seconds_p50": totals.median_seconds,
        "seconds_p95": totals.p95_seconds,
        "judged": totals.judged,
        "mean_score": totals.mean_score,
        "searched_to": totals.searched_to,
    }


def _read_filter(
    request: Request, *besides: str, names: Collection[str] = RUN_PARAMETERS
) -> RunFilter:
    """Read the filter from the query; only the admin finds the runs of other tenants.

    Args:
        request: the request.
        besides: parameters of the endpoint that are no part of the filter.
        names: parameters of the filter that the endpoint accepts.

    Raises:
        APIError: a parameter is unknown or invalid.
    """
    query, tenant = request.query_params, caller_of(request.scope).visible_tenant
    names = [name for name in names if name != "tenant" or tenant is None]
    check_query(query, *besides, *names)
    try:
        found = parse_run_filter(pair for pair in query.multi_items() if pair[0] not in besides)
    except RunFilterError as error:
        raise invalid_value(error.name, str(error)) from None
    return found if tenant is None else replace(found, tenant=tenant)
