"""Whether a text has the form that was asked for: JSON, and JSON that fits a schema."""

from __future__ import annotations

import re
from typing import final

from batuta.core import ResponseFormat
from batuta.schemas import JsonValidator, validator_for

_CODE_FENCE = re.compile(r"\s*```(?:json|JSON)?[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)


@final
class ResponseFormatChecker:
    """The form that an answer must have."""

    def __init__(self, wanted: ResponseFormat) -> None:
        """Measures it; `check` says whether its schema is one.

        Raises:
            ValueError: its schema is too large in some way; the sentence says which.
        """
        schema = wanted.schema if wanted.kind == "json_schema" else None
        self._validator: JsonValidator = validator_for(
            schema, is_object=wanted.kind == "json_object"
        )

    async def check_schema(self) -> None:
        """Nothing, if the schema is one.

        Raises:
            ValueError: it is none; the sentence says where.
            SchemaTooSlow: it cannot be told in the time there is.
        """
        await self._validator.check()

    async def find_fault(self, text: str) -> str | None:
        """The first thing that is wrong with the text; None if nothing is.

        Raises:
            SchemaTooSlow: it cannot be told in the time there is.
        """
        return await self._validator.find_fault(text)


def strip_code_fence(text: str) -> str:
    """The content of the code block that the whole text is; else the text."""
    found = _CODE_FENCE.fullmatch(text)
    return found[1] if found else text
