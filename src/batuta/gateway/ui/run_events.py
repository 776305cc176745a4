"""The events of a run, streamed to a page that may come late and may come again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from batuta.gateway.errors import internal_error, log_exception, server_closing
from batuta.gateway.http.reader import DisconnectReason, SSEWriter
from batuta.gateway.serving.deliver import AnswerDelivery
from batuta.gateway.ui.page_runs import Failed, PageEvent, PageRun, PageRuns, retell_run
from batuta.gateway.ui.playground import load_run
from batuta.gateway.ui.run_stream import PageStreamRenderer
from batuta.gateway.ui.run_view import panel_scope
from batuta.gateway.ui.session import SessionManager, WebSession
from batuta.store import Store


@final
class RunEventsEndpoint:
    """GET /ui/runs/{id}/events: the events of a run, from its beginning to its end."""

    def __init__(
        self,
        delivery: AnswerDelivery,
        store: Store | None,
        sessions: SessionManager,
        page_runs: PageRuns,
    ) -> None:
        self._delivery = delivery
        self._page_runs = page_runs
        self._store = store
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one reader, for as long as the run goes on.

        Raises:
            APIError: there is no such run for this visitor.
        """
        request = Request(scope, receive)
        visitor = self._sessions.identify_signed_in(request)
        run_id: str = request.path_params["id"]
        page_run = self._page_runs.find(run_id, visitor)
        events = await self._events(run_id, page_run, visitor)
        writer = SSEWriter(send, self._delivery.timeouts)
        side = panel_scope(request.query_params.get("scope"))
        renderer = PageStreamRenderer(writer, f"{side}-" if side else "")

        async def work() -> None:
            await renderer.open(run_id, 0.0 if page_run is None else page_run.elapsed())
            async for event in events:
                await renderer.show(event)

        try:
            ended = await self._delivery.scopes.run(receive, work, writer)
        except Exception as error:  # noqa: BLE001 - the 200 is out: say it in the stream
            log_exception(error)
            await renderer.show(Failed(internal_error()))
            return
        if ended is DisconnectReason.SERVER_CLOSING:
            await renderer.show(Failed(server_closing()))

    async def _events(
        self, run_id: str, page_run: PageRun | None, visitor: WebSession
    ) -> AsyncIterator[PageEvent]:
        """Return what the run tells, or what it told if it has ended.

        Raises:
            APIError: there is no such run for this visitor.
        """
        if page_run is not None:
            return page_run.follow()
        return retell_run(await load_run(self._store, self._page_runs, run_id, visitor))
