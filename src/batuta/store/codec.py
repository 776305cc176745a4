"""Encodes a `Run` as JSON bytes and decodes it.

`decode_run(encode_run(run)) == run` holds for every run whose numbers are finite, whose strings are
valid Unicode, and whose tools have JSON values as parameters. For other runs `encode_run` writes
the nearest run that JSON can represent:

- a lone surrogate becomes U+FFFD, a surrogate pair becomes its character;
- NaN and the infinities become null;
- in a tool's free-form parameters, tuples become lists, keys become strings, and a value that JSON
  cannot represent becomes its `str`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

import orjson
from anyio.to_thread import run_sync

from batuta.core import Run
from batuta.errors import StoreError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_MOST_EXPONENT = 30
FORMAT = 1
"""Version of the format; stored with the bytes, and increased when old bytes need other code."""


def encode_run(run: Run) -> bytes:
    """Return the run as UTF-8 JSON.

    Raises:
        StoreError: a tool's parameters are nested too deeply, or contain themselves.
    """
    try:
        return orjson.dumps(run, default=_plain_value)
    except orjson.JSONEncodeError:  # surrogates, integers over 64 bits, deep nesting: rare
        return _encode_slowly(run)


def decode_run(body: bytes, version: int = FORMAT) -> Run:
    """Return the run that `encode_run` wrote.

    Raises:
        StoreError: the bytes are not a run, or have a format that this version cannot read.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - a store that only writes never needs it

    check_format(version)
    try:
        return _decode_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "the text"
        raise StoreError(f"a stored run cannot be read: {path}: {first['msg']}") from error
    except (RecursionError, ValueError) as error:
        raise StoreError(f"a stored run cannot be read: {error}") from error


async def read_run(body: bytes, version: int = FORMAT) -> Run:
    """Decode a run; the first call of a process builds the decoder in a thread.

    Raises:
        StoreError: as `decode_run` does.
    """
    if not _run_adapter.cache_info().currsize:
        await run_sync(_run_adapter)
    return decode_run(body, version)


def check_format(version: int) -> None:
    """Check that this version reads bytes of that format.

    Raises:
        StoreError: another version of Batuta has written the bytes.
    """
    if version != FORMAT:
        raise StoreError(
            f"a stored run has format {version} and this Batuta reads {FORMAT}: upgrade Batuta"
        )


def clean_text(text: str) -> str:
    """Return the text with lone surrogates replaced by U+FFFD and surrogate pairs joined."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def sql_text(text: str) -> str:
    """Return the text with U+FFFD for characters that databases refuse: lone surrogates and NUL."""
    if text.isascii() and "\0" not in text:
        return text
    return clean_text(text).replace("\0", "\ufffd")


def is_sql_number(number: Decimal) -> bool:
    """Return True for 0 and magnitudes from 1e-30 to below 1e31, which every database accepts.

    Converting a number such as 1e999999 to an integer would take minutes.
    """
    return number.is_finite() and abs(number.adjusted()) <= _MOST_EXPONENT


def sql_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with `sql_text` applied to strings."""
    return {name: sql_text(one) if isinstance(one, str) else one for name, one in values.items()}


@cache
def _run_adapter() -> TypeAdapter[Run]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - built on first use: it takes 50 ms

    return TypeAdapter(Run)


def _decode_json(body: bytes) -> Run:
    from pydantic import ValidationError  # noqa: PLC0415 - see decode_run

    try:
        return _run_adapter().validate_json(body)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] != "json_invalid":
            raise
        # Valid JSON nested over 200 levels is refused by pydantic's own parser only.
        return _run_adapter().validate_python(json.loads(body))


def _plain_value(value: object) -> Any:
    """Convert a value that orjson cannot encode."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, AbstractSet):
        return list(cast("AbstractSet[Any]", value))
    return str(value)


def _encode_slowly(run: Run) -> bytes:
    try:
        return json.dumps(_to_tree(run), ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError as error:
        raise StoreError("a run is nested too deeply to be stored") from error


def _to_tree(value: Any) -> Any:
    """Return dicts, lists and scalars that `json.dumps` writes as valid UTF-8."""
    if isinstance(value, Enum):
        return _to_tree(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return _clean_scalar(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_tree(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {clean_text(str(key)): _to_tree(item) for key, item in items}
    if isinstance(value, (list, tuple, AbstractSet)):
        return [_to_tree(item) for item in cast("list[Any]", value)]
    return clean_text(str(value))


def _clean_scalar(value: float | str | None) -> float | str | None:
    if isinstance(value, float):
        return value if isfinite(value) else None
    return clean_text(value) if isinstance(value, str) else value


def format_cursor(created: float, row_id: str) -> str:
    """Return the cursor of the position after that row."""
    return f"{created!r}_{row_id}"


def parse_cursor(cursor: str) -> tuple[float, str]:
    """Return the time and the id of a cursor, the id cleaned by `sql_text`.

    Raises:
        ValueError: the text is not a cursor.
    """
    created, _, row_id = cursor.partition("_")
    try:
        at = float(created)
    except ValueError:
        at = float("nan")
    if not row_id or not isfinite(at):
        raise ValueError(f"not a cursor of a list: {cursor!r}")
    return at, sql_text(row_id)
