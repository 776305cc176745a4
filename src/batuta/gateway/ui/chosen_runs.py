"""Bulk actions on runs of the list: compare, export, make task files, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import final
from urllib.parse import urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response

from batuta.gateway.access.caller import actor_of, record_export
from batuta.gateway.admin.runs import run_entry
from batuta.gateway.errors import APIError, invalid_value, not_found, require_part
from batuta.gateway.http.stored_reads import read_stored_run
from batuta.gateway.serving.deletions import Deletions
from batuta.gateway.ui.comparison import SIDES
from batuta.gateway.ui.rendering import PAGE_HEADERS, redirect_to
from batuta.gateway.ui.session import WebSession, read_form_lists
from batuta.language.judged_answers import (
    find_confirmed_answer,
    find_expected_answer,
    is_plain_text,
)
from batuta.store import RunSummary, Store, read_run

_MOST = 50
"""Maximum number of selected runs: all on a page of the list."""
_MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of an export, in bytes."""
_Act = Callable[[Request, WebSession, Sequence[RunSummary]], Awaitable[Response]]


@final
class ChosenRuns:
    """Handles the form below the list of runs."""

    def __init__(self, store: Store | None, deletions: Deletions) -> None:
        self._optional_store = store
        self._deletions = deletions

    async def act(self, request: Request, session: WebSession) -> Response:
        """Perform the action of the pressed button on the selected runs.

        Raises:
            APIError: the form is not from one of our pages, the action is unknown or cannot be
                performed, too few or too many runs are selected, or a run does not exist.
        """
        form = await read_form_lists(request, session)
        acts: dict[str, _Act] = {
            "compare": self._compare,
            "export": self._export,
            "tasks": self._make_tasks,
            "delete": self._delete,
        }
        act = acts.get(form.get("act", [""])[-1])
        if act is None:
            raise invalid_value("act", f"it must be one of {', '.join(acts)}.")
        chosen = list(dict.fromkeys(form.get("run", ())))
        if not 0 < len(chosen) <= _MOST:
            raise invalid_value("run", f"choose between 1 and {_MOST} runs.")
        return await act(request, session, [await self._find(name, session) for name in chosen])

    async def _find(self, run_id: str, session: WebSession) -> RunSummary:
        found = await self._store.summary(run_id, session.tenant)
        if found is None:
            raise not_found(f"The run '{run_id[:80]}'")
        return found

    async def _compare(self, _: Request, __: WebSession, chosen: Sequence[RunSummary]) -> Response:
        if not 1 < len(chosen) <= len(SIDES):
            raise invalid_value("run", f"choose two to {len(SIDES)} runs to compare.")
        query = urlencode(dict(zip(SIDES, (run.id for run in chosen), strict=False)))
        return redirect_to(f"/ui/compare?{query}")

    async def _export(
        self, _: Request, session: WebSession, chosen: Sequence[RunSummary]
    ) -> Response:
        """Send a line of JSON for each run, in the form of `GET /v1/runs/ID`."""
        lines: list[bytes] = []
        for run in chosen:
            await record_export(self._store, session.caller, run.id, run.tenant)
            encoded = await read_stored_run(self._store, run.id, session.tenant, session.scope)
            trace = None if encoded is None else orjson.Fragment(encoded)
            lines.append(orjson.dumps({**run_entry(run), "trace": trace}))
            if sum(map(len, lines)) > _MAX_BYTES:
                raise APIError(
                    413, "request_too_large", "Too much for one file: choose fewer runs."
                )
        return _send_lines(lines, f"{len(lines)}-runs.jsonl")

    async def _make_tasks(
        self, _: Request, session: WebSession, chosen: Sequence[RunSummary]
    ) -> Response:
        """Send the questions with a known correct answer as a file for `batuta eval --tasks`."""
        lines: dict[str, bytes] = {}
        for summary in chosen:
            await record_export(self._store, session.caller, summary.id, summary.tenant)
            encoded = await read_stored_run(self._store, summary.id, session.tenant, session.scope)
            run = None if encoded is None else await read_run(encoded)
            if run is None or not is_plain_text(run.header.question):
                continue
            answer = find_expected_answer(summary.score_comment)
            answer = answer or find_confirmed_answer(run.answer, summary.score)
            if answer is not None:
                text = run.header.question.text
                line = {"id": run.id, "question": text, "answer": answer, "tags": ["served"]}
                lines.setdefault(text, orjson.dumps(line))
        if not lines:
            raise invalid_value(
                "run",
                "no selected run has a known correct answer. Judge a short answer as Right, or "
                "give the correct answer in the comment as `Expected: ANSWER`.",
            )
        return _send_lines(list(lines.values()), f"tasks-{len(lines)}-of-{len(chosen)}.jsonl")

    async def _delete(
        self, request: Request, _: WebSession, chosen: Sequence[RunSummary]
    ) -> Response:
        """Delete the runs and all runs that continued them, and redirect to the list."""
        by, deleted = actor_of(request), set[str]()
        for run in chosen:
            if run.id not in deleted:
                deleted |= set(
                    await self._deletions.delete_run(self._store, run.id, run.tenant, by=by)
                )
        return redirect_to(_list_address(request))

    @property
    def _store(self) -> Store:
        return require_part(self._optional_store, "This server keeps no runs.")


def _list_address(request: Request) -> str:
    query = request.url.query
    return f"/ui/runs?{query}" if query else "/ui/runs"


def _send_lines(lines: Sequence[bytes], name: str) -> Response:
    headers = {**PAGE_HEADERS, "content-disposition": f'attachment; filename="{name}"'}
    body = b"".join(line + b"\n" for line in lines)
    return Response(body, media_type="application/jsonl", headers=headers)
