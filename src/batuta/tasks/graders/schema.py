"""Answers that are JSON of a given form."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from typing import Any, final

from batuta.core import Grade
from batuta.errors import SourceError
from batuta.tasks.graders import extract
from batuta.tasks.graders.extras import need
from batuta.tasks.graders.limits import SHOWN

MAX_LENGTH = 100_000
"""Characters of an answer that is read."""

_FENCED = re.compile(r"\s*```(?:json)?[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)


@final
class JsonSchema:
    """Judges whether the answer, alone or in one code block, is JSON that fits a schema; 1 or 0."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Learns the schema; nothing that it refers to is fetched.

        Raises:
            ConfigError: the extra `graders` is not installed.
            SourceError: it is no JSON schema.
        """
        need("graders", "jsonschema")
        from jsonschema import SchemaError  # noqa: PLC0415 - an extra
        from jsonschema.validators import validator_for  # noqa: PLC0415

        referencing: Any = importlib.import_module("referencing")
        kind: Any = validator_for(schema)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise SourceError(f"this is no JSON schema: {error.message}") from None
        self._validator: Any = kind(schema, registry=referencing.Registry())
        self._unresolvable: Any = referencing.exceptions.Unresolvable

    async def grade(self, answer: str, target: str) -> Grade:
        """The grade of `answer`; the schema is the target.

        Raises:
            SourceError: the schema refers to what is not in it.
        """
        shown = extract.visible(answer, MAX_LENGTH).strip()
        fenced = _FENCED.fullmatch(shown)
        text = fenced[1] if fenced else shown
        reason = self._fault(text)
        return Grade(float(not reason), text[:SHOWN], reason or "fits the schema")

    def _fault(self, text: str) -> str:
        """The first thing that is wrong; empty if nothing is."""
        try:
            value = json.loads(text, parse_constant=_refuse)
            error = next(self._validator.iter_errors(value), None)
        except ValueError as fault:
            return f"no JSON: {fault}"[:SHOWN]
        except RecursionError:
            return "nested too deeply"
        except self._unresolvable as error:
            raise SourceError(f"the schema refers to what is not in it: {error}") from None
        return "" if error is None else f"{error.json_path}: {error.message}"[:SHOWN]


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
