"""Checks that a text has the form that was asked for: JSON, and JSON that fits a schema."""

from __future__ import annotations

from typing import final

from batuta.core import ResponseFormat
from batuta.schemas import JsonValidator, validator_for


@final
class ResponseFormatChecker:
    """The form that an answer must have."""

    def __init__(self, wanted: ResponseFormat) -> None:
        """Measure the schema; `check` says whether it is one.

        Raises:
            ValueError: its schema is too large in some way; the sentence says which.
        """
        schema = wanted.schema if wanted.kind == "json_schema" else None
        self._validator: JsonValidator = validator_for(
            schema, is_object=wanted.kind == "json_object"
        )

    async def check_schema(self) -> None:
        """Return if the schema is one, else raise.

        Raises:
            ValueError: it is none; the sentence says where.
            SchemaTimeoutError: it cannot be told in the time there is.
        """
        await self._validator.check()

    async def find_fault(self, text: str) -> str | None:
        """Return the first thing that is wrong with the text; None if nothing is.

        Raises:
            SchemaTimeoutError: it cannot be told in the time there is.
        """
        return await self._validator.find_fault(text)
