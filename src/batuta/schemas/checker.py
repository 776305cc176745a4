"""Whether a text is JSON that fits a schema: plain functions, also called in another process.

`jsonschema-rs` compiles the schema; it is kept from fetching anything, and its regular expressions
from trying for ever (design/0008-hostile-input.md has the measurements).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import Any, cast

SHOWN = 300
"""Characters of a fault that are told."""
DEEPEST = 200
"""Levels of a value that is checked."""
BACKTRACKS = 100_000
"""Steps back that one regular expression may take on one text."""


def schema_fault(schema: dict[str, Any]) -> str | None:
    """Why this is no JSON schema; None if it is one."""
    try:
        _compiled(schema)
    except _rust().ValidationError as error:
        return _told(error)
    except Exception as error:  # noqa: BLE001 - the library's other errors are the schema's too
        return str(error).partition("\n")[0][:SHOWN]
    return None


def text_fault(schema: dict[str, Any] | None, text: str, *, is_object: bool = False) -> str | None:
    """The first thing that is wrong with the text; None if nothing is.

    Args:
        schema: what it must fit; None: any JSON.
        text: what may be JSON.
        is_object: whether without a schema it must be an object.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return f"it is not JSON: {error}"[:SHOWN]
    if schema is None:
        return "it is not a JSON object" if is_object and type(value) is not dict else None
    if not _is_shallow(value):
        return "it is nested too deeply"
    try:
        validator = _compiled(schema)
        if validator.is_valid(value):
            return None
        return _told(next(iter(validator.iter_errors(value))))
    except _rust().ValidationError as error:
        return f"the schema cannot be used: {_told(error)}"[:SHOWN]
    except Exception as error:  # noqa: BLE001 - a value that the library cannot take
        return f"it cannot be checked: {str(error).partition(chr(10))[0]}"[:SHOWN]


def text_fault_of(schema: dict[str, Any] | None, text: str, is_object: int) -> str | None:
    """`text_fault` with arguments that are JSON."""
    return text_fault(schema, text, is_object=bool(is_object))


def _compiled(schema: dict[str, Any]) -> Any:
    """A validator that fetches nothing.

    Raises:
        jsonschema_rs.ValidationError: this is no schema, or it refers to what is not in it.
    """
    rust = _rust()
    options = rust.FancyRegexOptions(backtrack_limit=BACKTRACKS)
    return rust.validator_for(schema, offline=True, validate_formats=False, pattern_options=options)


def _rust() -> Any:
    # Loaded on first use: most answers are free text.
    return importlib.import_module("jsonschema_rs")


def _told(error: Any) -> str:
    """What is wrong and where, in one line that ends."""
    path = "$" + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}"
        for part in cast("Sequence[str | int]", error.instance_path)
    )
    kind = type(error.kind).__name__
    if "Backtrack" in kind or "RegexEngine" in kind:
        return f"{path}: its pattern cannot be checked"[:SHOWN]
    return f"{path}: {error.message}"[:SHOWN]


def _is_shallow(value: object) -> bool:
    """Whether the value is nested no deeper than the checker can go."""
    level: list[object] = [value]
    for _ in range(DEEPEST):
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += cast("dict[str, object]", one).values()
            elif isinstance(one, list):
                inner += cast("list[object]", one)
        if not inner:
            return True
        level = inner
    return False


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
