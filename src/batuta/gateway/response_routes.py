"""Responses that were given: read, told again, cancelled, deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from batuta.gateway.background import Background
from batuta.gateway.caller import caller_of
from batuta.gateway.models import Orchestra
from batuta.gateway.refusal import Refusal, not_found, wrong_value
from batuta.gateway.reply import send_json
from batuta.gateway.response_events import send_events
from batuta.gateway.runs import json_response
from batuta.gateway.shelf import Shelf, body_of, events_of, inputs_of
from batuta.gateway.wire.response_script import replayed
from batuta.store.responses import StoredResponse

Json = dict[str, Any]
MOST = 100
_DEFAULT = 20
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@final
class ResponseEndpoint:
    """/v1/responses/{id}: the response as it stands, or its events; or it is deleted."""

    def __init__(self, orchestra: Orchestra, shelf: Shelf, background: Background) -> None:
        self._orchestra = orchestra
        self._shelf = shelf
        self._background = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Refusal: there is no such response, or it cannot be told so.
        """
        request = Request(scope)
        row = await found(self._shelf, request)
        if request.method == "DELETE":
            await self._background.forget(row)
            await self._shelf.drop(row.id, caller_of(scope))
            await send_json(send, {"id": row.id, "object": "response", "deleted": True})
            return
        streamed, after = _flag(request, "stream"), _after(request)
        body = await self._background.stands(row)
        if not streamed:
            await send_json(send, body)
            return
        if row.events is None and await self._background.known(row):
            events = self._background.events(row.id, caller_of(scope), after)
        else:
            events = _later(await _told(row, body), after)
        await send_events(self._orchestra, events, body, receive, send, after=after)


@final
class ResponseRoutes:
    """A response is cancelled; what was put into it is listed."""

    def __init__(self, shelf: Shelf, background: Background) -> None:
        self._shelf = shelf
        self._background = background

    async def cancel(self, request: Request) -> Response:
        """Cancels a response of the background; one that has ended is left as it is."""
        row = await found(self._shelf, request)
        if not body_of(row)["background"]:
            message = "Only a response that was made with 'background' can be cancelled."
            raise Refusal(400, "invalid_request", message, param="response_id")
        return json_response(await self._background.cancel(row))

    async def inputs(self, request: Request) -> Response:
        """What was put in, a page at a time, the last item first."""
        row = await found(self._shelf, request)
        query = request.query_params
        order = query.get("order", "desc")
        if order not in {"asc", "desc"}:
            raise wrong_value("order", "it must be 'asc' or 'desc'.")
        items = inputs_of(row)
        if order == "desc":
            items.reverse()
        limit = _number(query.get("limit"), "limit", 1, MOST, _DEFAULT)
        start = _start(items, query.get("after"))
        page = items[start : start + limit]
        body = {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + limit < len(items),
        }
        return json_response(body)


async def found(shelf: Shelf, request: Request) -> StoredResponse:
    """The caller's response that the path names.

    Raises:
        Refusal: there is none.
    """
    response_id: str = request.path_params["id"]
    row = await shelf.find(response_id, caller_of(request.scope))
    if row is None:
        raise not_found(f"The response '{response_id}'")
    return row


async def _told(row: StoredResponse, body: Json) -> Iterable[Json]:
    """The events in which it was told, or those in which it could have been."""
    kept = await events_of(row)
    return replayed(body) if kept is None else (orjson.loads(event) for event in kept)


async def _later(events: Iterable[Json], after: int) -> AsyncIterator[Json]:
    for event in events:
        if event["sequence_number"] > after:
            yield event


def _flag(request: Request, name: str) -> bool:
    given = request.query_params.get(name, "false").lower()
    if given not in _FLAGS:
        raise wrong_value(name, "it must be 'true' or 'false'.")
    return _FLAGS[given]


def _after(request: Request) -> int:
    given = request.query_params.get("starting_after")
    return _number(given, "starting_after", 0, 10**9, -1)


def _number(given: str | None, name: str, low: int, high: int, default: int) -> int:
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or not low <= int(given[:10]) <= high:
        raise wrong_value(name, f"it must be a whole number from {low} to {high}.")
    return int(given)


def _start(items: list[Json], after: str | None) -> int:
    if after is None:
        return 0
    for index, item in enumerate(items):
        if item["id"] == after:
            return index + 1
    raise wrong_value("after", "it is no item of this response.")
