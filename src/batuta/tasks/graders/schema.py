"""Answers that are JSON of a given form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, final

from batuta.core import Grade
from batuta.errors import SourceError
from batuta.schemas import JsonValidator, SchemaTooSlow
from batuta.schemas.checker import schema_fault
from batuta.tasks.graders import extract
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
            SourceError: it is no JSON schema, or too large to be checked.
        """
        try:
            self._validator = JsonValidator(schema)
        except ValueError as error:
            raise SourceError(f"this is no JSON schema that can be used: {error}") from None
        fault = schema_fault(dict(schema))
        if fault is not None:
            raise SourceError(f"this is no JSON schema: {fault}")

    async def grade(self, answer: str, target: str) -> Grade:
        """The grade of `answer`; the schema is the target.

        Raises:
            SourceError: whether it fits cannot be told in the time there is.
        """
        shown = extract.visible(answer, MAX_LENGTH).strip()
        fenced = _FENCED.fullmatch(shown)
        text = fenced[1] if fenced else shown
        try:
            reason = await self._validator.find_fault(text)
        except SchemaTooSlow as error:
            raise SourceError(f"an answer cannot be graded: {error}") from None
        return Grade(float(not reason), text[:SHOWN], reason or "fits the schema")
