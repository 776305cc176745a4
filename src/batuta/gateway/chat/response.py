"""A run as a `chat.completion` object, and its usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from batuta.core import Finish, Outcome, Reply, Run, TokenLogprob, ToolCall
from batuta.store import encode_run

_UNPLANNED_OUTCOMES = {Outcome.DEGRADED, Outcome.FALLBACK, Outcome.LIMITED}
"""Outcomes of answers that are told without being asked for."""


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


def usage_of(run: Run) -> dict[str, Any]:
    """Tokens as the API counts them.

    `prompt_tokens` and `completion_tokens` are those of the call that gave the answer; all other
    calls (the conductor's, the other steps', failed attempts') are `orchestration_…`; and
    `total_tokens` is everything.
    """
    every = run.usage
    visible = run.reply.usage if run.reply else None
    prompt, cached = (visible.input, visible.cached) if visible else (0, 0)
    completion = visible.output if visible else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": every.total,
        "prompt_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": visible.cache_write if visible else 0,
            "orchestration_input_tokens": every.input - prompt,
            "orchestration_input_cached_tokens": every.cached - cached,
        },
        "completion_tokens_details": {
            "reasoning_tokens": visible.reasoning if visible else 0,
            "orchestration_output_tokens": every.output - completion,
        },
    }


def orchestration_of(run: Run, *, trace: bool) -> Any:
    """What an answer says of how it came about; None if there is nothing to say.

    Of a dry run it is the plan and what it is expected to take, whether or not a trace was
    asked for; with a trace the whole run, as it is stored; and without one the outcome, where
    the answer is not the one that was planned.
    """
    if run.outcome is Outcome.PLANNED:
        return plan_of(run)
    if trace:
        return trace_of(run)
    if run.outcome not in _UNPLANNED_OUTCOMES:
        return None
    return {"run_id": run.id, "outcome": run.outcome.value, "limit": run.limit}


def trace_of(run: Run) -> orjson.Fragment:
    """The whole run, as it is stored."""
    return orjson.Fragment(encode_run(run))


def plan_of(run: Run) -> dict[str, Any]:
    """The workflow of a dry run, and what playing it is expected to take; unknown is null."""
    played, expected = run.rounds[-1], run.expected
    steps = played.workflow.steps if played.workflow else ()
    plan: dict[str, Any] = {
        "dry_run": True,
        "run_id": run.id,
        "conductor": run.header.conductor,
        "plan": [
            {"worker": step.worker, "subtask": step.subtask, "access": step.access}
            for step in steps
        ],
        "fallback": played.decision.kind == "malformed",
        "planning_seconds": run.seconds,
    }
    if expected is not None:
        cost = expected.cost
        plan["estimate"] = {
            "calls": expected.usage.calls,
            "input_tokens": expected.usage.input,
            "output_tokens": expected.usage.output,
            "cost_usd": str(cost.usd) if cost.usd or not cost.unpriced_calls else None,
            "unpriced_calls": cost.unpriced_calls,
            "seconds": expected.seconds,
        }
    return plan


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
