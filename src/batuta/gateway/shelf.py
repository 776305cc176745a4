"""Responses between the wire and the store."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, final

import anyio
import orjson
from anyio.to_thread import run_sync

from batuta.errors import StoreError
from batuta.gateway.caller import Caller
from batuta.gateway.middleware import log_fault
from batuta.gateway.models import Orchestra
from batuta.gateway.refusal import Refusal, wrong_value
from batuta.gateway.wire.encoding import encode
from batuta.gateway.wire.fields import Fields
from batuta.gateway.wire.items import kind_of
from batuta.gateway.wire.response import item_id, owner_of
from batuta.gateway.wire.responses import Past, ResponseCall, Sought
from batuta.store.responses import Responses, StoredResponse

Json = dict[str, Any]
LONGEST = 500
"""Responses of one thread at most."""
PREVIOUS = "previous_response_id"
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
_USABLE = {"completed", "incomplete"}


@final
class Shelf:
    """Keeps responses, each under its tenant, and finds what a body goes on from."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra

    @property
    def responses(self) -> Responses | None:
        """Where they are; None if this server keeps nothing."""
        return None if self._orchestra.store is None else self._orchestra.store.responses

    async def past(self, sought: Sought, caller: Caller) -> Past:
        """What the body needs of the past.

        Raises:
            Refusal: the previous response cannot be gone on from.
            StoreError: the store fails.
        """
        if self.responses is None:
            if sought.previous is not None:
                raise _no_previous("this server keeps no responses.")
            return Past()
        items: tuple[Json, ...] = ()
        if sought.previous is not None:
            rows = await self.responses.thread(sought.previous, caller.tenant, LONGEST)
            items = _conversation(sought.previous, rows)
        if not sought.references:
            return Past(items)
        owners = {owner for name in sought.references if (owner := owner_of(name))}
        rows = await self.responses.several(tuple(owners), caller.tenant)
        named = {item["id"]: item for row in rows for item in items_of(row)}
        return Past(items, named)

    async def find(self, response_id: str, caller: Caller) -> StoredResponse | None:
        """The caller's response of that id."""
        if self.responses is None:
            return None
        return await self.responses.get(response_id, caller.tenant)

    async def keep(
        self, asked: ResponseCall, caller: Caller, response: Json, told: Sequence[bytes] = ()
    ) -> None:
        """Stores the response; an answer is not lost because the disk fails.

        Args:
            asked: what led to it.
            caller: whose it is.
            response: as it is now.
            told: its events, if they are to be told again.
        """
        if self.responses is None or not asked.call.store:
            return
        events = await run_sync(_packed, told) if told else None
        row = StoredResponse(
            response["id"],
            caller.tenant,
            response["created_at"],
            response["status"],
            asked.previous,
            encode(response),
            encode(_numbered(asked.items, response["id"])),
            events,
        )
        with anyio.CancelScope(shield=True):
            try:
                await self.responses.put(row)
            except StoreError as error:
                log_fault(error)

    async def drop(self, response_id: str, caller: Caller) -> bool:
        """Forgets the response; whether there was one."""
        if self.responses is None:
            return False
        return await self.responses.delete(response_id, caller.tenant)


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
    return None if row.events is None else await run_sync(_unpacked, row.events)


def _conversation(previous: str, rows: list[StoredResponse]) -> tuple[Json, ...]:
    if not rows or rows[0].previous is not None:
        raise _no_previous(f"there is no response '{previous}', or one before it was deleted.")
    if rows[-1].status not in _USABLE:
        reason = f"the response '{previous}' is {rows[-1].status} and has no answer to go on from."
        raise wrong_value(PREVIOUS, reason)
    return tuple(item for row in rows for item in items_of(row))


def _no_previous(reason: str) -> Refusal:
    message = f"Invalid value for '{PREVIOUS}': {reason}"
    return Refusal(400, "previous_response_not_found", message, param=PREVIOUS)


def _numbered(items: Sequence[Json], response_id: str) -> list[Json]:
    """The items, each with a type and with an id under which it can be referred to."""
    return [_identified(item, response_id, index) for index, item in enumerate(items)]


def _identified(item: Json, response_id: str, index: int) -> Json:
    kind = kind_of(Fields(item))
    name = item_id(_PREFIXES.get(kind, "item"), response_id, index, "in")
    content = item.get("content")
    if isinstance(content, str):
        spoken = "output_text" if item.get("role") == "assistant" else "input_text"
        item = {**item, "content": [{"type": spoken, "text": content}]}
    return {**item, "type": kind, "id": item.get("id") or name}


def _packed(told: Sequence[bytes]) -> bytes:
    # Events repeat each other: the fastest level makes them some twenty times smaller.
    return zlib.compress(b"\n".join(told), 1)


def _unpacked(events: bytes) -> list[bytes]:
    return zlib.decompress(events).split(b"\n")
