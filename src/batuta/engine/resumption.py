"""A workflow that waits for the client's tools, and the run that continues with their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batuta.core import (
    Outcome,
    Pool,
    Question,
    Reply,
    ResumeState,
    Role,
    Round,
    Run,
    RunId,
    ToolResult,
    decode_call_id,
)


def answered_call_ids(question: Question) -> frozenset[str]:
    """Return the ids of the calls whose results are in the conversation."""
    parts = (part for message in question.messages for part in message.parts)
    return frozenset(part.call_id for part in parts if isinstance(part, ToolResult))


def find_asking_run(question: Question) -> RunId | None:
    """Return the id of the run whose tool calls are answered after the last assistant message.

    Return None if no results follow that message, or if no id of their calls names a run.
    """
    for message in reversed(question.messages):
        if message.role is Role.ASSISTANT:
            return None
        for part in message.parts:
            origin = decode_call_id(part.call_id) if isinstance(part, ToolResult) else None
            if origin is not None:
                return RunId(origin.run)
    return None


def merge_rounds(resumed: ResumeState | None, rounds: Sequence[Round]) -> tuple[Round, ...]:
    """Return the rounds of the earlier runs and of this run, with their shared round merged."""
    if resumed is None:
        return tuple(rounds)
    if not rounds:
        return resumed.rounds
    *ended, unfinished = resumed.rounds
    repeated = {step.index for step in rounds[0].steps}
    before = tuple(step for step in unfinished.steps if step.index not in repeated)
    return (*ended, replace(rounds[0], steps=(*before, *rounds[0].steps)), *rounds[1:])


def find_resume_state(run: Run, question: Question, pool: Pool) -> ResumeState | None:
    """Return the state from which a run for `question` can continue `run`, which waits for tools.

    Return None if the run does not wait, if a worker of its workflow is no longer in the pool, or
    if none of its calls was answered.
    """
    rounds = merge_rounds(run.header.resumed, run.rounds)
    open_steps = rounds[-1].waiting_steps if rounds else ()
    results = answered_call_ids(question)
    workflow = rounds[-1].workflow if rounds else None
    if run.outcome is not Outcome.WAITING or workflow is None:
        return None
    if any(step.worker not in pool for step in workflow.steps):
        return None
    if not any(call.id in results for step in open_steps for call in step.pending_calls):
        return None
    runs = run.header.resumed.runs if run.header.resumed else ()
    return ResumeState(tuple(_strip_round(round_) for round_ in rounds), (*runs, run.id))


def strip_prompts(run: Run) -> Run:
    """Return a waiting run reduced to what `find_resume_state` needs: replies without prompts."""
    header = replace(run.header, question=Question.of(""))
    rounds = tuple(_strip_round(round_) for round_ in run.rounds)
    return replace(run, header=header, rounds=rounds, reply=None)


def _strip_round(round_: Round) -> Round:
    """Return the round without prompts, rejected drafts, failed attempts and failed steps."""
    steps = tuple(
        replace(step, request=None, attempts=())
        for step in round_.steps
        if isinstance(step.result, Reply)
    )
    decision = replace(round_.decision, draft=replace(round_.decision.draft, request=None))
    return replace(round_, decision=decision, drafts=(), steps=steps)
