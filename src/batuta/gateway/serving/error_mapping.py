"""Maps a run without an answer to an API error; its message contains no keys and no addresses."""

from __future__ import annotations

import re

from batuta.core import Failure, Outcome, Request, Run
from batuta.core.redaction import clean_message, first_words
from batuta.core.token_estimate import estimate_request_tokens
from batuta.gateway.access.rate_limit import retry_headers
from batuta.gateway.errors import APIError, server_closing

_MAX_MESSAGE = 500
_MAX_RETRY_SECONDS = 60.0
_FIELD_PATTERN = re.compile(r" does not (?:accept|support) (\w+)")
_MAX_READ = 4 * _MAX_MESSAGE
"""Maximum number of characters of an error that are read, before `_MAX_MESSAGE` cuts the rest."""

_SENTENCES = {
    "unreachable": "no connection to the worker could be made",
    "timed_out": "the worker did not answer in time",
    "rate_limited": "the worker's provider limits its rate",
    "overloaded": "the worker's provider is overloaded",
    "interrupted": "the worker's answer broke off",
    "bad_reply": "the worker's provider sent an invalid response",
    "empty_reply": "the worker's answer was empty",
    "unauthorised": "the worker's provider refused the key it was given",
    "model_missing": "the worker's provider does not have its model",
    "context_too_long": "the conversation does not fit in the worker's context window",
    "out_of_credit": "the account at the worker's provider is empty",
    "bad_request": "the worker's provider refused the request",
    "unsupported_field": "no worker supports a field of the request",
    "malformed_plan": "no valid workflow was planned",
    "circuit_open": "the worker failed too often and is skipped for a while",
    "unknown_tool": "the worker called a tool that was not offered",
    "wrong_form": "no worker answered in the requested format",
    "no_tool_call": "no worker called the required tool",
    "schema_too_slow": "the schema of the answer takes too long to check",
    "policy_blocked": "a policy of this server forbids the answer",
}


def error_of_run(run: Run, *, direct: bool = False) -> APIError:
    """Return the error for the caller of a run without an answer.

    Args:
        run: the finished run.
        direct: whether one worker was passed through; then its provider's refusal is the fault of
            the request.
    """
    if run.outcome is Outcome.CANCELLED:
        return server_closing()
    if run.outcome is Outcome.LIMITED:
        return _limit_error(run)
    own = _request_error(run) if direct else None
    return own or _known_error(run) or _upstream_error(run)


def unsure_error(confidence: float | None, required: float) -> APIError:
    """Return the error for an unsure answer, if unsure answers are refused.

    Args:
        confidence: the probability that the answer is correct; None: unknown.
        required: the required confidence.
    """
    found = "it is unknown" if confidence is None else f"it is {confidence:g}"
    message = f"The answer's confidence had to be at least {required:g}, but {found}."
    return APIError(422, "unsure", message, headers={"x-should-retry": "false"})


def _limit_error(run: Run) -> APIError:
    if run.limit == "seconds":
        message = f"No answer within this run's limit of {run.header.limits.seconds:g} seconds."
        return APIError(504, "deadline_exceeded", message)
    message = f"The run reached its limit on {run.limit or 'spending'} before it had an answer"
    needed = (run.error or "").partition(": ")[2]
    message += f": {needed}." if needed else "."
    return APIError(429, "budget_exceeded", message, headers={"x-should-retry": "false"})


def _provider_wait(run: Run) -> float | None:
    """Return the `retry-after` seconds of the last failure with the run's error code, if any."""
    waits = [
        step.result.retry_after
        for step in run.steps
        if isinstance(step.result, Failure) and step.result.code == run.error_code
    ]
    return waits[-1] if waits else None


def _request_error(run: Run) -> APIError | None:
    """Return the provider's refusal of this request with its message; None if there is none."""
    if run.error_code == "bad_request":
        return APIError(400, "bad_request", f"{_error_sentence(run)}: {_provider_message(run)}")
    return None


def _known_error(run: Run) -> APIError | None:
    """Return the error if the run's error code has its own status; else None."""
    match run.error_code:
        case "context_too_long":
            reported = _provider_message(run)
            message = f"{overflow_words(run, reported)}. {_error_sentence(run)}: {reported}"
            return APIError(400, "context_length_exceeded", message, param="messages")
        case "unsupported_field":
            named = _FIELD_PATTERN.search(run.error or "")
            message = f"{_error_sentence(run)}: {_provider_message(run)}"
            param = named[1] if named else None
            return APIError(400, "unsupported_parameter", message, param=param)
        case code if code is not None and run.outcome is Outcome.REFUSED:
            return _refusal_error(run)
        case "policy_blocked":
            return APIError(403, "policy_blocked", f"{_error_sentence(run)}.")
        case "no_tool_call" | "wrong_form":
            return _wrong_reply_error(run)
        case "rate_limited":
            wait = _provider_wait(run)
            headers = {} if wait is None else retry_headers(min(wait, _MAX_RETRY_SECONDS))
            return APIError(429, "rate_limit_exceeded", f"{_error_sentence(run)}.", headers=headers)
        case "circuit_open":
            return APIError(
                503, "overloaded", f"{_error_sentence(run)}.", headers={"retry-after": "15"}
            )
        case _:
            return _schema_error(run) or _approval_unavailable_error(run)


def _refusal_error(run: Run) -> APIError:
    """Return the error for a run refused by a policy, a rule or a person."""
    message = _provider_message(run)
    if run.error_code in {"plan_rule", "not_grounded"}:
        return APIError(422, run.error_code, _start_capital(message))
    if run.error_code in {"approval_refused", "approval_expired"}:
        return APIError(403, run.error_code, f"{_start_capital(message).rstrip('.')}.")
    return APIError(400, "policy_blocked", f"{_start_capital(message)}.", param="messages")


def _wrong_reply_error(run: Run) -> APIError:
    if run.error_code == "no_tool_call":
        return APIError(502, "no_tool_call", f"{_error_sentence(run)}.")
    return APIError(502, "wrong_form", f"{_error_sentence(run)}: {_provider_message(run)}")


def _schema_error(run: Run) -> APIError | None:
    if run.error_code != "schema_too_slow":
        return None
    param, headers = "response_format", {"x-should-retry": "false"}
    message = f"{_error_sentence(run)}: make it simpler."
    return APIError(400, "schema_too_slow", message, param=param, headers=headers)


def _approval_unavailable_error(run: Run) -> APIError | None:
    """Return the error for a plan whose approval could not be requested; else None.

    Clients do not retry by themselves, since each try pays for another draft.
    """
    if run.error_code != "approval_unavailable":
        return None
    headers = {"retry-after": "30", "x-should-retry": "false"}
    message = f"{_start_capital(_provider_message(run))}."
    return APIError(503, "approval_unavailable", message, headers=headers)


def _upstream_error(run: Run) -> APIError:
    return APIError(502, "upstream_error", f"The run failed: {_error_sentence(run).lower()}.")


def _error_sentence(run: Run) -> str:
    return _start_capital(_SENTENCES.get(run.error_code or "", "no worker gave an answer"))


def _start_capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _provider_message(run: Run) -> str:
    """Return the run's error, often a provider's, cropped and without keys and addresses."""
    return clean_message(first_words(run.error or "", _MAX_READ))[:_MAX_MESSAGE]


_MIN_TOKENS = 16
"""Smaller numbers are not taken for a limit in tokens, but for codes or other counts."""
_COMPARED = re.compile(r"(\d{1,12})(?: \+ (\d{1,12}))? > (\d{1,12})")
_LIMIT = re.compile(
    r"(?:max\b|maximum|limit|at most|up to|available context|context (?:length|window|size)"
    r"|longer than|greater than|more than|less than|cannot exceed|fit in the|<=|\[\d,)"
    r"[^\d]{0,50}(\d{2,12})"
    r"|(\d{2,12}) (?:tokens? )?(?:max\b|maximum|limit)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{2,12}")
_SEPARATED = re.compile(r"(?<=\d)[,_](?=\d{3}(?!\d))")


def overflow_words(run: Run, message: str) -> str:
    """Return the message for a prompt that is too long, with its tokens and the limit if known."""
    tokens, most = stated_sizes(message)
    most = most or _smallest_window(run)
    if most is None:
        return "prompt is too long"
    if tokens is None or tokens <= most:
        # the provider refused the prompt, so it exceeds the limit
        tokens = max(_estimated_tokens(run), most + 1)
    return f"prompt is too long: {tokens} tokens > {most} maximum"


def stated_sizes(message: str) -> tuple[int | None, int | None]:
    """Return the prompt's tokens and the limit in a provider's message; None if not stated."""
    flat = _SEPARATED.sub("", message)
    compared = _COMPARED.search(flat)
    if compared:
        return int(compared[1]) + int(compared[2] or 0), int(compared[3])
    stated = _LIMIT.search(flat)
    if stated is None:
        return None, None
    most = int(stated[1] or stated[2])
    if most < _MIN_TOKENS:
        return None, None
    others = [int(found) for found in _NUMBER.findall(flat)]
    return max((n for n in others if n > most), default=None), most


def _smallest_window(run: Run) -> int | None:
    windows = [worker.context_window for worker in run.header.pool if worker.context_window]
    return min(windows, default=None)


def _estimated_tokens(run: Run) -> int:
    question = run.header.question
    return estimate_request_tokens(Request(messages=question.messages, tools=question.tools))
