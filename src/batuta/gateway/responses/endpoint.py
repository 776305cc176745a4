"""The endpoints of /v1/responses: create, read, stream, list input, cancel, compact, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from functools import partial
from time import time
from typing import Any, final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from batuta.core import Reply, Run
from batuta.gateway.access.caller import actor_of, caller_of
from batuta.gateway.errors import APIError, invalid_value, not_found, require_part
from batuta.gateway.http.body import (
    BodyReader,
    Fields,
    json_response,
    parse_fields,
    query_number,
    send_json,
)
from batuta.gateway.responses.background import BackgroundResponses
from batuta.gateway.responses.compaction import compaction_body, kept_messages
from batuta.gateway.responses.events import ResponseEventWriter, replay_events
from batuta.gateway.responses.request import (
    ResponseCall,
    ResponseHistory,
    parse_history_references,
    parse_with_history,
)
from batuta.gateway.responses.response import finished_response, new_response, response_usage
from batuta.gateway.responses.store import ResponseStore, body_of, events_of, inputs_of
from batuta.gateway.responses.stream import ResponsesStreamRenderer, SSEEventSink, send_events
from batuta.gateway.serving.deletions import Deletions
from batuta.gateway.serving.deliver import AnswerDelivery
from batuta.store import Store
from batuta.store.responses import ALL_PARTS, StoredResponse, response_id


@final
class ResponsesEndpoint:
    """Answers POST /v1/responses: whole, streamed, or in the background."""

    def __init__(
        self,
        delivery: AnswerDelivery,
        responses: ResponseStore,
        background: BackgroundResponses,
        read: BodyReader,
    ) -> None:
        self._read = read
        self._delivery = delivery
        self._responses = responses
        self._background = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: the request fails before the response has started.
            StoreError: the database fails before the response has started.
            ClientGone: the client disconnects before the body is read.
        """
        body = await self._read(scope, receive)
        caller = caller_of(scope)
        references = await parse_fields(parse_history_references, body)
        history = await self._responses.load_history(references, scope)
        response_call = await parse_with_history(body, history)
        if response_call.background:
            await self._submit_background(
                response_call, body, history=history, scope=scope, receive=receive, send=send
            )
            return
        delivery = self._delivery
        async with delivery.service.prepare_call(response_call.call, caller) as prepared:
            base = new_response(response_call.echo, response_id(prepared.run_id), int(time()))
            events = ResponseEventWriter(base, compacts=response_call.compacts)
            if response_call.call.stream:
                save = partial(self._responses.save, response_call, caller)
                sink = SSEEventSink(
                    send, delivery.timeouts, events.keep_alive, keep_events=response_call.call.store
                )
                renderer = ResponsesStreamRenderer(sink, events, prepared, save)
                await delivery.stream_answer(prepared, renderer, sink.writer, receive)
                return

            async def render(run: Run, reply: Reply) -> dict[str, Any]:
                events.remaining(reply, reasoning=prepared.served_model.direct)
                trace = response_call.call.options.trace
                response = finished_response(events.base, events.output, run, reply, trace=trace)
                await self._responses.save(response_call, caller, response)
                return response

            await delivery.send_answer(prepared, render, receive, send)

    async def _submit_background(
        self,
        response_call: ResponseCall,
        body: Fields,
        history: ResponseHistory,
        *,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        caller = caller_of(scope)
        queued, headers = await self._background.submit(response_call, body, history, caller)
        if not response_call.call.stream:
            await send_json(send, queued, 200, headers)
            return
        events = self._background.events(queued["id"], caller, -1)
        await send_events(
            self._delivery,
            events,
            response=queued,
            scope=scope,
            receive=receive,
            send=send,
            headers=headers,
        )


@final
class CompactionEndpoint:
    """Answers POST /v1/responses/compact, by which Codex and SDKs shorten a conversation."""

    def __init__(
        self, delivery: AnswerDelivery, responses: ResponseStore, read: BodyReader
    ) -> None:
        self._read = read
        self._delivery = delivery
        self._responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: the request fails before the response has started.
            StoreError: the database fails before the response has started.
            ClientGone: the client disconnects before the body is read.
        """
        body = compaction_body(await self._read(scope, receive))
        references = await parse_fields(parse_history_references, body)
        history = await self._responses.load_history(references, scope)
        response_call = await parse_with_history(body, history)
        async with self._delivery.service.prepare_call(
            response_call.call, caller_of(scope)
        ) as prepared:
            base = new_response(response_call.echo, response_id(prepared.run_id), int(time()))
            events = ResponseEventWriter(base, compacts=True)

            async def render(run: Run, reply: Reply) -> dict[str, Any]:
                events.remaining(reply, reasoning=False)
                kept = kept_messages((*history.items, *response_call.items), base["id"])
                return {
                    "id": base["id"],
                    "object": "response.compaction",
                    "created_at": base["created_at"],
                    "output": [*kept, *events.output],
                    "usage": response_usage(run),
                }

            await self._delivery.send_answer(prepared, render, receive, send)


Json = dict[str, Any]
MAX_PAGE = 100
"""Maximum number of items in a page."""
_DEFAULT_PAGE = 20
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@final
class StoredResponseEndpoint:
    """GET and DELETE /v1/responses/{id}: return the response or its events, or delete it."""

    def __init__(
        self,
        delivery: AnswerDelivery,
        responses: ResponseStore,
        background: BackgroundResponses,
        *,
        store: Store | None,
        deletions: Deletions,
    ) -> None:
        self._delivery = delivery
        self._responses = responses
        self._background = background
        self._store = store
        self._deletions = deletions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: the response does not exist or cannot be loaded now, or a query parameter is
                invalid.
            StoreError: the database fails before the response has started.
        """
        request = Request(scope)
        if request.method == "DELETE":
            row = await find_response(self._responses, request, ())
            await send_json(send, await self._delete(row, request))
            return
        streamed = _parse_flag(request, "stream")
        after = _parse_number(request, "starting_after", low=0, high=10**9, default=-1)
        parts = ("body", "events") if streamed else ("body",)
        row = await find_response(self._responses, request, parts)
        body = await self._background.current_response(row)
        if not streamed:
            await send_json(send, body)
            return
        if row.events is None and await self._background.has_job(row):
            events = self._background.events(row.id, caller_of(scope), after)
        else:
            events = _events_after(await _stored_events(row, body), after)
        await send_events(
            self._delivery,
            events,
            response=body,
            scope=scope,
            receive=receive,
            send=send,
            after=after,
        )

    async def _delete(self, row: StoredResponse, request: Request) -> Json:
        """Delete the response, or with `conversation=true` its whole conversation.

        Return the API's object, which for a conversation lists the ids of the deleted responses.
        """
        conversation = _parse_flag(request, "conversation")
        store = require_part(self._store, "This server keeps no responses.")
        deleted_ids = await self._deletions.delete_response(
            store, row, by=actor_of(request), conversation=conversation
        )
        deleted: Json = {"id": row.id, "object": "response", "deleted": True}
        return {**deleted, "responses": deleted_ids} if conversation else deleted


@final
class StoredResponseRoutes:
    """The methods that cancel a stored response and list its input items.

    Each raises `StoreError` if the database fails.
    """

    def __init__(self, responses: ResponseStore, background: BackgroundResponses) -> None:
        self._responses = responses
        self._background = background

    def routes(self) -> list[Route]:
        """Return the routes of these methods."""
        return [
            Route("/v1/responses/{id}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/responses/{id}/input_items", self.input_items),
        ]

    async def cancel(self, request: Request) -> Response:
        """Cancel a background response; a response that has ended is not changed.

        Raises:
            APIError: the response does not exist or cannot be loaded now, or was not created in the
                background.
        """
        row = await find_response(self._responses, request, ALL_PARTS)
        if not (await body_of(row))["background"]:
            message = "Only a response that was created with 'background' can be cancelled."
            raise APIError(400, "invalid_request", message, param="response_id")
        return json_response(await self._background.cancel(row))

    async def input_items(self, request: Request) -> Response:
        """List the input items in pages, by default the last item first.

        Raises:
            APIError: the response does not exist or cannot be loaded now, or a query parameter is
                invalid.
        """
        query = request.query_params
        order = query.get("order", "desc")
        if order not in {"asc", "desc"}:
            raise invalid_value("order", "it must be 'asc' or 'desc'.")
        limit = _parse_number(request, "limit", low=1, high=MAX_PAGE, default=_DEFAULT_PAGE)
        items = await inputs_of(await find_response(self._responses, request, ("input",)))
        if order == "desc":
            items.reverse()
        start = _start_index(items, query.get("after"))
        page = items[start : start + limit]
        body = {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + limit < len(items),
        }
        return json_response(body)


async def find_response(
    responses: ResponseStore, request: Request, parts: Collection[str]
) -> StoredResponse:
    """Return the caller's response that the path names.

    Args:
        responses: the stored responses.
        request: its path contains the response's id.
        parts: the parts to load, of `body`, `input` and `events`; a part that is not loaded is
            empty, and `events` None.

    Raises:
        APIError: the response does not exist, or cannot be loaded now.
        StoreError: the database fails.
    """
    response_id: str = request.path_params["id"]
    row = await responses.find(response_id, request.scope, parts)
    if row is None:
        raise not_found(f"The response '{response_id}'")
    return row


async def _stored_events(row: StoredResponse, body: Json) -> Iterable[Json]:
    """Return the stored events of a streamed response, or events rebuilt from its body."""
    stored = await events_of(row)
    return replay_events(body) if stored is None else (orjson.loads(event) for event in stored)


async def _events_after(events: Iterable[Json], after: int) -> AsyncIterator[Json]:
    for event in events:
        if event["sequence_number"] > after:
            yield event


def _parse_flag(request: Request, name: str) -> bool:
    given = request.query_params.get(name, "false").lower()
    if given not in _FLAGS:
        raise invalid_value(name, "it must be 'true' or 'false'.")
    return _FLAGS[given]


def _parse_number(request: Request, name: str, *, low: int, high: int, default: int) -> int:
    given = request.query_params.get(name)
    return default if given is None else query_number(given, name, low, high)


def _start_index(items: list[Json], after: str | None) -> int:
    if after is None:
        return 0
    for index, item in enumerate(items):
        if item["id"] == after:
            return index + 1
    raise invalid_value("after", "it is not an item of this response.")
