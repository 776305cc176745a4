"""A refusal: what the caller is told when it gets no answer, in the API's error form."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, final

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_SERVER_SIDE = 500
_NONE: Mapping[str, str] = MappingProxyType({})


@final
class Refusal(Exception):
    """A status and the error body that goes with it; raised anywhere while a request is read."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] = _NONE,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        """The field that is at fault, written as a path: `messages[0].content`."""
        self.headers = headers

    def adding(self, headers: Mapping[str, str]) -> Refusal:
        """The same with more headers."""
        more = {**self.headers, **headers}
        return Refusal(self.status, self.code, self.message, param=self.param, headers=more)

    @property
    def type(self) -> str:
        """The family of the error, as clients of the API know it."""
        default = "server_error" if self.status >= _SERVER_SIDE else "invalid_request_error"
        return _TYPES.get(self.status, default)

    @property
    def body(self) -> dict[str, Any]:
        """The error form; all four keys always."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


def missing(param: str) -> Refusal:
    """A field that must be there is not."""
    message = f"Missing required parameter: '{param}'."
    return Refusal(400, "missing_required_parameter", message, param=param)


def wrong_type(param: str, wanted: str, value: object) -> Refusal:
    """A field has another JSON type than it must have."""
    message = f"Invalid type for '{param}': expected {wanted}, but got {_json_type(value)}."
    return Refusal(400, "invalid_type", message, param=param)


def wrong_value(param: str, reason: str) -> Refusal:
    """A field's value cannot be used; `reason` is a sentence."""
    return Refusal(400, "invalid_value", f"Invalid value for '{param}': {reason}", param=param)


def unsupported(param: str, reason: str = "it cannot be honoured here.") -> Refusal:
    """A field that is understood and cannot be honoured."""
    message = f"Unsupported parameter: '{param}': {reason}"
    return Refusal(400, "unsupported_parameter", message, param=param)


def no_model(name: str, why: str | None = None) -> Refusal:
    """No model is served under that name; `why` says what to do if there could be one."""
    message = f"The model '{name}' does not exist; GET /v1/models lists those that do."
    if why:
        message = f"The model '{name}' is not served: {why}."
    return Refusal(404, "model_not_found", message, param="model")


def not_found(what: str) -> Refusal:
    """Nothing is there; `what` is the beginning of a sentence."""
    return Refusal(404, "not_found", f"{what} does not exist.")


def closing() -> Refusal:
    """The server is about to stop."""
    message = "The server is shutting down; try again."
    return Refusal(503, "overloaded", message, headers={"retry-after": "1"})


def server_fault() -> Refusal:
    """Our own fault; the reader is told nothing of it."""
    return Refusal(500, "server_error", "The server failed to handle the request.")


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
