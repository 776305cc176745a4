"""Checks that a text is JSON that matches a schema, by functions that a `ProcessPool` can call.

`jsonschema-rs` compiles the schema. It fetches nothing, does not check `format`, and limits the
backtracking of regular expressions (design/0008-hostile-input.md has the measurements).
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Sequence
from typing import Any, cast

MAX_FAULT_CHARACTERS = 300
"""Maximum number of characters of a reported fault."""
MAX_DEPTH = 200
"""Maximum levels of a value that is checked against a schema; `[[1]]` has three."""
MAX_BACKTRACKS = 100_000
"""Maximum number of backtracking steps of a regular expression on a text."""
_CODE_FENCE = re.compile(r"\s*```(?:json|JSON)?[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)


def strip_code_fence(text: str) -> str:
    """Return the content if the text is one code block (plain or `json`), else the text."""
    block = _CODE_FENCE.fullmatch(text)
    return block[1] if block else text


def find_schema_fault(schema: dict[str, Any]) -> str | None:
    """Return why the schema cannot be used (invalid, or refers to others); None if it can."""
    try:
        _compile_schema(schema)
    except _jsonschema_rs().ValidationError as error:
        return _describe_error(error)
    except Exception as error:  # noqa: BLE001 - other errors are due to the schema as well
        return str(error).partition("\n")[0][:MAX_FAULT_CHARACTERS]
    return None


def find_text_fault(
    schema: dict[str, Any] | None, text: str, *, is_object: bool = False
) -> str | None:
    """Return one fault of the text or the schema; None if the text is JSON that matches the schema.

    If `schema` is None any JSON is accepted, or with `is_object` any JSON object; with a schema
    `is_object` is ignored. NaN and infinity are not JSON.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return f"it is not JSON: {error}"[:MAX_FAULT_CHARACTERS]
    if schema is None:
        return "it is not a JSON object" if is_object and type(value) is not dict else None
    if not _is_shallow(value):
        return f"it is nested more than {MAX_DEPTH} levels deep"
    try:
        validator = _compile_schema(schema)
        if validator.is_valid(value):
            return None
        return _describe_error(next(iter(validator.iter_errors(value))))
    except _jsonschema_rs().ValidationError as error:
        return f"the schema cannot be used: {_describe_error(error)}"[:MAX_FAULT_CHARACTERS]
    except Exception as error:  # noqa: BLE001 - a value that the library cannot handle
        return f"it cannot be checked: {str(error).partition(chr(10))[0]}"[:MAX_FAULT_CHARACTERS]


def find_text_fault_json(schema: dict[str, Any] | None, text: str, is_object: int) -> str | None:
    """Call `find_text_fault`; all arguments are positional, as `ProcessPool.call` passes them."""
    return find_text_fault(schema, text, is_object=bool(is_object))


def _compile_schema(schema: dict[str, Any]) -> Any:
    """Return a validator that fetches nothing; raise ValidationError if the schema is invalid."""
    rust = _jsonschema_rs()
    options = rust.FancyRegexOptions(backtrack_limit=MAX_BACKTRACKS)
    return rust.validator_for(schema, offline=True, validate_formats=False, pattern_options=options)


def _jsonschema_rs() -> Any:
    # Loaded on first use: most answers are free text.
    return importlib.import_module("jsonschema_rs")


def _describe_error(error: Any) -> str:
    """Return what is wrong and where, in at most `MAX_FAULT_CHARACTERS`."""
    path = "$" + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}"
        for part in cast("Sequence[str | int]", error.instance_path)
    )
    kind = type(error.kind).__name__
    if "Backtrack" in kind or "RegexEngine" in kind:
        return f"{path}: its pattern cannot be checked"[:MAX_FAULT_CHARACTERS]
    return f"{path}: {error.message}"[:MAX_FAULT_CHARACTERS]


def _is_shallow(value: object) -> bool:
    """Return True if the value has at most `MAX_DEPTH` levels."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += cast("dict[str, object]", item).values()
            elif isinstance(item, list):
                inner += cast("list[object]", item)
        if not inner:
            return True
        level = inner
    return False


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not allowed")
