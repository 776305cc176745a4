"""Grades answers that are JSON with a given schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from batuta.core import Grade
from batuta.errors import SourceError
from batuta.lab.tasks.graders.limits import MAX_SHOWN
from batuta.language import answer_extraction
from batuta.schemas import JsonValidator, SchemaTimeoutError, strip_code_fence

MAX_LENGTH = 100_000
"""Maximum number of characters read of an answer, counted from its end."""


@final
class JsonSchemaGrader:
    """Scores 1 if the answer, alone or in one code block, is JSON that fits a schema, else 0."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Take the schema; its references to other documents are not fetched.

        Raises:
            SourceError: the schema is not a JSON schema or too large, or its check takes too long
                or loses its process.
        """
        try:
            self._validator = JsonValidator(schema)
            self._validator.check_now()
        except (ValueError, SchemaTimeoutError) as error:
            raise SourceError(f"the JSON schema cannot be used: {error}") from None

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`; the target is ignored, since the schema decides.

        Raises:
            SourceError: the check takes too long or loses its process.
        """
        shown = answer_extraction.visible_text(answer, MAX_LENGTH).strip()
        text = strip_code_fence(shown)
        try:
            reason = await self._validator.find_fault(text)
        except SchemaTimeoutError as error:
            raise SourceError(f"an answer cannot be graded: {error}") from None
        return Grade(float(not reason), text[:MAX_SHOWN], reason or "fits the schema")
