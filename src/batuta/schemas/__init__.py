"""JSON Schema, checked in one place: bounded first, then compiled, in a process if need be."""

from batuta.schemas.bounds import SchemaSize, measure_schema
from batuta.schemas.validator import JsonValidator, SchemaTooSlow

__all__ = ["JsonValidator", "SchemaSize", "SchemaTooSlow", "measure_schema"]
