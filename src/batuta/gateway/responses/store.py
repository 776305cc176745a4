"""Responses between the wire and the store."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, final

import anyio
import orjson
from anyio.to_thread import run_sync

from batuta.errors import StoreError
from batuta.gateway.access.caller import Caller
from batuta.gateway.errors import APIError, invalid_value, log_exception
from batuta.gateway.http.body import Fields
from batuta.gateway.http.json_body import encode_json
from batuta.gateway.responses.items import item_type
from batuta.gateway.responses.request import HistoryReferences, ResponseCall, ResponseHistory
from batuta.gateway.responses.response import item_id, response_id_of_item
from batuta.store import Store
from batuta.store.budgets import Budgets
from batuta.store.responses import ResponseTable, StoredResponse

Json = dict[str, Any]
MAX_THREAD = 500
"""Responses of one thread at most."""
PREVIOUS_FIELD = "previous_response_id"
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
_USABLE_STATUSES = {"completed", "incomplete"}


@final
class ResponseStore:
    """Keeps responses, each under its tenant, and finds what a body continues from."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    @property
    def responses(self) -> ResponseTable | None:
        """Where they are; None if this server keeps nothing."""
        return None if self._store is None else self._store.responses

    @property
    def budgets(self) -> Budgets | None:
        """What may still be spent; None if this server keeps nothing."""
        return None if self._store is None else self._store.budgets

    async def load_history(self, references: HistoryReferences, caller: Caller) -> ResponseHistory:
        """What the body needs of the past.

        Raises:
            APIError: the previous response cannot be gone on from.
            StoreError: the store fails.
        """
        if self.responses is None:
            if references.previous_id is not None:
                raise _previous_not_found("this server keeps no responses.")
            return ResponseHistory()
        items: tuple[Json, ...] = ()
        if references.previous_id is not None:
            rows = await self.responses.get_thread(
                references.previous_id, caller.tenant, MAX_THREAD
            )
            items = _thread_items(references.previous_id, rows)
        if not references.references:
            return ResponseHistory(items)
        owners = {owner for name in references.references if (owner := response_id_of_item(name))}
        rows = await self.responses.get_many(tuple(owners), caller.tenant)
        named = {item["id"]: item for row in rows for item in items_of(row)}
        return ResponseHistory(items, named)

    async def find(self, response_id: str, caller: Caller) -> StoredResponse | None:
        """The caller's response of that id."""
        if self.responses is None:
            return None
        return await self.responses.get(response_id, caller.tenant)

    async def save(
        self,
        response_call: ResponseCall,
        caller: Caller,
        response: Json,
        sent_events: Sequence[bytes] = (),
    ) -> None:
        """Stores the response; an answer is not lost because the disk fails.

        Args:
            response_call: what led to it.
            caller: whose it is.
            response: as it is now.
            sent_events: its events, if they are to be told again.
        """
        if self.responses is None or not response_call.call.store:
            return
        events = await run_sync(_compress_events, sent_events) if sent_events else None
        row = StoredResponse(
            id=response["id"],
            tenant=caller.tenant,
            created=response["created_at"],
            status=response["status"],
            previous=response_call.previous_id,
            body=encode_json(response),
            input=encode_json(_items_with_ids(response_call.items, response["id"])),
            events=events,
        )
        with anyio.CancelScope(shield=True):
            try:
                await self.responses.put(row)
            except StoreError as error:
                log_exception(error)


def body_of(row: StoredResponse) -> Json:
    """The response object as it was stored."""
    return orjson.loads(row.body)


def inputs_of(row: StoredResponse) -> list[Json]:
    """The items that were put in."""
    return orjson.loads(row.input)


def items_of(row: StoredResponse) -> list[Json]:
    """What was put in, and what came out."""
    return [*inputs_of(row), *body_of(row)["output"]]


async def events_of(row: StoredResponse) -> list[bytes] | None:
    """The events in which it was told; None if it was not told in events."""
    return None if row.events is None else await run_sync(_decompress_events, row.events)


def _thread_items(previous: str, rows: list[StoredResponse]) -> tuple[Json, ...]:
    if not rows or rows[0].previous is not None:
        raise _previous_not_found(
            f"there is no response '{previous}', or one before it was deleted."
        )
    if rows[-1].status not in _USABLE_STATUSES:
        reason = (
            f"the response '{previous}' is {rows[-1].status} and has no answer to continue from."
        )
        raise invalid_value(PREVIOUS_FIELD, reason)
    return tuple(item for row in rows for item in items_of(row))


def _previous_not_found(reason: str) -> APIError:
    message = f"Invalid value for '{PREVIOUS_FIELD}': {reason}"
    return APIError(400, "previous_response_not_found", message, param=PREVIOUS_FIELD)


def _items_with_ids(items: Sequence[Json], response_id: str) -> list[Json]:
    """The items, each with a type and with an id under which it can be referred to."""
    return [_item_with_id(item, response_id, index) for index, item in enumerate(items)]


def _item_with_id(item: Json, response_id: str, index: int) -> Json:
    kind = item_type(Fields(item))
    name = item_id(_PREFIXES.get(kind, "item"), response_id, index, "in")
    content = item.get("content")
    if isinstance(content, str):
        spoken = "output_text" if item.get("role") == "assistant" else "input_text"
        item = {**item, "content": [{"type": spoken, "text": content}]}
    return {**item, "type": kind, "id": item.get("id") or name}


def _compress_events(sent_events: Sequence[bytes]) -> bytes:
    # Events repeat each other: the fastest level makes them some twenty times smaller.
    return zlib.compress(b"\n".join(sent_events), 1)


def _decompress_events(events: bytes) -> list[bytes]:
    return zlib.decompress(events).split(b"\n")
