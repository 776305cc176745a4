"""A workflow that waits for the client's tools, and the run that goes on with their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batuta.core import (
    Outcome,
    Pool,
    Question,
    Reply,
    Resumed,
    Role,
    Round,
    Run,
    RunId,
    StepRun,
    ToolCall,
    ToolResult,
    place_of,
)


def calls_of(step: StepRun) -> tuple[ToolCall, ...]:
    """The calls of the client's tools that the step waits for; none if it has ended."""
    return step.result.tool_calls if isinstance(step.result, Reply) else ()


def waiting(rounds: Sequence[Round]) -> tuple[StepRun, ...]:
    """The steps of the last round that wait for the client's tools, in their order."""
    steps = rounds[-1].steps if rounds else ()
    return tuple(sorted((s for s in steps if calls_of(s)), key=lambda step: step.index))


def answered_calls(question: Question) -> frozenset[str]:
    """The ids of the calls whose results are in the conversation."""
    parts = (part for message in question.messages for part in message.parts)
    return frozenset(part.call_id for part in parts if isinstance(part, ToolResult))


def asking_run(question: Question) -> RunId | None:
    """The run whose tool calls the end of the conversation answers; None if it answers none."""
    for message in reversed(question.messages):
        if message.role is Role.ASSISTANT:
            return None
        for part in message.parts:
            place = place_of(part.call_id) if isinstance(part, ToolResult) else None
            if place is not None:
                return RunId(place.run)
    return None


def joined(resumed: Resumed | None, rounds: Sequence[Round]) -> tuple[Round, ...]:
    """All rounds of a workflow, whichever run played them."""
    if resumed is None:
        return tuple(rounds)
    if not rounds:
        return resumed.rounds
    *ended, unfinished = resumed.rounds
    anew = {step.index for step in rounds[0].steps}
    before = tuple(step for step in unfinished.steps if step.index not in anew)
    return (*ended, replace(rounds[0], steps=(*before, *rounds[0].steps)), *rounds[1:])


def going_on(run: Run, question: Question, pool: Pool) -> Resumed | None:
    """What a run for `question` can go on from, `run` being the one that asked for its tools.

    None if that run does not wait, its workers are no longer there, or nothing was answered.
    """
    rounds = joined(run.header.resumed, run.rounds)
    open_steps = waiting(rounds)
    results = answered_calls(question)
    workflow = rounds[-1].workflow if rounds else None
    if run.outcome is not Outcome.WAITING or workflow is None:
        return None
    if any(step.worker not in pool for step in workflow.steps):
        return None
    if not any(call.id in results for step in open_steps for call in calls_of(step)):
        return None
    runs = run.header.resumed.runs if run.header.resumed else ()
    return Resumed(tuple(_kept(played) for played in rounds), (*runs, run.id))


def lightened(run: Run) -> Run:
    """A run that waits with what `going_on` needs of it: its replies, without any prompt."""
    header = replace(run.header, question=Question.of(""))
    rounds = tuple(_kept(played) for played in run.rounds)
    return replace(run, header=header, rounds=rounds, reply=None)


def _kept(played: Round) -> Round:
    """The round with its replies, without prompts, drafts and failed steps."""
    steps = tuple(
        StepRun(s.index, s.planned, s.worker, None, s.result, s.span, as_fallback=s.as_fallback)
        for s in played.steps
        if isinstance(s.result, Reply)
    )
    decision = replace(played.decision, draft=replace(played.decision.draft, request=None))
    return Round(decision, (), played.workflow, steps, played.planning)
