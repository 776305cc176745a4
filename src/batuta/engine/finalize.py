"""The end of a run: a pure function of its rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batuta.core import (
    AcceptedAnswer,
    Failure,
    Finish,
    MalformedPlan,
    Outcome,
    Reply,
    Round,
    RunFinished,
    StepRun,
    Usage,
)
from batuta.errors import LimitReachedError
from batuta.usage import ZERO_COST


def final_reply(round_: Round) -> Reply | None:
    """Return the reply of the round's last step, which may be empty; None if there is none.

    Only the last step is asked for the complete answer.
    """
    last = last_step(round_)
    return last.result if last and isinstance(last.result, Reply) else None


def last_step(round_: Round) -> StepRun | None:
    """Return the round's last step; None if it was not run."""
    return round_.step(len(round_.workflow) - 1) if round_.workflow else None


def complete_reply(rounds: Sequence[Round]) -> Reply | None:
    """Return the newest complete answer of any round; None if there is none."""
    return next((reply for round_ in reversed(rounds) if (reply := final_reply(round_))), None)


def reply_text(reply: Reply) -> str | None:
    """Return the answer's text; None if the reply only calls tools."""
    return reply.text or (None if reply.tool_calls else "")


def tool_call_reply(steps: Sequence[StepRun], *, parallel: bool) -> Reply | None:
    """Return the tool calls that the client must answer for the waiting steps.

    Return None if no step waits.

    Args:
        steps: the waiting steps.
        parallel: whether to return the calls of all steps; else only the first step's.
    """
    replies = [step.result for step in steps if isinstance(step.result, Reply)]
    if len(replies) < 2 or not parallel:  # noqa: PLR2004 - a single reply is not changed
        return replies[0] if replies else None
    return Reply(
        text="\n\n".join(reply.text for reply in replies if reply.text),
        tool_calls=tuple(call for reply in replies for call in reply.tool_calls),
        usage=sum((reply.usage for reply in replies), Usage()),
        cost=sum((reply.cost for reply in replies), ZERO_COST),
        finish=Finish.TOOL_CALLS,
        model=replies[0].model,
    )


def _is_truncated_by_budget(round_: Round) -> bool:
    """Return True if the round's answer was truncated by an output cap that a dollar limit set."""
    step = last_step(round_)
    if step is None or step.request is None or not isinstance(step.result, Reply):
        return False
    cap, own = step.request.max_output, step.request.sampling.max_tokens
    capped = cap is not None and (own is None or cap < own)
    return capped and step.result.finish is Finish.LENGTH


def finalize_run(
    rounds: Sequence[Round],
    *,
    seconds: float,
    limit: LimitReachedError | None = None,
    rounds_exhausted: bool = False,
    exposed: Failure | None = None,
    fallback: bool = True,
    parallel: bool = True,
) -> RunFinished:
    """Return the end of a run.

    Args:
        rounds: all rounds of the run.
        seconds: how long the run took.
        limit: the limit that forbade or interrupted a call; None if none did.
        rounds_exhausted: whether the last of several allowed rounds was run, so that the conductor
            could not judge its answer.
        exposed: the failure of a last step of which the client has received text; None if there
            was no such failure.
        fallback: whether an earlier round's answer may be returned if the last round has none;
            with `limit` it may be in any case.
        parallel: whether tool calls of several steps may be returned together.
    """
    if len(rounds) > 1:
        rounds = [round_ for round_ in rounds if not round_.is_aside]
    if exposed is not None:
        name = limit.limit if limit else None
        outcome = Outcome.LIMITED if limit else Outcome.FAILED
        return RunFinished(
            outcome=outcome,
            error=exposed.message,
            error_code=exposed.code,
            limit=name,
            seconds=seconds,
        )
    waiting = rounds[-1].waiting_steps if rounds else ()
    if waiting and (calls := tool_call_reply(waiting, parallel=parallel)):
        return RunFinished(
            outcome=Outcome.WAITING, answer=calls.text or None, reply=calls, seconds=seconds
        )
    answered = [round_ for round_ in rounds if round_.workflow is not None]
    reply = final_reply(answered[-1]) if answered else None
    if reply is None and (fallback or limit):
        reply = complete_reply(rounds)
    if reply is None:
        return _failed_end(rounds, limit, seconds)
    outcome = _run_outcome(answered[-1], reply, limit)
    name = limit.limit if limit else "rounds" if rounds_exhausted else None
    if name is None and _is_truncated_by_budget(answered[-1]):
        name = "usd"
    answering = next(each for each in reversed(rounds) if final_reply(each) is reply)
    reply = _with_pictures(reply, answering)
    return RunFinished(
        outcome=outcome, answer=reply_text(reply), reply=reply, limit=name, seconds=seconds
    )


def _with_pictures(reply: Reply, round_: Round) -> Reply:
    """Return the answer with the pictures of the round's steps.

    An answer with own pictures or tool calls is returned unchanged.
    """
    if reply.images or reply.tool_calls:
        return reply
    results = [step.result for step in sorted(round_.steps, key=lambda step: step.index)]
    made = [image for each in results if isinstance(each, Reply) for image in each.images]
    return replace(reply, images=tuple(dict.fromkeys(made))) if made else reply


def _run_outcome(round_: Round, reply: Reply, limit: LimitReachedError | None) -> Outcome:
    if limit:
        return Outcome.LIMITED
    last = last_step(round_)
    if last is None or last.result is not reply:
        return Outcome.DEGRADED
    if reply.finish is Finish.DECLINED:
        return Outcome.DECLINED
    if isinstance(round_.decision, MalformedPlan):
        return Outcome.FALLBACK
    return Outcome.DEGRADED if last.as_fallback or last.is_substituted else Outcome.ANSWERED


def _failed_end(
    rounds: Sequence[Round], limit: LimitReachedError | None, seconds: float
) -> RunFinished:
    if limit:
        message = f"no answer yet when {limit}"
        return RunFinished(
            outcome=Outcome.LIMITED,
            error=message,
            error_code="limit",
            limit=limit.limit,
            seconds=seconds,
        )
    message, code = _failure_cause(rounds)
    return RunFinished(outcome=Outcome.FAILED, error=message, error_code=code, seconds=seconds)


def _failure_cause(rounds: Sequence[Round]) -> tuple[str, str]:
    """Return the message and the code of the failure that left the run without an answer."""
    for round_ in reversed(rounds):
        for step in sorted(round_.steps, key=lambda step: step.index, reverse=True):
            if isinstance(step.result, Failure):
                return f"{step.worker} failed: {step.result.message}", step.result.code
        if isinstance(round_.decision, MalformedPlan):
            return f"no workflow: {round_.decision.reason}", "malformed_plan"
    if rounds and isinstance(rounds[-1].decision, AcceptedAnswer):
        return "the conductor accepted the answer of a round that has none", "malformed_plan"
    return "no worker gave an answer", "empty_reply"
