"""The OpenAPI 3.1 document: the API's routes, with request schemas derived from the parsers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, final

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from batuta.distribution import package_version
from batuta.gateway.chat import request as chat
from batuta.gateway.chat import text_completion
from batuta.gateway.embeddings import endpoint as embeddings
from batuta.gateway.http.body import encode_json
from batuta.gateway.messages import request as messages
from batuta.gateway.openapi.field_recorder import body_schema
from batuta.gateway.responses import request as responses
from batuta.jobs import JobState
from batuta.store.run_filter import RUN_PARAMETERS

Json = dict[str, Any]
_FUNCTION_TOOLS = {"tools[].type": "function"}
"""Tells `body_schema` that the tools of the recorded body are functions."""
_PAGE_PREFIX = "/ui"


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of a method of a route."""

    summary: str
    _: KW_ONLY
    body: str = ""
    """The name of the request body's schema; empty: there is no JSON body."""
    answer: str = "Object"
    """The name of the response body's schema; empty: the document says that it is text."""
    form: bool = False
    """Whether the body is a form with a file."""
    streams: bool = False
    """Whether the response may be a stream of server-sent events."""
    public: bool = False
    """Whether the operation never needs a key."""
    query: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The schemas of query parameters, by name; some lists accept further parameters."""


_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_RUN_QUERY: Mapping[str, Json] = dict.fromkeys(RUN_PARAMETERS, _TEXT)
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "An answer as a chat completion", body="ChatRequest", answer="ChatCompletion", streams=True
    ),
    ("POST", "/v1/responses"): Operation(
        "An answer as a response", body="ResponseRequest", answer="Response", streams=True
    ),
    ("POST", "/v1/responses/compact"): Operation(
        "A compacted conversation", body="ResponseRequest"
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "A stored response",
        answer="Response",
        streams=True,
        query={"stream": {"type": "boolean"}, "starting_after": _COUNT},
    ),
    ("DELETE", "/v1/responses/{id}"): Operation("Deletes a response"),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        "Cancels a background response", answer="Response"
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "Input items of a response", answer="List"
    ),
    ("POST", "/v1/completions"): Operation(
        "An answer as a text completion",
        body="TextCompletionRequest",
        answer="TextCompletion",
        streams=True,
    ),
    ("POST", "/v1/moderations"): Operation(
        "The moderation provider's judgement of a text", body="Object"
    ),
    ("POST", "/v1/embeddings"): Operation(
        "Embeddings of texts", body="EmbeddingRequest", answer="EmbeddingList"
    ),
    ("GET", "/v1/containers/{container}/files/{id}"): Operation("A file written by a program"),
    ("GET", "/v1/containers/{container}/files/{id}/content"): Operation(
        "The content of a file written by a program", answer=""
    ),
    ("POST", "/v1/files"): Operation("Uploads a file", form=True),
    ("GET", "/v1/files"): Operation(
        "The caller's files",
        answer="List",
        query={"limit": _COUNT, "after": _TEXT, "order": _TEXT, "purpose": _TEXT},
    ),
    ("GET", "/v1/files/{id}"): Operation("A file"),
    ("DELETE", "/v1/files/{id}"): Operation("Deletes a file"),
    ("GET", "/v1/files/{id}/content"): Operation("The content of a file", answer=""),
    ("POST", "/v1/messages"): Operation(
        "An answer as a message", body="MessageRequest", answer="Message", streams=True
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Estimates the tokens of a message request", body="CountRequest", answer="TokenCount"
    ),
    ("GET", "/v1/models"): Operation("The served models", answer="List"),
    ("GET", "/v1/models/{id}"): Operation("A served model", answer="Model"),
    ("GET", "/v1/runs"): Operation(
        "Stored runs", answer="List", query={"limit": _COUNT, "after": _TEXT, **_RUN_QUERY}
    ),
    ("GET", "/v1/runs/totals"): Operation("Totals of stored runs", query=_RUN_QUERY),
    ("GET", "/v1/sessions"): Operation(
        "Sessions compared with the best single worker",
        answer="List",
        query={"limit": _COUNT, "since": _TEXT, "session": _TEXT, "tenant": _TEXT},
    ),
    ("GET", "/v1/runs/{id}"): Operation("A stored run"),
    ("DELETE", "/v1/runs/{id}"): Operation("Deletes a run"),
    ("POST", "/v1/runs/{id}/feedback"): Operation("Scores a run in [0, 1]", body="Object"),
    ("GET", "/v1/admin/keys"): Operation("The keys", answer="List"),
    ("POST", "/v1/admin/keys"): Operation("Creates a key", body="Object"),
    ("GET", "/v1/admin/keys/{id}"): Operation("A key"),
    ("PATCH", "/v1/admin/keys/{id}"): Operation("Changes a key", body="Object"),
    ("POST", "/v1/admin/keys/{id}/revoke"): Operation("Revokes a key"),
    ("POST", "/v1/admin/keys/{id}/rotate"): Operation("Gives a key a new secret", body="Object"),
    ("GET", "/v1/admin/tenants"): Operation("The tenants", answer="List"),
    ("PUT", "/v1/admin/tenants/{name}"): Operation("Sets a tenant's budgets", body="Object"),
    ("DELETE", "/v1/admin/tenants/{name}"): Operation("Deletes a tenant"),
    ("GET", "/v1/admin/spend"): Operation("The spending"),
    ("GET", "/v1/admin/activity"): Operation("Counts, durations and failures of runs"),
    ("GET", "/v1/admin/refusals"): Operation("Numbers of requests refused with status 429"),
    ("GET", "/v1/admin/approvals"): Operation(
        "Plans that wait for approval", answer="List", query={"limit": _COUNT, "after": _TEXT}
    ),
    ("POST", "/v1/admin/approvals/{id}"): Operation(
        "Approves, refuses or edits a plan", body="Object"
    ),
    ("POST", "/webhooks/approvals"): Operation(
        "Decides about a plan by a signed message", body="Object", public=True
    ),
    ("GET", "/v1/admin/audit"): Operation("The audit trail", answer="List"),
    ("GET", "/healthz"): Operation("Whether the process is alive", public=True),
    ("GET", "/readyz"): Operation("Whether runs can be served", public=True),
    ("GET", "/metrics"): Operation("Metrics for Prometheus", answer=""),
    ("GET", "/openapi.json"): Operation("This document", public=True),
    ("GET", "/docs"): Operation("This document as a page", public=True, answer=""),
}
"""Operations by method and path; a test compares them with the routes."""
OPTIONAL_OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/mcp"): Operation(
        "A message of the Model Context Protocol; the tools are ask, plan and runs",
        body="Object",
        streams=True,
    ),
}
"""The operations that only `batuta mcp --port` serves."""


def build_document(routes: Iterable[BaseRoute]) -> Json:
    """Return the document of the API's routes, without the web page's."""
    paths: dict[str, Json] = {}
    for method, path in sorted(described_routes(routes), key=lambda route: (route[1], route[0])):
        operation = OPERATIONS.get((method, path)) or OPTIONAL_OPERATIONS.get((method, path))
        if operation is not None:
            paths.setdefault(path, _path_item(path))[method.lower()] = _describe_operation(
                operation, path
            )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Batuta",
            "version": package_version(),
            "description": "A conductor of language models; its docs/api.md describes this API.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"x-api-key": []}],
        "paths": paths,
        "components": {
            "schemas": {**_request_schemas(), **_ANSWERS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "responses": {
                "Error": {
                    "description": "Why there is no answer.",
                    "content": {"application/json": {"schema": _schema_reference("Error")}},
                }
            },
        },
    }


def described_routes(routes: Iterable[BaseRoute]) -> set[tuple[str, str]]:
    """Return the methods and paths of the API's routes, without the web page's."""
    found: set[tuple[str, str]] = set()
    for route in routes:
        if not isinstance(route, Route) or route.path == "/" or route.path.startswith(_PAGE_PREFIX):
            continue
        path = route.path.replace(":path}", "}")
        found |= {(method, path) for method in route.methods or () if method != "HEAD"}
    return found


def _path_item(path: str) -> Json:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
    return {"parameters": parameters} if parameters else {}


def _describe_operation(operation: Operation, path: str) -> Json:
    content: Json = {"text/plain": {"schema": _TEXT}}
    if operation.answer:
        content = {"application/json": {"schema": _schema_reference(operation.answer)}}
    if operation.streams:
        content["text/event-stream"] = {"schema": _TEXT}
    done: Json = {"description": operation.summary, "content": content}
    answers: Json = {
        "200": done,
        "default": {"$ref": "#/components/responses/Error"},
    }
    if path == "/readyz":
        answers["503"] = done
    described: Json = {"summary": operation.summary, "responses": answers}
    if operation.public:
        described["security"] = []
    if operation.query:
        described["parameters"] = [
            {"name": name, "in": "query", "schema": schema}
            for name, schema in operation.query.items()
        ]
    if operation.form:
        form = _object_schema("file", file={"type": "string", "format": "binary"}, purpose=_TEXT)
        described["requestBody"] = {
            "required": True,
            "content": {"multipart/form-data": {"schema": form}},
        }
    if operation.body:
        body = {"application/json": {"schema": _schema_reference(operation.body)}}
        described["requestBody"] = {"required": True, "content": body}
    return described


def _schema_reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _request_schemas() -> dict[str, Json]:
    """Return the schemas of request bodies, recorded from their parsers."""
    return {
        "ChatRequest": body_schema(
            chat.parse_chat,
            {
                **_FUNCTION_TOOLS,
                "messages[].tool_calls[].function.arguments": "{}",
                "messages[].images[].image_url.url": "https://a.example/a.png",
            },
            refused=chat.REFUSED_FIELDS,
        ),
        "TextCompletionRequest": body_schema(
            text_completion.parse_completion, refused=text_completion.REFUSED_FIELDS
        ),
        "ResponseRequest": body_schema(
            _parse_response, {**_FUNCTION_TOOLS, "input": "x"}, refused=responses.REFUSED_FIELDS
        ),
        "MessageRequest": body_schema(messages.parse_message, refused=messages.REFUSED_FIELDS),
        "CountRequest": body_schema(messages.parse_question, refused=messages.REFUSED_FIELDS),
        "EmbeddingRequest": body_schema(embeddings.parse_embedding),
    }


def _parse_response(body: Any) -> Any:
    return responses.parse_response(body, responses.ResponseHistory())


_ROWS: Json = {"type": "array", "items": {"type": "object"}}
_NULLABLE_TEXT: Json = {"type": ["string", "null"]}
_TYPES: dict[str, Json] = {
    "code": _NULLABLE_TEXT,
    "created": _COUNT,
    "finish_reason": _TEXT,
    "id": _TEXT,
    "index": _COUNT,
    "input_tokens": _COUNT,
    "model": _TEXT,
    "param": _NULLABLE_TEXT,
}
"""The types of fields that are the same in all responses."""


def _object_schema(required: str, **properties: Json) -> Json:
    """Return the schema of an object with these required fields (separated by spaces)."""
    names = required.split()
    known = {name: _TYPES[name] for name in names if name in _TYPES}
    return {"type": "object", "properties": known | properties, "required": names}


_CHOICE = _object_schema("index message finish_reason")
_COMPLETION = "id object created model choices usage"
_ANSWERS: dict[str, Json] = {
    "Object": {"type": "object"},
    "List": _object_schema("data", data=_ROWS),
    "Model": _object_schema("id object", object={"const": "model"}),
    "TokenCount": _object_schema("input_tokens"),
    "ChatCompletion": _object_schema(
        _COMPLETION,
        object={"const": "chat.completion"},
        choices={"type": "array", "minItems": 1, "items": _CHOICE},
        usage=_object_schema("prompt_tokens completion_tokens total_tokens"),
    ),
    "Response": _object_schema(
        "id object status output",
        object={"const": "response"},
        status={"enum": [state.value for state in JobState]},
        output=_ROWS,
    ),
    "Message": _object_schema(
        "id type role content usage",
        type={"const": "message"},
        role={"const": "assistant"},
        content=_ROWS,
        usage=_object_schema("input_tokens output_tokens"),
    ),
    "TextCompletion": _object_schema(
        _COMPLETION,
        object={"const": "text_completion"},
        choices=_ROWS,
        usage={"type": "object"},
    ),
    "EmbeddingList": _object_schema(
        "object data usage",
        object={"const": "list"},
        data=_ROWS,
        usage=_object_schema("prompt_tokens total_tokens"),
    ),
    "Error": _object_schema(
        "error", error=_object_schema("message type param code", message=_TEXT, type=_TEXT)
    ),
}
"""Schemas of the responses."""


@final
class DocumentEndpoint:
    """Serves the document, which anyone may read: it names no model and no key."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = routes
        self._document: dict[str, Any] | None = None
        """None until the first request, which builds it."""
        self._body = b""
        self._building = anyio.Lock()

    async def read(self) -> dict[str, Any]:
        """Return the document."""
        async with self._building:  # concurrent first requests build it once
            if self._document is None:
                self._document = await anyio.to_thread.run_sync(build_document, self._routes)
                self._body = encode_json(self._document)
        return self._document

    async def send(self, _: Request) -> Response:
        """Send the document as JSON."""
        await self.read()
        return Response(self._body, media_type="application/json")
