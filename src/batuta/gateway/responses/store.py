"""Saves responses, and loads those that a request reads or continues."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, final

import anyio
import orjson
from anyio.to_thread import run_sync
from starlette.types import Scope

from batuta.core.json_values import count_values
from batuta.errors import StoreError
from batuta.gateway.access.caller import Caller, caller_of
from batuta.gateway.errors import APIError, invalid_value, log_exception
from batuta.gateway.http.body import Fields, encode_json
from batuta.gateway.http.request_slots import MAX_BODIES, MAX_BODY
from batuta.gateway.http.stored_reads import make_room
from batuta.gateway.responses.items import item_type
from batuta.gateway.responses.request import HistoryReferences, ResponseCall, ResponseHistory
from batuta.gateway.responses.response import item_id, response_id_of_item
from batuta.gateway.serving.earlier_files import container_files, find_earlier_files
from batuta.offload.threads import read_off_loop
from batuta.store import Store
from batuta.store.budgets import Budgets
from batuta.store.responses import ResponseTable, StoredResponse

Json = dict[str, Any]
MAX_THREAD = 500
"""Maximum number of responses in a conversation that is continued."""
MAX_HISTORY_BYTES = MAX_BODY
"""Maximum number of bytes of the earlier responses that one request reads. The response whose
container is used again has a limit of its own, of the same size."""
MAX_HISTORY_VALUES = 240_000
"""Maximum number of JSON values in a conversation that is continued. The responses of referenced
items, and that of a container, each have a limit of the same size."""
_EVENTS_FACTOR = 20
"""Roughly the highest ratio of the size of events to their compressed size."""
_SMALL_PART = 64 * 1024
"""Maximum number of bytes that are decoded in the event loop."""
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
    """Stores responses by tenant, and loads the history that a request continues."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    @property
    def responses(self) -> ResponseTable | None:
        """The table of responses; None if this server has no store."""
        return None if self._store is None else self._store.responses

    @property
    def budgets(self) -> Budgets | None:
        """The budgets; None if this server has no store."""
        return None if self._store is None else self._store.budgets

    async def load_history(self, references: HistoryReferences, scope: Scope) -> ResponseHistory:
        """Load the earlier responses and items that the body refers to.

        An item that does not exist is missing in the result.

        Raises:
            APIError: the previous response cannot be continued, the history is too large, there is
                no memory for it now, or the caller has read too much.
            StoreError: the database fails.
        """
        table, tenant = self.responses, caller_of(scope).tenant
        if table is None:
            if references.previous_id is not None:
                raise _previous_not_found("this server keeps no responses.")
            return ResponseHistory()
        items: tuple[Json, ...] = ()
        files: tuple[str, ...] = ()
        size = 0
        if references.previous_id is not None:
            size = await table.measure_thread(references.previous_id, tenant, MAX_THREAD)
            _check_history_size(size)
            await make_room(scope, size)
            rows = await table.get_thread(references.previous_id, tenant, MAX_THREAD)
            _check_thread(references.previous_id, rows)
            items = tuple(await _decode_items(rows))
            files = await _given_files(rows)
        if references.container is not None:
            files += await _container_files(table, references.container, scope)
        if not references.item_ids:
            return ResponseHistory(items, files=files)
        parts = _parts_with(references.item_ids)
        owners = tuple(
            {owner for name in references.item_ids if (owner := response_id_of_item(name))}
        )
        more = await table.measure(owners, tenant, parts)
        _check_history_size(size + more)
        await make_room(scope, more)
        rows = await table.get_many(owners, tenant, parts)
        names = set(references.item_ids)
        found = await _decode_items(rows)
        named = {item["id"]: item for item in found if item["id"] in names}
        return ResponseHistory(items, named, files)

    async def find(
        self, response_id: str, scope: Scope, parts: Collection[str]
    ) -> StoredResponse | None:
        """Return the caller's response with only these of its `ALL_PARTS`; None if there is none.

        Raises:
            APIError: there is no memory for it now, or the caller has read too much.
            StoreError: the database fails.
        """
        table, tenant = self.responses, caller_of(scope).tenant
        if table is None:
            return None
        if parts:
            size = await table.measure((response_id,), tenant, parts)
            if "events" in parts:
                size = min(size * _EVENTS_FACTOR, MAX_BODIES // 2)
            await make_room(scope, size)
        return await table.get(response_id, tenant, parts)

    async def read_again(self, response_id: str, tenant: str) -> StoredResponse | None:
        """Return the response with its body, without checking limits; None if it does not exist."""
        table = self.responses
        return None if table is None else await table.get(response_id, tenant, ("body",))

    async def save(
        self,
        response_call: ResponseCall,
        caller: Caller,
        response: Json,
        sent_events: Sequence[bytes] = (),
    ) -> None:
        """Store the response, if the server has a store and the request allows storing.

        A failure of the store is logged, so that the answer is still delivered.
        """
        if self.responses is None or not response_call.call.store:
            return
        encode = partial(_encode_items, response_call.items, response["id"])
        with anyio.CancelScope(shield=True):
            row = StoredResponse(
                id=response["id"],
                tenant=caller.tenant,
                created=response["created_at"],
                status=response["status"],
                previous=response_call.previous_id,
                body=encode_json(response),
                input=await read_off_loop(response_call.call.question.messages, encode),
                events=await run_sync(_compress_events, sent_events) if sent_events else None,
            )
            try:
                await self.responses.put(row)
            except StoreError as error:
                log_exception(error)


async def _container_files(table: ResponseTable, response_id: str, scope: Scope) -> tuple[str, ...]:
    """Return the ids of the files in the container of the caller's response.

    Raises:
        APIError: the response is too large, there is no memory for it now, or the caller has read
            too much.
    """
    tenant = caller_of(scope).tenant
    size = await table.measure((response_id,), tenant)
    _check_history_size(size)
    await make_room(scope, size)
    rows = await table.get_many((response_id,), tenant)
    return (*find_earlier_files(await _decode_items(rows)), *await _given_files(rows))


async def body_of(row: StoredResponse) -> Json:
    """Return the response object as it was stored; the row must have been loaded with its body."""
    return await _decode_part(row.body)


async def inputs_of(row: StoredResponse) -> list[Json]:
    """Return the input items; the row must have been loaded with its input."""
    return await _decode_part(row.input)


async def events_of(row: StoredResponse) -> list[bytes] | None:
    """Return the events as they were streamed; None if none were stored or loaded."""
    return None if row.events is None else await run_sync(_decompress_events, row.events)


async def _decode_part(part: bytes) -> Any:
    return orjson.loads(part) if len(part) <= _SMALL_PART else await run_sync(orjson.loads, part)


async def _decode_items(rows: Sequence[StoredResponse]) -> list[Json]:
    """Return the items of the responses, each response's input before its output.

    Raises:
        APIError: the items have too many values.
    """
    if sum(len(row.body) + len(row.input) for row in rows) <= _SMALL_PART:
        return _items_now(rows)
    return await run_sync(_items_now, rows)


def _items_now(rows: Sequence[StoredResponse]) -> list[Json]:
    values = 0
    items: list[Json] = []
    for row in rows:
        for part in filter(None, (row.input, row.body)):
            values += count_values(part, MAX_HISTORY_VALUES)
            if values > MAX_HISTORY_VALUES:
                raise _history_too_large(f"{MAX_HISTORY_VALUES} values")
            listed = orjson.loads(part)
            items += listed if part is row.input else listed["output"]
    return items


async def _given_files(rows: Sequence[StoredResponse]) -> tuple[str, ...]:
    """Return the ids of files that were given to the responses' tools, newest response first."""
    bodies = [row.body for row in reversed(rows) if row.body and b"file_ids" in row.body]
    offered = [(await _decode_part(body)).get("tools") for body in bodies]
    return tuple(name for tools in offered for name in container_files(tools))


def _parts_with(item_ids: Sequence[str]) -> frozenset[str]:
    """Return the parts of responses that contain the items with these ids."""
    sides = {name.rpartition("_")[2].startswith("in") for name in item_ids}
    return frozenset({"input" if is_input else "body" for is_input in sides})


def _check_thread(previous: str, rows: list[StoredResponse]) -> None:
    if not rows or rows[0].previous is not None:
        raise _previous_not_found(
            f"the response '{previous}' does not exist, a response before it was deleted, or its "
            f"conversation has more than {MAX_THREAD} responses."
        )
    if rows[-1].status not in _USABLE_STATUSES:
        reason = (
            f"the response '{previous}' is {rows[-1].status} and has no answer to continue from."
        )
        raise invalid_value(PREVIOUS_FIELD, reason)


def _check_history_size(size: int) -> None:
    if size > MAX_HISTORY_BYTES:
        raise _history_too_large(f"{MAX_HISTORY_BYTES} bytes")


def _history_too_large(most: str) -> APIError:
    message = (
        f"The earlier responses that this request refers to have more than {most}; "
        "send only the items that are needed."
    )
    return APIError(413, "request_too_large", message)


def _previous_not_found(reason: str) -> APIError:
    message = f"Invalid value for '{PREVIOUS_FIELD}': {reason}"
    return APIError(400, "previous_response_not_found", message, param=PREVIOUS_FIELD)


def _encode_items(items: Sequence[Json], response_id: str) -> bytes:
    """Return the items as JSON, each with an id of its own: pages continue after an item's id."""
    identified = [_item_with_id(item, response_id, at) for at, item in enumerate(items)]
    seen: set[str] = set()
    for at, item in enumerate(identified):
        if item["id"] in seen:
            identified[at] = _item_with_id({**item, "id": None}, response_id, at)
        seen.add(item["id"])
    return encode_json(identified)


def _item_with_id(item: Json, response_id: str, index: int) -> Json:
    """Return the item with a type, its own or a new id, and text as a part.

    A later request can reference the item only by a new id, which contains the response's.
    """
    kind = item_type(Fields(item))
    name = item_id(_PREFIXES.get(kind, "item"), response_id, index, "in")
    content = item.get("content")
    if isinstance(content, str):
        spoken = "output_text" if item.get("role") == "assistant" else "input_text"
        item = {**item, "content": [{"type": spoken, "text": content}]}
    given = item.get("id")
    return {**item, "type": kind, "id": given if given and isinstance(given, str) else name}


def _compress_events(sent_events: Sequence[bytes]) -> bytes:
    # Events are repetitive: even the fastest level makes them about twenty times smaller.
    return zlib.compress(b"\n".join(sent_events), 1)


def _decompress_events(events: bytes) -> list[bytes]:
    return zlib.decompress(events).split(b"\n")
