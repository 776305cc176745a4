"""JSON Schema validation with bounded resources, in a worker process if it may be slow."""

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
