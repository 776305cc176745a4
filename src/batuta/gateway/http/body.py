"""Bodies in and out, without a request or response object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import anyio
import anyio.to_thread
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from batuta.gateway.errors import APIError
from batuta.gateway.http.fields import Fields
from batuta.gateway.http.json_codec import check_keys, check_value_count, decode_object, encode_json

JSON = b"application/json"
BODY_TIMEOUT = 60.0
"""Seconds in which a body must have arrived."""
_LARGE_BODY = 200_000
"""Bytes of a body whose values are counted before it is read."""


def header_value(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that name, given in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return value
    return None


class ClientGone(Exception):
    """The connection closed before the body was read."""


async def read_body(receive: Receive, seconds: float = BODY_TIMEOUT) -> bytes:
    """The whole body, if it arrives within that time.

    Raises:
        ClientGone: it will not come.
        APIError: it is too large (by the guard's `receive`), or comes too slowly.
    """
    with anyio.move_on_after(seconds):
        return await _receive_body(receive)
    message = f"The body did not arrive within {seconds:g} seconds."
    raise APIError(408, "request_timeout", message)


async def _receive_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def read_fields(scope: Scope, receive: Receive) -> Fields:
    """The JSON object of the body.

    Raises:
        ClientGone: it will not come.
        APIError: it is none, or is declared to be something else.
    """
    kind = header_value(scope, b"content-type") or JSON
    if kind != JSON:
        kind = kind.partition(b";")[0].strip().lower()
    if kind and kind != JSON and not kind.endswith(b"+json"):
        message = "The body must be JSON: send 'content-type: application/json'."
        raise APIError(415, "unsupported_media_type", message)
    body = await read_body(receive)
    if len(body) > _LARGE_BODY:
        await anyio.to_thread.run_sync(check_value_count, body)
        await anyio.to_thread.run_sync(check_keys, body)
    else:
        check_keys(body)
    return Fields(decode_object(body))


async def send_json(
    send: Send, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """The value as the whole answer."""
    body = encode_json(value)
    fixed = [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
    more = raw_headers((headers or {}).items())
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *more]})
    await send({"type": "http.response.body", "body": body})


def raw_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI wants them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def json_response(body: Any, status: int = 200) -> Response:
    """The value as a response."""
    return Response(encode_json(body), status, media_type="application/json")
