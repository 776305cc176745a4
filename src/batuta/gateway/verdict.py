"""What a run's end means over HTTP. Pure but for one look-up of how to hide keys."""

from __future__ import annotations

from batuta.core import Failure, Outcome, Run
from batuta.gateway.refusal import Refusal, closing

_LONGEST = 500
_READ = 4 * _LONGEST
"""Characters of an error that are looked at; what is cut off is not told."""
_UNANSWERED = {Outcome.FAILED, Outcome.CANCELLED, Outcome.REFUSED}

_SENTENCES = {
    "unreachable": "no connection to the worker could be made",
    "timed_out": "the worker did not answer in time",
    "rate_limited": "the worker's provider limits its rate",
    "overloaded": "the worker's provider is overloaded",
    "interrupted": "the worker's answer broke off",
    "bad_reply": "the worker's provider sent something that is no answer",
    "empty_reply": "the worker's answer was empty",
    "unauthorised": "the worker's provider refused the key it was given",
    "model_missing": "the worker's provider does not have its model",
    "context_too_long": "the conversation does not fit in the worker's context window",
    "out_of_credit": "the account at the worker's provider is empty",
    "bad_request": "the worker's provider refused the request",
    "malformed_plan": "no workflow could be had",
    "circuit_open": "the worker failed too often and is left alone for a while",
    "unknown_tool": "the worker called a tool that was not offered",
    "wrong_form": "no worker answered in the form that was asked for",
    "no_tool_call": "no worker called the tool that it had to call",
    "schema_too_slow": "the schema of the answer takes too long to check",
    "policy_blocked": "a policy of this server forbids the answer",
}


def refusal_of(run: Run, *, direct: bool = False) -> Refusal | None:
    """The error that the caller gets; None if the run has an answer to show.

    Args:
        run: as it ended.
        direct: one worker was passed through, so its refusals are the request's.
    """
    if run.outcome is Outcome.CANCELLED:
        return closing()
    if run.reply is not None and run.outcome not in _UNANSWERED:
        return None
    if run.outcome is Outcome.LIMITED:
        return _limited(run)
    own = _own_fault(run) if direct else None
    return own or _anyones_fault(run) or _failed(run)


def response_headers(run: Run) -> dict[str, str]:
    """What our headers say of a run; an unknown cost is left out, not shown as zero."""
    headers = {"x-batuta-run-id": str(run.id), "x-batuta-outcome": run.outcome.value}
    cost = run.cost
    if cost.unpriced_calls:
        headers["x-batuta-unpriced-calls"] = str(cost.unpriced_calls)
    if cost.usd or not cost.unpriced_calls:
        headers["x-batuta-cost-usd"] = f"{cost.usd:f}"
    return headers


def _limited(run: Run) -> Refusal:
    if run.limit == "seconds":
        message = f"No answer within the {run.header.limits.seconds:g} seconds of this run."
        return Refusal(504, "deadline_exceeded", message)
    message = f"The run's limit on {run.limit or 'spending'} was reached before it had an answer."
    return Refusal(429, "budget_exceeded", message, headers={"x-should-retry": "false"})


def _asked_wait(run: Run) -> float | None:
    """Seconds that the provider asked to wait whose refusal ended the run, if it did."""
    waits = [
        step.result.retry_after
        for step in run.steps
        if isinstance(step.result, Failure) and step.result.code == run.error_code
    ]
    return waits[-1] if waits else None


def _own_fault(run: Run) -> Refusal | None:
    """Where the worker's refusal is about this request, say so as the worker did."""
    if run.error_code == "bad_request":
        return Refusal(400, "bad_request", f"{_sentence(run)}: {_said(run)}")
    return None


def _anyones_fault(run: Run) -> Refusal | None:
    """Where it is not a worker that failed, or not this call of it."""
    match run.error_code:
        case "context_too_long":
            message = f"{_sentence(run)}: {_said(run)}"
            return Refusal(400, "context_length_exceeded", message, param="messages")
        case "policy_blocked" if run.outcome is Outcome.REFUSED:
            message = f"{_said(run).capitalize()}."
            return Refusal(400, "policy_blocked", message, param="messages")
        case "policy_blocked":
            return Refusal(403, "policy_blocked", f"{_sentence(run)}.")
        case "no_tool_call" | "wrong_form":
            return _wrong_reply(run)
        case "rate_limited":
            wait = _asked_wait(run)
            headers = {} if wait is None else _patience(wait)
            return Refusal(429, "rate_limit_exceeded", f"{_sentence(run)}.", headers=headers)
        case "circuit_open":
            return Refusal(503, "overloaded", f"{_sentence(run)}.", headers={"retry-after": "15"})
        case _:
            return _schema_fault(run)


def _wrong_reply(run: Run) -> Refusal:
    """The reply was not what the request asked for; of a form it is said what was wrong."""
    if run.error_code == "no_tool_call":
        return Refusal(502, "no_tool_call", f"{_sentence(run)}.")
    return Refusal(502, "wrong_form", f"{_sentence(run)}: {_said(run)}")


def _schema_fault(run: Run) -> Refusal | None:
    if run.error_code != "schema_too_slow":
        return None
    param, headers = "response_format", {"x-should-retry": "false"}
    message = f"{_sentence(run)}: make it simpler."
    return Refusal(400, "schema_too_slow", message, param=param, headers=headers)


def _failed(run: Run) -> Refusal:
    return Refusal(502, "upstream_error", f"The run failed: {_sentence(run).lower()}.")


def _sentence(run: Run) -> str:
    sentence = _SENTENCES.get(run.error_code or "", "no worker gave an answer")
    return sentence[0].upper() + sentence[1:]


def _said(run: Run) -> str:
    """The provider's own words, without keys and addresses."""
    # Only here, and it loads aiohttp.
    from batuta.clients.addresses import hide_addresses  # noqa: PLC0415
    from batuta.clients.secret import redact  # noqa: PLC0415

    error = run.error or ""
    if len(error) > _READ:  # to the end of a word: half a key is not known for one
        error = "".join(error[:_READ].rpartition(" ")[:2])
    return hide_addresses(redact(error))[:_LONGEST]


def _patience(seconds: float) -> dict[str, str]:
    whole = max(1, -int(-seconds // 1))
    return {"retry-after": str(whole), "retry-after-ms": str(int(seconds * 1000))}
