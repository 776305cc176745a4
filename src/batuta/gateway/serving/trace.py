"""How an answer came about, as every dialect tells it: headers, usage, plan, the whole run."""

from __future__ import annotations

from typing import Any

import orjson

from batuta.core import Cropping, MalformedPlan, Outcome, Run
from batuta.store import encode_run

_UNPLANNED_OUTCOMES = {Outcome.DEGRADED, Outcome.FALLBACK, Outcome.LIMITED, Outcome.UNSURE}
"""Outcomes of answers that are told without being asked for."""


def response_headers(run: Run) -> dict[str, str]:
    """Return the headers about a run; an unknown cost is left out, not shown as zero."""
    headers = {"x-batuta-run-id": str(run.id), "x-batuta-outcome": run.outcome.value}
    cost = run.cost
    if cost.unpriced_calls:
        headers["x-batuta-unpriced-calls"] = str(cost.unpriced_calls)
    if cost.usd or not cost.unpriced_calls:
        headers["x-batuta-cost-usd"] = f"{cost.usd:f}"
    if run.confidence is not None:
        headers["x-batuta-confidence"] = f"{run.confidence:g}"
    if (fault := _conductor_fault(run)) is not None:
        headers["x-batuta-conductor"] = fault
    return headers


def _conductor_fault(run: Run) -> str | None:
    """Return why the last round has no workflow of the conductor; None if it has, or needs none."""
    decision = run.rounds[-1].decision if run.rounds else None
    if not isinstance(decision, MalformedPlan):
        return None
    if decision.outage and not decision.again:
        return "left-alone"
    return "unreachable" if decision.outage else "no-workflow"


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
    """Return how an answer came about; None if there is nothing to say.

    Of a dry run it is the plan and what it is expected to take, whether or not a trace was
    asked for; with a trace the whole run, as it is stored; and without one the outcome, where
    the answer is not the one that was planned, how sure it is, where that is known, and how much of
    a long conversation the conductor was shown, where that was not the whole.
    """
    if run.outcome is Outcome.PLANNED:
        return plan_of(run)
    if trace:
        return trace_of(run)
    cropping = next((c for round_ in run.rounds if (c := round_.decision.draft.cropping)), None)
    repeated = {} if run.rounds or run.header.parent is None else {"answer_of": run.header.parent}
    sure = {} if run.confidence is None else {"confidence": run.confidence}
    if run.outcome not in _UNPLANNED_OUTCOMES and cropping is None and not repeated and not sure:
        return None
    told = {"run_id": run.id, "outcome": run.outcome.value, "limit": run.limit, **repeated, **sure}
    return told if cropping is None else {**told, "cropped": cropping_json(cropping)}


def cropping_json(cropping: Cropping) -> dict[str, int]:
    """Return how much of a conversation was shown."""
    return {
        "shown_characters": cropping.shown,
        "characters": cropping.whole,
        "turns_left_out": cropping.turns,
    }


def trace_of(run: Run) -> orjson.Fragment:
    """The whole run, as it is stored."""
    return orjson.Fragment(encode_run(run))


def plan_of(run: Run) -> dict[str, Any]:
    """The workflow of a dry run, and what executing it is expected to take; unknown is null."""
    round_, expected = run.rounds[-1], run.expected
    steps = round_.workflow.steps if round_.workflow else ()
    plan: dict[str, Any] = {
        "dry_run": True,
        "run_id": run.id,
        "conductor": run.header.conductor,
        "plan": [
            {"worker": step.worker, "subtask": step.subtask, "access": step.access}
            for step in steps
        ],
        "fallback": round_.decision.kind == "malformed",
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
