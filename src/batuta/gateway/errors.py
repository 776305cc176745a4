"""Errors of the API: status, code and message, as OpenAI's or Anthropic's error body."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast, final

logger = logging.getLogger("batuta.gateway")

_MESSAGES_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

_MESSAGES_DETAILS = {"thread": {"error_code": "thread_unsupported_request"}}
"""Details of an error in Anthropic's API, by the refused field. Its clients react to them by
sending the whole conversation again, without the field."""


_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_SERVER_ERROR = 500
_Part = TypeVar("_Part")
LONGEST_MESSAGE = 2_000
"""Maximum number of characters of a message, since many messages quote a part of the request."""
_LONGEST_PARAM = 300
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@final
class APIError(Exception):
    """An HTTP status and its error body; may be raised anywhere in the handling of a request."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        message = _crop_text(message, LONGEST_MESSAGE)
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = None if param is None else _crop_text(param, _LONGEST_PARAM)
        """The invalid field as a path: `messages[0].content`."""
        self.headers = headers

    def with_headers(self, headers: Mapping[str, str]) -> APIError:
        """Return a copy with additional headers."""
        more = {**self.headers, **headers}
        return APIError(self.status, self.code, self.message, param=self.param, headers=more)

    @property
    def type(self) -> str:
        """The error's `type` in OpenAI's API."""
        default = "server_error" if self.status >= _SERVER_ERROR else "invalid_request_error"
        return _TYPES.get(self.status, default)

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's API sends it, always with all four keys."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


def _crop_text(text: str, most: int) -> str:
    """Return the text, with its middle replaced by `…` if the text exceeds `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"


def missing_parameter(param: str) -> APIError:
    """Return the error for a missing field."""
    message = f"Missing required parameter: '{param}'."
    return APIError(400, "missing_required_parameter", message, param=param)


def invalid_type(param: str, expected: str, value: object) -> APIError:
    """Return the error for a field of the wrong JSON type; `expected` is, say, "a string"."""
    message = f"Invalid type for '{param}': expected {expected}, but got {_json_type(value)}."
    return APIError(400, "invalid_type", message, param=param)


def invalid_value(param: str, reason: str) -> APIError:
    """Return the error for an invalid value; `reason` is a sentence."""
    return APIError(400, "invalid_value", f"Invalid value for '{param}': {reason}", param=param)


def unsupported_parameter(param: str, reason: str) -> APIError:
    """Return the error for a known field that is not supported; `reason` is a sentence."""
    message = f"Unsupported parameter: '{param}': {reason}"
    return APIError(400, "unsupported_parameter", message, param=param)


def model_not_found(name: str, why: str | None = None) -> APIError:
    """Return the error for an unknown model or, with the clause `why`, for one not served."""
    message = f"The model '{name}' does not exist; GET /v1/models lists those that do."
    if why:
        message = f"The model '{name}' is not served: {why}."
    return APIError(404, "model_not_found", message, param="model")


def not_found(what: str) -> APIError:
    """Return the error for a missing object; `what` names it, such as "The key 'k1'"."""
    return APIError(404, "not_found", f"{what} does not exist.")


def require_part(part: _Part | None, message: str) -> _Part:
    """Return an optional part of the server.

    Raises:
        APIError: the part is None: the server does not have it (404 with this message).
    """
    if part is None:
        raise APIError(404, "not_found", message)
    return part


def server_closing() -> APIError:
    """Return the error for requests to a server that is shutting down."""
    message = "The server is shutting down; try again."
    return APIError(503, "overloaded", message, headers={"retry-after": "1"})


def request_stopped() -> APIError:
    """Return the error for a request that was stopped on the server's page."""
    message = "This request was stopped on the server's page."
    return APIError(409, "request_stopped", message, headers={"x-should-retry": "false"})


def internal_error() -> APIError:
    """Return the error for an internal failure, without its details."""
    return APIError(500, "server_error", "The server failed to handle the request.")


def _json_type(value: object) -> str:
    names: dict[type, str] = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
        type(None): "null",
    }
    return names.get(type(value), "something else")


def messages_error_body(api_error: APIError, request_id: str | None) -> dict[str, Any]:
    """Return the error as Anthropic's API sends it, with our `code` and `param` added."""
    family = "api_error" if api_error.status >= _SERVER_ERROR else "invalid_request_error"
    error: dict[str, Any] = {
        "type": _MESSAGES_TYPES.get(api_error.status, family),
        "message": api_error.message,
        "code": api_error.code,
        "param": api_error.param,
    }
    if details := _MESSAGES_DETAILS.get(api_error.param or ""):
        error["details"] = details
    return {"type": "error", "error": error, "request_id": request_id}


def log_exception(error: Exception) -> None:
    """Log the type and stack of the exception, or of each one in a group.

    Messages are not logged, since they may contain content.
    """
    stacks: list[str] = []
    for inner in leaf_exceptions(error):
        frames = traceback.extract_tb(inner.__traceback__)
        where = " > ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames)
        stacks.append(f"{type(inner).__name__} in {where}")
    logger.error("internal failure: %s", "; ".join(stacks))


def leaf_exceptions(error: BaseException) -> list[BaseException]:
    """Return the errors in an exception group, at any depth; any other error as the only one."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [leaf for inner in group.exceptions for leaf in leaf_exceptions(inner)]
    return [error]
