"""Response objects of the Responses API: their ids, usage and final states."""

from __future__ import annotations

from time import time
from typing import Any

from batuta.core import Finish, Reply, Run
from batuta.gateway.errors import APIError
from batuta.gateway.serving.deliver import orchestration_field, usage_of
from batuta.store.responses import RESPONSE_PREFIX

Json = dict[str, Any]
_REFUSED_CODE = "invalid_prompt"
"""The API's code for a refusal by a provider; Codex does not retry after it."""


def item_id(kind: str, response: str, index: int, side: str = "") -> str:
    """Return an item's id, which contains the id of its response.

    Args:
        kind: the prefix of the ids of items of this type.
        response: the id of the response.
        index: the position of the item in the response's input or output.
        side: `in` for an input item, empty for an output item.
    """
    return f"{kind}_{response.removeprefix(RESPONSE_PREFIX)}_{side}{index}"


def response_id_of_item(item: str) -> str | None:
    """Return the id of the response that an item belongs to; None for an id of another form."""
    parts = item.split("_")
    return RESPONSE_PREFIX + parts[1] if len(parts) > 2 else None  # noqa: PLR2004 - kind, owner, index


def new_response(echo: Json, response: str, created: int, status: str = "in_progress") -> Json:
    """Return a response without an answer; `echo` has the fields of the request that it repeats."""
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
    """Return the response object of a run that has an answer."""
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
    """Return the response object of a run that failed."""
    code = _REFUSED_CODE if api_error.code == "bad_request" else api_error.code
    error = {"code": code, "message": api_error.message}
    return {**base, "status": "failed", "error": error, "output": output}


def response_usage(run: Run) -> Json:
    """Return `usage_of(run)` with this API's field names."""
    usage = usage_of(run)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }


def _incomplete_reason(reply: Reply) -> str | None:
    """Return the reason why the answer is incomplete; None if it is complete, as a refusal is."""
    if reply.finish is Finish.LENGTH:
        return "max_output_tokens"
    filtered = reply.finish is Finish.CONTENT_FILTER and not reply.is_refusal
    return "content_filter" if filtered else None
