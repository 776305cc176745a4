"""Whether a text has the form that was asked for: JSON, and JSON that fits a schema."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast, final

from batuta.core import ResponseFormat

PATTERN_SECONDS = 0.1
"""What one `pattern` of a caller's schema may take; one that takes longer does not fit."""
_SHOWN = 300
_FENCED = re.compile(r"\s*```(?:json|JSON)?[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)


@final
class Form:
    """The form that an answer must have."""

    def __init__(self, wanted: ResponseFormat) -> None:
        """Learns it; nothing that a schema refers to is fetched.

        Raises:
            ValueError: it is no JSON schema; the sentence says where.
        """
        self._validator: Any = None
        self._object = wanted.kind == "json_object"
        if wanted.kind == "json_schema" and wanted.schema:
            self._validator = _validator(wanted.schema)

    def fault(self, text: str) -> str | None:
        """The first thing that is wrong with the text; None if nothing is."""
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            return f"it is not JSON: {error}"[:_SHOWN]
        if self._validator is None:
            return "it is not a JSON object" if self._object and type(value) is not dict else None
        try:
            error = next(self._validator.iter_errors(value), None)
        except RecursionError:
            return "it is nested too deeply"
        except _unresolvable() as missing:
            return f"the schema refers to what is not in it: {missing}"[:_SHOWN]
        return None if error is None else f"{error.json_path}: {error.message}"[:_SHOWN]


def unfenced(text: str) -> str:
    """The content of the code block that the whole text is; else the text."""
    found = _FENCED.fullmatch(text)
    return found[1] if found else text


def _validator(schema: Mapping[str, Any]) -> Any:
    """A validator that fetches nothing and gives no pattern endless time."""
    # Loaded on first use: most answers are free text.
    jsonschema: Any = importlib.import_module("jsonschema")
    validators: Any = importlib.import_module("jsonschema.validators")
    referencing: Any = importlib.import_module("referencing")
    default = jsonschema.Draft202012Validator
    if _names(schema, "patternProperties"):
        raise ValueError("patternProperties cannot be checked here")
    kind: Any = validators.extend(
        validators.validator_for(schema, default=default), {"pattern": _pattern}
    )
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"{error.json_path}: {error.message}"[:_SHOWN]) from None
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    return kind(schema, registry=referencing.Registry())


def _names(schema: Mapping[str, Any], keyword: str) -> bool:
    """Whether the keyword stands anywhere in the schema."""
    left: list[Any] = [schema]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            if keyword in value:
                return True
            left += cast("Mapping[str, Any]", value).values()
        elif isinstance(value, list):
            left += cast("list[Any]", value)
    return False


def _pattern(_: Any, pattern: Any, instance: Any, __: Any) -> Iterator[Any]:
    """`pattern` with a time limit: a caller's expression may be made to take forever."""
    if not isinstance(instance, str):
        return
    jsonschema: Any = importlib.import_module("jsonschema")
    regex: Any = importlib.import_module("regex")
    try:
        found = regex.search(pattern, instance, timeout=PATTERN_SECONDS)
    except (TimeoutError, regex.error):
        yield jsonschema.ValidationError(f"{pattern!r} cannot be checked")
        return
    if not found:
        yield jsonschema.ValidationError(f"it does not match {pattern!r}")


def _unresolvable() -> Any:
    return importlib.import_module("referencing.exceptions").Unresolvable


def _no_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
