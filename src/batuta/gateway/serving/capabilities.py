"""Checks that the pool can answer a question: its attachments, `n`, `logprobs` and its format.

Also checks the reply that a method has chosen: its format, and the guardrails on the output.
"""

from __future__ import annotations

from dataclasses import replace

from batuta.core import (
    GuardrailTriggered,
    Outcome,
    Pool,
    Question,
    Reply,
    Request,
    Run,
    Workflow,
)
from batuta.core.worker import AUDIO, FILES, VISION
from batuta.engine.finalize import reply_text
from batuta.engine.step_prompt import TRUNCATED_FINISHES, give_sight, lacks_call
from batuta.gateway.errors import invalid_value, unsupported_parameter
from batuta.gateway.serving.models import ServedModel
from batuta.gateway.serving.parsed_call import STEPS_PATH
from batuta.guardrails import Guardrails, GuardrailStage, ResponseFormatChecker, describe_block
from batuta.schemas import SchemaTimeoutError

_ATTACHMENTS = {
    VISION: "no worker can see pictures",
    FILES: "no worker can read files",
    AUDIO: "no worker can hear recordings",
}


def capable_workers(pool: Pool, question: Question, *, conducted: bool) -> Pool:
    """Return the workers that support all attachments of the question.

    If a workflow is conducted, return the whole pool: the other workers read what the able workers
    write.

    Raises:
        APIError: no worker supports all attachments.
    """
    whole = pool
    for tag in question.needed_tags:
        able = [worker.id for worker in pool if tag in worker.tags]
        if not able:
            reason = f"{_ATTACHMENTS[tag]}; add the tag '{tag}' to a worker that can."
            raise unsupported_parameter("messages", reason)
        pool = pool.subset(able)
    return whole if conducted else pool


def check_attachments(workflow: Workflow | None, question: Question, pool: Pool) -> None:
    """Check that each model of a caller's workflow sees the attachments or reads a step that does.

    Raises:
        APIError: a model cannot see the attachments, and its step reads none whose model can.
    """
    if workflow is None:
        return
    changed = give_sight(workflow, question, pool)
    for index, (step, other) in enumerate(zip(workflow.steps, changed.steps, strict=True)):
        if step != other:
            reason = f"{step.worker} cannot take what is attached, and reads no step that does."
            raise invalid_value(f"{STEPS_PATH}[{index}]", reason)


def check_choices(question: Question, served: ServedModel, guardrails: Guardrails) -> None:
    """Check that the model supports the question's `n` and `logprobs`.

    Raises:
        APIError: the model does not support one of the two, or a policy excludes `logprobs`.
    """
    sampling = question.sampling
    several, logprobs = (sampling.choices or 1) > 1, sampling.logprobs is not None
    if served.solver is not None and (several or logprobs):
        reason = f"{served.name} chooses one answer among replies."
        raise unsupported_parameter("n" if several else "logprobs", reason)
    if several and question.tools and not (served.direct and len(served.pool) == 1):
        reason = "several answers with tools need a model of one worker."
        raise unsupported_parameter("n", reason)
    if logprobs and GuardrailStage.OUTPUT in guardrails.stages:
        raise unsupported_parameter("logprobs", "a policy may change the output.")


async def check_response_format(question: Question) -> None:
    """Check that the schema of the response format, if it has one, is valid.

    Raises:
        APIError: the schema is not valid, or takes too long to check.
    """
    form = question.response_format
    if form is None or form.kind != "json_schema":
        return
    try:
        await ResponseFormatChecker(form).check_schema()
    except (ValueError, SchemaTimeoutError) as error:
        raise invalid_value("response_format.json_schema.schema", f"{error}.") from None


async def enforce_response_format(run: Run) -> Run:
    """Return the run of a method, failed if its chosen reply has the wrong format.

    The run also fails if the reply lacks a required tool call, or if checking the reply takes too
    long. The engine has checked only the last reply.
    """
    if run.reply is None or run.outcome is Outcome.WAITING:
        return run
    fault = await _reply_fault(run.header.question, run.reply)
    if fault is None:
        return run
    code, message = fault
    return replace(
        run, outcome=Outcome.FAILED, answer=None, reply=None, error=message, error_code=code
    )


async def check_chosen_answer(run: Run, guardrails: Guardrails) -> Run:
    """Return the run of a method, with its chosen reply as the output guardrails change it.

    If they block the reply, the run has failed. The engine may have checked the reply only as a
    text between workers. A finding that changes nothing is recorded unless the engine did so.
    """
    if run.reply is None:
        return run
    last = len(run.steps)
    reply, acts, blocked = await guardrails.check_reply(run.reply, GuardrailStage.OUTPUT, last)
    guards = (*run.guards, *acts)
    if not blocked and reply == run.reply:
        return replace(run, guards=(*run.guards, *_unrecorded_acts(run, acts)))
    if not blocked:
        return replace(run, reply=reply, answer=reply_text(reply), guards=guards)
    return replace(
        run,
        outcome=Outcome.FAILED,
        answer=None,
        reply=None,
        error=describe_block(blocked, acts, "the answer"),
        error_code="policy_blocked",
        guards=guards,
    )


def _unrecorded_acts(
    run: Run, acts: tuple[GuardrailTriggered, ...]
) -> tuple[GuardrailTriggered, ...]:
    answer = f"{GuardrailStage.OUTPUT}:"
    recorded = {(act.policy, act.action) for act in run.guards if act.where.startswith(answer)}
    return tuple(act for act in acts if (act.policy, act.action) not in recorded)


async def _reply_fault(question: Question, reply: Reply) -> tuple[str, str] | None:
    """Return why the reply is not a valid answer, as a code and a message; None if it is valid."""
    request = Request(messages=(), tools=question.tools, tool_choice=question.tool_choice)
    if lacks_call(request, reply):
        return "no_tool_call", "the reply does not call the tool that it must call"
    form = question.response_format
    if form is None or reply.tool_calls or reply.finish in TRUNCATED_FINISHES:
        return None
    try:
        fault = await ResponseFormatChecker(form).find_fault(reply.text)
    except SchemaTimeoutError as error:
        return "schema_too_slow", f"{error}"
    return None if fault is None else ("wrong_form", fault)
