"""A response object of the Responses dialect: its ids, its usage, how it ends. Pure."""

from __future__ import annotations

from time import time
from typing import Any

from batuta.core import Finish, Reply, Run
from batuta.gateway.errors import APIError
from batuta.gateway.serving.deliver import orchestration_field, usage_of
from batuta.store.responses import RESPONSE_PREFIX

Json = dict[str, Any]
_REFUSED_CODE = "invalid_prompt"
"""The API's own code for what a provider refuses: Codex sends any other one five times more."""


def item_id(kind: str, response: str, index: int, side: str = "") -> str:
    """Return an item's id, from which its response can be derived."""
    return f"{kind}_{response.removeprefix(RESPONSE_PREFIX)}_{side}{index}"


def response_id_of_item(item: str) -> str | None:
    """Return the response that an item belongs to, by the item's id; None if it is none of ours."""
    parts = item.split("_")
    return RESPONSE_PREFIX + parts[1] if len(parts) > 2 else None  # noqa: PLR2004 - kind, owner, index


def new_response(echo: Json, response: str, created: int, status: str = "in_progress") -> Json:
    """Return the object before there is an answer."""
    return {
        "id": response,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        **echo,
    }


def finished_response(
    base: Json, output: list[Json], run: Run, reply: Reply, *, trace: bool
) -> Json:
    """Return the object of a run that has an answer."""
    reason = _incomplete_reason(reply)
    return {
        **base,
        "status": "incomplete" if reason else "completed",
        "completed_at": None if reason else int(time()),
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output,
        "usage": response_usage(run),
        **orchestration_field(run, trace=trace),
    }


def failed_response(base: Json, output: list[Json], api_error: APIError) -> Json:
    """Return the object of a run that has none."""
    code = _REFUSED_CODE if api_error.code == "bad_request" else api_error.code
    error = {"code": code, "message": api_error.message}
    return {**base, "status": "failed", "error": error, "output": output}


def response_usage(run: Run) -> Json:
    """Return the tokens as this dialect names them; what they mean is as in `usage_of`."""
    usage = usage_of(run)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }


def _incomplete_reason(reply: Reply) -> str | None:
    """Return why the answer is not whole; None if it is."""
    if reply.finish is Finish.LENGTH:
        return "max_output_tokens"
    return "content_filter" if reply.finish is Finish.CONTENT_FILTER else None
