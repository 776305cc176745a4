"""GET /docs: every route of the API with its parameters and body fields, as a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response

from batuta.gateway.ui.rendering import render_page


@dataclass(frozen=True, slots=True)
class ShownField:
    """A path or query parameter, or a field of the body."""

    name: str
    kind: str
    """The schema's types, values and bounds in words; empty if it has none of them."""
    is_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownOperation:
    """An operation of the API: a method of a path."""

    method: str
    path: str
    summary: str
    parameters: tuple[ShownField, ...]
    fields: tuple[ShownField, ...]


@final
class ApiReference:
    """Serves /docs, which needs no key, like the /openapi.json that it renders."""

    def __init__(self, read_document: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        self._read_document = read_document

    async def page(self, request: Request) -> Response:
        """Render the server's OpenAPI document."""
        operations = list(list_operations(await self._read_document()))
        return render_page(request, "api_reference.html.jinja", operations=operations)


def list_operations(document: Mapping[str, Any]) -> Iterator[ShownOperation]:
    """Yield the operations of this server's OpenAPI document, in the document's order."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            given = (*item.get("parameters", ()), *operation.get("parameters", ()))
            yield ShownOperation(
                method=method.upper(),
                path=path,
                summary=operation["summary"],
                parameters=tuple(
                    ShownField(
                        each["name"], _describe_schema(each["schema"]), each.get("required", False)
                    )
                    for each in given
                ),
                fields=tuple(_list_fields(document, operation)),
            )


def _list_fields(document: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[ShownField]:
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content.get("schema", {})
        name = schema.get("$ref", "").rpartition("/")[2]
        schema = document["components"]["schemas"].get(name, schema)
        needed = schema.get("required", ())
        for field, about in schema.get("properties", {}).items():
            yield ShownField(field, _describe_schema(about), field in needed)


def _describe_schema(schema: Mapping[str, Any]) -> str:
    """Return a schema's types, values and bounds in words."""
    kinds = schema.get("type", ())
    words = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    text = " or ".join(words)
    values = [str(value) for value in schema.get("enum", ()) if value is not None]
    text += f": {', '.join(values)}" if values else ""
    low, high = schema.get("minimum"), schema.get("maximum")
    text += f", at least {low}" if low is not None else ""
    return text + (f", at most {high}" if high is not None else "")
