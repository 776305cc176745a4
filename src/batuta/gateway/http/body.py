"""Request and response bodies: reading, decompressing, checking and parsing field by field."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread
import orjson
import zstandard
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from batuta.core.json_values import LARGE_BODY, count_values
from batuta.gateway.errors import APIError, invalid_type, invalid_value, missing_parameter

SESSION_HEADERS = (b"x-session-id", b"x-claude-code-session-id", b"session-id", b"session_id")
"""Headers with a session id, best first: of any client (also opencode), Claude Code, Codex."""
_MAX_SESSION_LENGTH = 400


def session_header(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the session id of the best header that has a valid one; empty if none has.

    A session id is valid if it has 1 to 400 bytes.
    """
    given = {name: value for name, value in headers if name in SESSION_HEADERS}
    for name in SESSION_HEADERS:
        value = given.get(name, b"").strip()
        if 0 < len(value) <= _MAX_SESSION_LENGTH:
            return value.decode("latin-1")
    return ""


_WINDOW_BYTES = 8 << 20
"""The largest zstd window, as recommended by RFC 8878."""
_GZIP, _DEFLATE = 31, 15
"""The arguments `wbits` of zlib for the two formats."""
_MAX_UNPACKING = 4
"""Maximum number of bodies decompressed concurrently: each may use the memory of a whole body."""
_unpack_limiter = anyio.CapacityLimiter(_MAX_UNPACKING)


async def unpack_body(body: bytes, encoding: str, most: int) -> bytes:
    """Return the body, decompressed in another thread if it has an encoding.

    A body of several gzip members or zstd frames, or with other bytes after the first, is refused.

    Args:
        body: the body as received.
        encoding: the header `content-encoding`.
        most: the maximum number of bytes of the decompressed body.

    Raises:
        APIError: the encoding is unknown, or the body is not valid in this encoding or too large.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    unpack = _UNPACKERS.get(name)
    if unpack is None:
        message = (
            "The body must be sent plain, or with 'content-encoding: gzip', 'deflate' or 'zstd'."
        )
        headers = {"accept-encoding": "gzip, zstd"}
        raise APIError(415, "unsupported_media_type", message, headers=headers)
    try:
        plain = await anyio.to_thread.run_sync(unpack, body, most, limiter=_unpack_limiter)
    except (zlib.error, zstandard.ZstdError, EOFError):
        message = f"The body is not one whole {name} stream, as its 'content-encoding' says."
        raise APIError(400, "invalid_value", message) from None
    if len(plain) > most:
        raise APIError(413, "request_too_large", f"The body unpacks to more than {most} bytes.")
    return plain


def _unpack_zlib(body: bytes, most: int, wbits: int) -> bytes:
    reader = zlib.decompressobj(wbits)
    plain = reader.decompress(body, most + 1)
    if len(plain) <= most and (not reader.eof or reader.unused_data):
        raise EOFError
    return plain


def _unpack_zstd(body: bytes, most: int) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompressobj()
    parts: list[bytes] = []
    size, is_whole = 0, False
    # One piece of a decompression bomb expands to megabytes, so the size is checked after each.
    for at in range(0, len(body), _PIECE_BYTES):
        parts.append(reader.decompress(body[at : at + _PIECE_BYTES]))
        size += len(parts[-1])
        if size > most:
            break
        if reader.eof:
            is_whole = at + _PIECE_BYTES >= len(body) and not reader.unused_data
            break
    if size <= most and not is_whole:
        raise EOFError
    return b"".join(parts)


_PIECE_BYTES = 1024
_UNPACKERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "gzip": partial(_unpack_zlib, wbits=_GZIP),
    "x-gzip": partial(_unpack_zlib, wbits=_GZIP),
    "deflate": partial(_unpack_zlib, wbits=_DEFLATE),
    "zstd": _unpack_zstd,
}


MAX_VALUES = 100_000
"""Maximum number of JSON values of a body: enough for a session of 5,000 actions in every dialect.
A picture is one value."""
MAX_ENTRIES = MAX_VALUES
"""Maximum number of entries of an array without a lower limit of its own."""
_MAX_SHOWN_KEY = 64
"""Maximum number of characters of a key that an error quotes."""
_ODD_COLONS = (re.compile(rb'"[ \t\r\n]+:'), re.compile(rb"\\u00(?:22|3[aA])"))
"""Patterns that make counting `":` unreliable: a space before the colon, or an escaped quotation
mark or colon.

Two patterns, since each begins with a fixed character and so is searched seven times faster than
one pattern for both."""


def encode_json(value: Any) -> bytes:
    """Return the value as JSON; lone surrogates in a text are written as escapes.

    Raises:
        TypeError: the value cannot be written as JSON.
        RecursionError: the value is nested too deeply.
    """
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates or integers over 64 bits: rare and slow
        return json.dumps(value, separators=(",", ":"), default=_decode_fragment).encode()


def plain_json(value: Any) -> Any:
    """Return a copy of the value made of plain JSON types."""
    return json.loads(encode_json(value))


def _decode_fragment(value: object) -> Any:
    """Return the value of a fragment that was encoded earlier."""
    if isinstance(value, orjson.Fragment):
        return orjson.loads(orjson.dumps(value))
    raise TypeError(f"not JSON: {type(value).__name__}")


def check_value_count(body: bytes) -> None:
    """Refuse JSON with more values than can be parsed quickly. Slow: call this in a thread.

    Raises:
        APIError: the body has more than `MAX_VALUES` values.
    """
    if count_values(body, MAX_VALUES) > MAX_VALUES:
        message = f"The body has more than {MAX_VALUES} values."
        raise APIError(413, "request_too_large", message)


def decode_checked(body: bytes) -> dict[str, Any]:
    """Return the body as a JSON object without duplicate keys.

    A duplicate key is refused, since JSON parsers differ on which of the two counts.

    Raises:
        APIError: the body is not a JSON object, is nested too deeply or has a key twice.
    """
    value = _load_plain(body)
    if value is not _UNSURE:
        return _need_object(value)
    _check_all_keys(body)
    return decode_object(body)


_UNSURE = object()


def _load_plain(body: bytes) -> Any:
    """Return the value if counting `":` proves that no key is duplicated; else `_UNSURE`."""
    if any(sign.search(body) for sign in _ODD_COLONS):
        return _UNSURE
    try:
        value = orjson.loads(body)
        # Compact JSON has one `":` for each key, besides those inside strings. A duplicate key
        # is lost when the value is encoded again.
        return value if orjson.dumps(value).count(b'":') == body.count(b'":') else _UNSURE
    except (orjson.JSONDecodeError, TypeError):
        return _UNSURE  # malformed or deeply nested


def _check_all_keys(body: bytes) -> None:
    try:
        json.loads(body, object_pairs_hook=_check_pairs)
    except ValueError:
        return  # malformed JSON is refused when the body is decoded
    except RecursionError:
        raise APIError(400, "invalid_json", "The body is nested too deeply.") from None


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            key = name[:_MAX_SHOWN_KEY]
            message = f"The body is not valid JSON: the key '{key}' appears twice."
            raise APIError(400, "invalid_json", message)
        seen.add(name)


def decode_object(body: bytes) -> dict[str, Any]:
    """Return the body as a JSON object.

    Raises:
        APIError: the body is not a JSON object.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"The body is not valid JSON: {error.msg} at line {error.lineno}."
        raise APIError(400, "invalid_json", message) from None
    return _need_object(value)


def _need_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid_type("body", "an object", value)
    return value  # pyright: ignore[reportUnknownVariableType] - JSON's keys are strings


JSON = b"application/json"
BODY_TIMEOUT = 60.0
"""Seconds within which a body must arrive."""
_UNCACHED = (b"no-cache", b"no-store")
_Parsed = TypeVar("_Parsed")


def header_value(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of the first header with this name, given in lower case; None if absent."""
    for key, value in scope["headers"]:
        if key == name:
            return value
    return None


def query_number(given: str, name: str, low: int, high: int) -> int:
    """Return an integer from a query parameter.

    Raises:
        APIError: the value is not an integer from `low` to `high`.
    """
    digits = given.lstrip("0") or given[:1]  # too many digits are never converted
    if digits.isascii() and digits.isdecimal() and len(digits) <= len(str(high)):
        number = int(digits)
        if low <= number <= high:
            return number
    raise invalid_value(name, f"it must be a whole number from {low} to {high}.")


def cookie_value(scope: Scope, name: str) -> str | None:
    """Return the value of the first cookie with this name, with any quotes; None if absent.

    Our own cookies need no quotes, and the standard library's parser takes quadratic time.
    """
    given = header_value(scope, b"cookie")
    for pair in () if given is None else given.decode("latin-1").split(";"):
        key, found, value = pair.partition("=")
        if found and key.strip() == name:
            return value.strip()
    return None


class ClientGone(Exception):
    """The client closed the connection before the body was read."""


async def read_body(receive: Receive, seconds: float = BODY_TIMEOUT) -> bytes:
    """Return the whole body, if it arrives within `seconds`.

    Raises:
        ClientGone: the client has disconnected.
        APIError: the body arrives too slowly, or `receive` refuses it, such as for its size.
    """
    try:
        async with asyncio.timeout(seconds):  # costs a third of anyio's
            return await _receive_body(receive)
    except TimeoutError:
        message = f"The body did not arrive within {seconds:g} seconds."
        raise APIError(408, "request_timeout", message) from None


async def read_checked_body(receive: Receive) -> bytes:
    """Return the whole body, if it has few enough values to be parsed quickly.

    Raises:
        ClientGone: the client has disconnected.
        APIError: the body has too many values or arrives too slowly, or `receive` refuses it.
    """
    body = await read_body(receive)
    if len(body) > LARGE_BODY:
        await anyio.to_thread.run_sync(check_value_count, body)
    return body


async def _receive_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            return b"".join((*parts, body)) if parts else body
        parts.append(body)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns the body, which was read already."""
    is_replayed = False

    async def receive_again() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


BodyReader = Callable[[Scope, Receive], Awaitable["Fields"]]
"""Reads and parses the body of a request."""


async def read_fields(scope: Scope, receive: Receive) -> Fields:
    """Return the body's JSON object, with what the headers say about it.

    Raises:
        ClientGone: the client has disconnected.
        APIError: the body is not a JSON object or its `content-type` is not JSON, a key is there
            twice, the body has too many values, is nested too deeply or arrives too slowly, or
            `receive` refuses it.
    """
    kind = header_value(scope, b"content-type") or JSON
    if kind != JSON:
        kind = kind.partition(b";")[0].strip().lower()
    if kind and kind != JSON and not kind.endswith(b"+json"):
        message = "The body must be JSON: send 'content-type: application/json'."
        raise APIError(415, "unsupported_media_type", message)
    body = await read_checked_body(receive)
    is_large = len(body) > LARGE_BODY
    if is_large:
        fields = await anyio.to_thread.run_sync(decode_checked, body)
    else:
        fields = decode_checked(body)
    session = session_header(scope["headers"])
    return Fields(fields, is_fresh=_wants_fresh(scope), is_large=is_large, session=session)


async def parse_fields(parse: Callable[[Fields], _Parsed], body: Fields) -> _Parsed:
    """Return the parsed body; a large body is parsed in a thread."""
    if body.is_large:
        return await anyio.to_thread.run_sync(parse, body)
    return parse(body)


def _wants_fresh(scope: Scope) -> bool:
    """Return True if `Cache-Control` forbids a cached answer, or the caching of this answer."""
    given = header_value(scope, b"cache-control")
    if given is None:
        return False
    return any(word.strip().lower() in _UNCACHED for word in given.split(b","))


_PIECE_SENT = 1 << 20
"""Maximum number of bytes of a response in one ASGI message."""


async def send_json(
    send: Send, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Send the value as the whole response."""
    body = encode_json(value)
    fixed = [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
    more = raw_headers((headers or {}).items())
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *more]})
    last = max(len(body) - 1, 0) // _PIECE_SENT * _PIECE_SENT
    for at in range(0, last, _PIECE_SENT):  # other requests run while the client reads a piece
        piece = body[at : at + _PIECE_SENT]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": body[last:]})


def raw_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Return the headers encoded for ASGI."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def json_response(body: Any, status: int = 200) -> Response:
    """Return the value as a JSON response."""
    return Response(encode_json(body), status, media_type="application/json")


class Fields:
    """A JSON object of a request's body. Where values are read, null counts as absent.

    Methods named after a type return the field's value, or None if the field is absent; `need` and
    methods whose names begin with `need_` refuse an absent field. A value of the wrong type or out
    of bounds is refused too, except by `get` and `need`. To refuse is to raise `APIError`.
    """

    __slots__ = ("_data", "files", "is_fresh", "is_large", "session", "where")

    def __init__(
        self,
        data: Mapping[str, Any],
        where: str = "",
        *,
        is_fresh: bool = False,
        is_large: bool = False,
        session: str = "",
        files: tuple[str, ...] = (),
    ) -> None:
        self._data = data
        self.where = where
        """The object's path in the body; empty for the body itself."""
        self.is_fresh = is_fresh
        """Whether the request's headers forbid a cached answer, or the caching of this one."""
        self.is_large = is_large
        """Whether the object is too large to be parsed on the event loop."""
        self.session = session
        """The session id from the request's headers; may be empty."""
        self.files = files
        """The ids of the uploaded files in the conversation."""

    @staticmethod
    def of(value: object, where: str) -> Fields:
        """Return the object `value`, which is at the path `where` of the body."""
        if not isinstance(value, dict):
            raise invalid_type(where, "an object", value)
        return Fields(cast("dict[str, Any]", value), where)

    @property
    def names(self) -> Collection[str]:
        """The names of all fields, null or not."""
        return self._data.keys()

    @property
    def raw(self) -> Mapping[str, Any]:
        """The object as received."""
        return self._data

    def path(self, name: str) -> str:
        """Return the full path of a field, for error messages."""
        return f"{self.where}.{name}" if self.where else name

    def check_names(self, known: Collection[str]) -> None:
        """Refuse the first field whose name is not in `known`."""
        for name in self._data:
            if name not in known:
                message = f"Unknown parameter: '{self.path(name)}'."
                raise APIError(400, "unknown_parameter", message, param=self.path(name))

    def mentions(self, names: Collection[str]) -> bool:
        """Return True if the object has any of these fields, null or not."""
        return not self._data.keys().isdisjoint(names)

    def get(self, name: str) -> Any:
        """Return the value, of any type; None if absent."""
        return self._data.get(name)

    def need(self, name: str) -> Any:
        """Return the value, of any type; refuse an absent field."""
        value = self._data.get(name)
        if value is None:
            raise missing_parameter(self.path(name))
        return value

    def unused(self, known: Collection[str], idle: Collection[str]) -> list[str]:
        """Return the names of fields without effect: not in `known`, or in `idle` and not null."""
        return [
            name
            for name, value in self._data.items()
            if name not in known or (name in idle and value is not None)
        ]

    def text(self, name: str) -> str | None:
        """Return a string."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid_type(self.path(name), "a string", value)
        return value

    def need_text(self, name: str) -> str:
        """Return a required string that is not empty."""
        value = self.need_string(name)
        if not value:
            raise invalid_value(self.path(name), "it must not be empty.")
        return value

    def need_string(self, name: str) -> str:
        """Return a required string that may be empty."""
        value = self.text(name)
        if value is None:
            raise missing_parameter(self.path(name))
        return value

    def flag(self, name: str) -> bool | None:
        """Return a boolean."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, bool):
            raise invalid_type(self.path(name), "a boolean", value)
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number from `low` to `high`."""
        value = self._data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid_type(self.path(name), "a number", value)
        self._check(name, value, low, high)
        return float(value)

    def cache_mark(self) -> str | None:
        """Return the TTL of `cache_control`: "5m" or "1h"; None if the field is absent."""
        control = self.object("cache_control")
        if control is None:
            return None
        control.need("type")
        control.choice("type", ("ephemeral",))
        return control.choice("ttl", ("5m", "1h")) or "5m"

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Return an integer from `low` to `high`."""
        value = self._data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid_type(self.path(name), "an integer", value)
        self._check(name, value, low, high)
        return value

    def choice(self, name: str, options: Collection[str]) -> str | None:
        """Return a string that is one of `options`."""
        value = self.text(name)
        if value is not None and value not in options:
            listed = ", ".join(f"'{option}'" for option in options)
            raise invalid_value(self.path(name), f"it must be one of {listed}.")
        return value

    def array(self, name: str, most: int) -> list[Any] | None:
        """Return an array of at most `most` entries."""
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise invalid_type(self.path(name), "an array", value)
        entries = cast("list[Any]", value)
        if len(entries) > most:
            reason = f"it has {len(entries)} entries and at most {most} are allowed."
            raise invalid_value(self.path(name), reason)
        return entries

    def texts(self, name: str, most: int) -> tuple[str, ...] | None:
        """Return an array of at most `most` strings, none of them empty."""
        entries = self.array(name, most)
        if entries is None:
            return None
        for index, entry in enumerate(entries):
            if not isinstance(entry, str):
                raise invalid_type(f"{self.path(name)}[{index}]", "a string", entry)
            if not entry:
                raise invalid_value(f"{self.path(name)}[{index}]", "it must not be empty.")
        return tuple(entries)

    def object(self, name: str) -> Fields | None:
        """Return an object."""
        value = self._data.get(name)
        return None if value is None else Fields.of(value, self.path(name))

    def need_object(self, name: str) -> Fields:
        """Return a required object."""
        return Fields.of(self.need(name), self.path(name))

    def objects(self, name: str, most: int) -> list[Fields] | None:
        """Return an array of at most `most` objects."""
        entries = self.array(name, most)
        if entries is None:
            return None
        path = self.path(name)
        return [Fields.of(entry, f"{path}[{index}]") for index, entry in enumerate(entries)]

    def _check(self, name: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            form = "," if isinstance(value, int) else "g"
            reason = f"{value} is not in the range from {low:{form}} to {high:{form}}."
            raise invalid_value(self.path(name), reason)
