"""Validates texts against a schema: in this process if that is quick, else in a child process."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, final

from batuta.errors import BatutaError
from batuta.offload import (
    SHARED_PROCESSES,
    ProcessDiedError,
    ProcessStartError,
    ProcessTimeoutError,
)
from batuta.schemas.bounds import SchemaSize, measure_schema
from batuta.schemas.checker import find_schema_fault, find_text_fault, find_text_fault_json

MAX_INLINE_VALUES = 500
"""Maximum number of values of a schema that is compiled in this process."""
MAX_INLINE_CHAIN = 40
"""Maximum nesting of subschemas of a schema that is compiled in this process."""
MAX_INLINE_CHECKS = 20_000
"""Maximum number of checks of values against subschemas in this process: a few milliseconds."""
MAX_INLINE_CHARACTERS = 20_000
"""Maximum length of a text that is parsed in this process, in characters."""
_MAX_SLOW_SCHEMAS = 1024


class SchemaTimeoutError(BatutaError):
    """The check could not be completed; usually it exceeded its time limit, now or before."""


_SLOW_SCHEMAS: OrderedDict[bytes, None] = OrderedDict()
"""Digests of the latest schemas whose check timed out or died, oldest first; no child process
checks them again."""
_EMPTY_SIZE = SchemaSize(values=0, expanded=1, chain=1, is_linear=True)
_MAX_RECENT = 64
_RECENT: dict[int, tuple[Mapping[str, Any], JsonValidator]] = {}


@final
class JsonValidator:
    """Checks whether texts are JSON that matches a schema, or any JSON."""

    def __init__(self, schema: Mapping[str, Any] | None, *, is_object: bool = False) -> None:
        """Measure the schema, in time linear in its size; `check` tests whether it is valid.

        Without a schema, or with an empty one, any JSON is accepted, or with `is_object` any JSON
        object. With a schema `is_object` is ignored.

        Raises:
            ValueError: the schema is too large; the message says in which way.
        """
        self._schema = dict(schema) if schema else None
        self._is_object = is_object
        self._size = measure_schema(self._schema) if self._schema else _EMPTY_SIZE
        self._digest: bytes | None = None

    async def check(self) -> None:
        """Check that the schema is valid and refers to no other.

        Raises:
            ValueError: the schema cannot be used; the message says why.
            SchemaTimeoutError: the check could not be completed.
        """
        if self._schema is None:
            return
        if self._compiles_here:
            fault = find_schema_fault(self._schema)
        else:
            fault = await self._call_in_process(find_schema_fault, self._schema)
        if fault is not None:
            raise ValueError(fault)

    def check_now(self) -> None:
        """Check the schema like `check`, in a thread that may block.

        Raises:
            ValueError: the schema cannot be used; the message says why.
            SchemaTimeoutError: the check could not be completed.
        """
        if self._schema is None:
            return
        if self._compiles_here:
            fault = find_schema_fault(self._schema)
        else:
            with self._refusing_slow():
                fault = SHARED_PROCESSES.call_now(find_schema_fault, self._schema)
        if fault is not None:
            raise ValueError(fault)

    async def find_fault(self, text: str) -> str | None:
        """Return one fault of the text or the schema; None if the text matches the schema.

        Raises:
            SchemaTimeoutError: the check could not be completed.
        """
        if self.is_quick(text):
            return find_text_fault(self._schema, text, is_object=self._is_object)
        return await self._call_in_process(
            find_text_fault_json, self._schema, text, int(self._is_object)
        )

    def find_fault_now(self, text: str) -> str | None:
        """Find a fault like `find_fault`, in a thread that may block.

        Raises:
            SchemaTimeoutError: the check could not be completed.
        """
        if self.is_quick(text):
            return find_text_fault(self._schema, text, is_object=self._is_object)
        with self._refusing_slow():
            return SHARED_PROCESSES.call_now(
                find_text_fault_json, self._schema, text, int(self._is_object)
            )

    def is_quick(self, text: str) -> bool:
        """Return True if checking the text in this thread should take only milliseconds."""
        if len(text) > MAX_INLINE_CHARACTERS:
            return False
        if self._schema is None:
            return True
        values = 1 + len(text) // 64 + sum(text.count(sign) for sign in ",[{:")
        return self._compiles_here and values * self._size.expanded <= MAX_INLINE_CHECKS

    @property
    def _compiles_here(self) -> bool:
        size = self._size
        return (
            size.is_linear and size.values <= MAX_INLINE_VALUES and size.chain <= MAX_INLINE_CHAIN
        )

    async def _call_in_process(self, function: Any, *arguments: Any) -> str | None:
        with self._refusing_slow():
            return await SHARED_PROCESSES.call(function, *arguments)

    @contextmanager
    def _refusing_slow(self) -> Generator[None]:
        """Refuse a schema whose check timed out or died; remember it if that happens in the block.

        Without a schema only the text can be slow, so nothing is refused or remembered.

        Raises:
            SchemaTimeoutError: the schema is refused, or the block could not check it.
        """
        if self._digest is None and self._schema is not None:
            self._digest = hashlib.sha256(json.dumps(self._schema).encode()).digest()
        if self._digest in _SLOW_SCHEMAS:
            raise SchemaTimeoutError("checking this schema took too long before")
        try:
            yield
        except (ProcessTimeoutError, ProcessDiedError):
            if self._digest is None:
                raise SchemaTimeoutError("checking this text takes too long") from None
            _SLOW_SCHEMAS[self._digest] = None
            if len(_SLOW_SCHEMAS) > _MAX_SLOW_SCHEMAS:
                _SLOW_SCHEMAS.popitem(last=False)
            raise SchemaTimeoutError("checking this schema takes too long") from None
        except ProcessStartError as error:
            raise SchemaTimeoutError(f"the check cannot be run: {error}") from None


_ANY_JSON = JsonValidator(None)
_ANY_OBJECT = JsonValidator(None, is_object=True)


def validator_for(schema: Mapping[str, Any] | None, *, is_object: bool = False) -> JsonValidator:
    """Return a validator of that schema; the last 64 are cached by the identity of their schemas.

    A request's schema is measured when the request is parsed; each checked step then reuses the
    validator. An empty schema, and `is_object`, are treated as by `JsonValidator`.

    Raises:
        ValueError: the schema is too large; the message says in which way.
    """
    if not schema:
        return _ANY_OBJECT if is_object else _ANY_JSON
    recent = _RECENT.get(id(schema))
    if recent is not None and recent[0] is schema:
        return recent[1]
    validator = JsonValidator(schema)
    _RECENT[id(schema)] = (schema, validator)
    if len(_RECENT) > _MAX_RECENT:
        del _RECENT[next(iter(_RECENT))]
    return validator
