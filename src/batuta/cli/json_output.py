"""The JSON that commands print for runs, plans and pools."""

from __future__ import annotations

from typing import Any

import orjson

from batuta.core import Cost, Failure, Pool, Price, Run, StepRun, Usage, Workflow
from batuta.rendering.terminal import write_json


def print_json(data: Any) -> None:
    """Print one JSON document on stdout."""
    text = orjson.dumps(data, option=orjson.OPT_INDENT_2, default=str)
    write_json(text.decode())


def run_json(run: Run) -> dict[str, Any]:
    """Return a run without its question and prompts, which `batuta runs show --json` prints."""
    return {
        "id": run.id,
        "outcome": run.outcome.value,
        "answer": run.answer,
        "error": run.error,
        "limit": run.limit,
        "confidence": run.confidence,
        "conductor": run.header.conductor,
        "rounds": [
            {
                "decision": round_.decision.kind,
                "reason": getattr(round_.decision, "reason", None),
                "workflow": workflow_json(round_.workflow) if round_.workflow else None,
                "steps": [step_json(step) for step in round_.steps],
            }
            for round_ in run.rounds
        ],
        "usage": usage_json(run.usage),
        "conductor_usage": usage_json(run.conductor_usage),
        "cost": cost_json(run.cost),
        "seconds": round(run.seconds, 4),
    }


def plan_json(run: Run) -> dict[str, Any]:
    """Return a dry run's workflow and its estimated tokens and cost."""
    planned, expected = run.rounds[-1], run.expected
    assert planned.workflow is not None  # noqa: S101 - a dry run has it
    assert expected is not None  # noqa: S101 - same
    return {
        "workflow": workflow_json(planned.workflow),
        "fallback": planned.decision.kind == "malformed",
        "estimate": {
            "tokens": expected.usage.total,
            "calls": expected.usage.calls,
            "cost": cost_json(expected.cost),
            "steps": [usage_json(usage) for usage in expected.steps],
        },
        "conductor_usage": usage_json(run.conductor_usage),
    }


def workflow_json(workflow: Workflow) -> list[dict[str, Any]]:
    """Return the steps of a workflow as planned."""
    return [
        {
            "worker": step.worker,
            "subtask": step.subtask,
            "access": list(step.access),
            "previous": step.previous,
        }
        for step in workflow.steps
    ]


def step_json(step: StepRun) -> dict[str, Any]:
    """Return an executed step, without its prompt."""
    return {
        "index": step.index,
        "worker": step.worker,
        "planned": step.planned,
        "text": None if isinstance(step.result, Failure) else step.result.text,
        "error": step.result.message if isinstance(step.result, Failure) else None,
        "ok": not isinstance(step.result, Failure),
        "attempts": [
            {"worker": a.worker, "code": a.failure.code, "message": a.failure.message}
            for a in step.attempts
        ],
        "start": round(step.span.start, 4),
        "end": round(step.span.end, 4),
        "usage": usage_json(step.usage),
        "cost": cost_json(step.cost),
    }


def usage_json(usage: Usage) -> dict[str, int]:
    """Return the numbers of calls and tokens; tokens written to a cache are not listed."""
    return {
        "calls": usage.calls,
        "input": usage.input,
        "cached": usage.cached,
        "output": usage.output,
        "reasoning": usage.reasoning,
        "total": usage.total,
        "estimated_calls": usage.estimated,
    }


def cost_json(cost: Cost) -> dict[str, Any]:
    """Return the cost; `usd` is None if calls are unpriced and no dollars are known."""
    usd = None if cost.is_unknown else float(cost.usd)
    return {"usd": usd, "unpriced_calls": cost.unpriced_calls}


def _price_json(price: Price) -> dict[str, float]:
    """Return dollars per million tokens, and dollars per call where calls have a price."""
    values = {"input": float(price.input), "output": float(price.output)}
    return values | {"call": float(price.call)} if price.call else values


def pool_json(pool: Pool) -> list[dict[str, Any]]:
    """Return the pool's workers."""
    return [
        {
            "number": number,
            "id": worker.id,
            "model": worker.model,
            "description": worker.description,
            "tags": list(worker.tags),
            "context_window": worker.context_window,
            "strength": worker.strength,
            "price": None if worker.price is None else _price_json(worker.price),
        }
        for number, worker in enumerate(pool)
    ]
