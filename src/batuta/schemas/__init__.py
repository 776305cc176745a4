"""JSON Schema, checked in one place: bounded first, then compiled, in a process if need be."""

from batuta.schemas.bounds import measure_json, measure_schema
from batuta.schemas.checker import strip_code_fence
from batuta.schemas.validator import JsonValidator, SchemaTimeoutError, validator_for

__all__ = [
    "JsonValidator",
    "SchemaTimeoutError",
    "measure_json",
    "measure_schema",
    "strip_code_fence",
    "validator_for",
]
