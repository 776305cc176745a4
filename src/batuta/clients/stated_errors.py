"""Errors that providers state in answers of status 200, in forms of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batuta.clients.decoding import as_array, as_object, as_string

_WORDS = ("message", "msg", "error_msg", "errorMessage", "detail", "status_msg", "error_message")
_CODES = ("code", "error_code", "errorCode", "status_code", "type", "status")
_ANSWERS = ("choices", "candidates", "output", "content", "promptFeedback", "data")
"""Every answer that is not an error has one of these fields."""


def find_stated_error(payload: Any) -> dict[str, Any] | None:
    """Find the error that an answer states, in OpenAI's form; return None if it states none."""
    top = as_object(as_array(payload)[0] if as_array(payload) else payload)
    if top.get("error"):
        return {"error": top["error"]}
    status = as_object(top.get("base_resp"))  # MiniMax
    if status.get("status_code"):
        return _error_of_fields(status)
    if any(top.get(name) for name in _ANSWERS):
        return None
    for further in as_array(top.get("errors")):
        if found := _error_of_fields(as_object(further)):
            return found
    return _error_of_fields(top)


def _error_of_fields(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    words = next((as_string(fields[name]) for name in _WORDS if fields.get(name)), "")
    if not words:
        return None
    code = next((fields[name] for name in _CODES if fields.get(name)), None)
    return {"error": {"message": words, "code": code}}
