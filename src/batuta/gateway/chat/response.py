"""A run as a `chat.completion` object, and its usage."""

from __future__ import annotations

from typing import Any

from batuta.core import Finish, Reply, Run, ToolCall
from batuta.gateway.serving.trace import orchestration_of, usage_of


def chat_completion(run: Run, reply: Reply, model: str, *, trace: bool = False) -> dict[str, Any]:
    """The reply of a run that has an answer.

    Args:
        run: how the answer came about.
        reply: the worker's reply that is the answer.
        model: the name that the caller asked for.
        trace: whether the whole run goes with it.
    """
    choice = {
        "index": 0,
        "message": _message_object(reply),
        "logprobs": None,
        "finish_reason": finish_reason(reply),
    }
    body: dict[str, Any] = {
        "id": completion_id(run.id),
        "object": "chat.completion",
        "created": int(run.header.started),
        "model": model,
        "choices": [choice],
        "usage": usage_of(run),
    }
    told = orchestration_of(run, trace=trace)
    if told is not None:
        body["orchestration"] = told
    return body


def completion_id(run_id: str) -> str:
    """The completion's id, from which the run's can be told."""
    return f"chatcmpl-{run_id}"


def finish_reason(reply: Reply) -> str:
    """Why the answer's text ends where it does."""
    if reply.tool_calls:
        return "tool_calls"
    ended = reply.finish is Finish.DECLINED or reply.is_refusal
    return "stop" if ended else reply.finish.value


def tool_call_object(call: ToolCall) -> dict[str, Any]:
    """A tool call as the API writes it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _message_object(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text or (None if reply.tool_calls else ""),
        "refusal": None,
    }
    if reply.is_refusal:
        message |= {"content": None, "refusal": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [tool_call_object(call) for call in reply.tool_calls]
    return message
