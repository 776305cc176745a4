"""Checks that a text has the requested format: a JSON object, or JSON that fits a schema."""

from __future__ import annotations

from typing import final

from batuta.core import ResponseFormat
from batuta.schemas import JsonValidator, validator_for


@final
class ResponseFormatChecker:
    """Checks texts against one response format."""

    def __init__(self, form: ResponseFormat) -> None:
        """Check the schema's size; `check_schema` checks that it is valid.

        Raises:
            ValueError: the schema is too large; the message says in which way.
        """
        schema = form.schema if form.kind == "json_schema" else None
        self._validator: JsonValidator = validator_for(schema, is_object=form.kind == "json_object")

    async def check_schema(self) -> None:
        """Check that the schema is valid.

        Raises:
            ValueError: the schema is invalid; the message says where.
            SchemaTimeoutError: the check takes too long, or its process cannot be started or died.
        """
        await self._validator.check()

    async def find_fault(self, text: str) -> str | None:
        """Return the first fault of the text; None if it has none.

        Raises:
            SchemaTimeoutError: the check takes too long, or its process cannot be started or died.
        """
        return await self._validator.find_fault(text)
