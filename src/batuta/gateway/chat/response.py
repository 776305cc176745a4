"""A run as a `chat.completion` object, and its usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batuta.core import Finish, Reply, Run, TokenLogprob, ToolCall
from batuta.gateway.serving.trace import orchestration_of, usage_of


def chat_completion(run: Run, reply: Reply, model: str, *, trace: bool = False) -> dict[str, Any]:
    """The reply of a run that has an answer.

    Args:
        run: how the answer came about.
        reply: the worker's reply that is the answer.
        model: the name that the caller asked for.
        trace: whether the whole run goes with it.
    """
    choices = [
        {
            "index": index,
            "message": _message_object(said),
            "logprobs": logprobs_object(said.logprobs),
            "finish_reason": finish_reason(said),
        }
        for index, said in enumerate(reply.choices)
    ]
    body: dict[str, Any] = {
        "id": completion_id(run.id),
        "object": "chat.completion",
        "created": int(run.header.started),
        "model": model,
        "choices": choices,
        "usage": usage_of(run),
    }
    told = orchestration_of(run, trace=trace)
    if told is not None:
        body["orchestration"] = told
    return body


def completion_id(run_id: str) -> str:
    """The completion's id, from which the run's can be told."""
    return f"chatcmpl-{run_id}"


def logprobs_object(tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """The log probabilities of a choice; null if there are none."""
    if not tokens:
        return None
    return {"content": [token_object(token) for token in tokens], "refusal": None}


def token_object(token: TokenLogprob) -> dict[str, Any]:
    """A token with its log probability, and those of the most probable ones in its place."""
    return {**_bare_token(token), "top_logprobs": [_bare_token(other) for other in token.others]}


def _bare_token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": token.utf8}


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
