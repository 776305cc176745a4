"""Why a run has no answer, over HTTP. Pure but for one look-up of how to hide keys."""

from __future__ import annotations

import re

from batuta.core import Failure, Outcome, Run
from batuta.core.redaction import clean_message
from batuta.gateway.errors import APIError, server_closing

_MAX_MESSAGE = 500
_FIELD_PATTERN = re.compile(r" takes no (\w+)")
_MAX_READ = 4 * _MAX_MESSAGE
"""Characters of an error that are looked at; what is cut off is not reported."""

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
    "unsupported_field": "no worker here can honour a field of the request",
    "malformed_plan": "no workflow could be had",
    "circuit_open": "the worker failed too often and is skipped for a while",
    "unknown_tool": "the worker called a tool that was not offered",
    "wrong_form": "no worker answered in the form that was asked for",
    "no_tool_call": "no worker called the tool that it had to call",
    "schema_too_slow": "the schema of the answer takes too long to check",
    "policy_blocked": "a policy of this server forbids the answer",
}


def error_of_run(run: Run, *, direct: bool = False) -> APIError:
    """The error that the caller of a run without an answer gets.

    Args:
        run: as it ended.
        direct: one worker was passed through, so its refusals are the request's.
    """
    if run.outcome is Outcome.CANCELLED:
        return server_closing()
    if run.outcome is Outcome.LIMITED:
        return _limit_error(run)
    own = _request_error(run) if direct else None
    return own or _known_error(run) or _upstream_error(run)


def _limit_error(run: Run) -> APIError:
    if run.limit == "seconds":
        message = f"No answer within the {run.header.limits.seconds:g} seconds of this run."
        return APIError(504, "deadline_exceeded", message)
    message = f"The run's limit on {run.limit or 'spending'} was reached before it had an answer."
    return APIError(429, "budget_exceeded", message, headers={"x-should-retry": "false"})


def _provider_wait(run: Run) -> float | None:
    """Seconds that the provider asked to wait whose refusal ended the run, if it did."""
    waits = [
        step.result.retry_after
        for step in run.steps
        if isinstance(step.result, Failure) and step.result.code == run.error_code
    ]
    return waits[-1] if waits else None


def _request_error(run: Run) -> APIError | None:
    """Where the worker's refusal is about this request, say so as the worker did."""
    if run.error_code == "bad_request":
        return APIError(400, "bad_request", f"{_error_sentence(run)}: {_provider_message(run)}")
    return None


def _known_error(run: Run) -> APIError | None:
    """Where it is not a worker that failed, or not this call of it."""
    match run.error_code:
        case "context_too_long":
            message = f"{_error_sentence(run)}: {_provider_message(run)}"
            return APIError(400, "context_length_exceeded", message, param="messages")
        case "unsupported_field":
            named = _FIELD_PATTERN.search(run.error or "")
            message = f"{_error_sentence(run)}: {_provider_message(run)}"
            param = named[1] if named else None
            return APIError(400, "unsupported_parameter", message, param=param)
        case "policy_blocked" if run.outcome is Outcome.REFUSED:
            message = f"{_provider_message(run).capitalize()}."
            return APIError(400, "policy_blocked", message, param="messages")
        case "policy_blocked":
            return APIError(403, "policy_blocked", f"{_error_sentence(run)}.")
        case "no_tool_call" | "wrong_form":
            return _wrong_reply_error(run)
        case "rate_limited":
            wait = _provider_wait(run)
            headers = {} if wait is None else _retry_headers(wait)
            return APIError(429, "rate_limit_exceeded", f"{_error_sentence(run)}.", headers=headers)
        case "circuit_open":
            return APIError(
                503, "overloaded", f"{_error_sentence(run)}.", headers={"retry-after": "15"}
            )
        case _:
            return _schema_error(run)


def _wrong_reply_error(run: Run) -> APIError:
    """The reply was not what the request asked for; of a form it is said what was wrong."""
    if run.error_code == "no_tool_call":
        return APIError(502, "no_tool_call", f"{_error_sentence(run)}.")
    return APIError(502, "wrong_form", f"{_error_sentence(run)}: {_provider_message(run)}")


def _schema_error(run: Run) -> APIError | None:
    if run.error_code != "schema_too_slow":
        return None
    param, headers = "response_format", {"x-should-retry": "false"}
    message = f"{_error_sentence(run)}: make it simpler."
    return APIError(400, "schema_too_slow", message, param=param, headers=headers)


def _upstream_error(run: Run) -> APIError:
    return APIError(502, "upstream_error", f"The run failed: {_error_sentence(run).lower()}.")


def _error_sentence(run: Run) -> str:
    sentence = _SENTENCES.get(run.error_code or "", "no worker gave an answer")
    return sentence[0].upper() + sentence[1:]


def _provider_message(run: Run) -> str:
    """The provider's own words, without keys and addresses."""
    error = run.error or ""
    if len(error) > _MAX_READ:  # to the end of a word: half a key is not known for one
        error = "".join(error[:_MAX_READ].rpartition(" ")[:2])
    return clean_message(error)[:_MAX_MESSAGE]


def _retry_headers(seconds: float) -> dict[str, str]:
    whole = max(1, -int(-seconds // 1))
    return {"retry-after": str(whole), "retry-after-ms": str(int(seconds * 1000))}
