"""Whether a question can be answered here at all: who can see its pictures, what form it wants.

And whether the reply that a method chose has that form.
"""

from __future__ import annotations

from dataclasses import replace

from batuta.core import Outcome, Pool, Question, Reply, Request, Run
from batuta.engine.ask import CUT_SHORT, lacks_call
from batuta.gateway.refusal import unsupported, wrong_value
from batuta.policies import Form
from batuta.schemas import SchemaTooSlow

VISION = "vision"


def seeing(pool: Pool, question: Question) -> Pool:
    """The workers that may be shown the question: those that can see, if it has pictures.

    Raises:
        Refusal: it has pictures and nobody can see.
    """
    if not any(message.images for message in question.messages):
        return pool
    able = [worker.id for worker in pool if VISION in worker.tags]
    if not able:
        reason = f"no worker here can see pictures; give one that can the tag '{VISION}'."
        raise unsupported("messages", reason)
    return pool.subset(able)


async def check_form(question: Question) -> None:
    """Nothing, if the form that the answer must have can be checked.

    Raises:
        Refusal: its schema is none, or nobody can tell in the time there is.
    """
    wanted = question.response_format
    if wanted is None or wanted.kind != "json_schema":
        return
    try:
        await Form(wanted).check()
    except (ValueError, SchemaTooSlow) as error:
        raise wrong_value("response_format.json_schema.schema", f"{error}.") from None


async def in_form(run: Run) -> Run:
    """The run of a method that chose among replies, without an answer if its choice has no form.

    The engine has checked only the reply that came last.
    """
    if run.reply is None or run.outcome is Outcome.WAITING:
        return run
    fault = await _fault(run.header.question, run.reply)
    if fault is None:
        return run
    code, message = fault
    return replace(
        run, outcome=Outcome.FAILED, answer=None, reply=None, error=message, error_code=code
    )


async def _fault(question: Question, reply: Reply) -> tuple[str, str] | None:
    """Why the reply is no answer to the question, as a code and a sentence; None if it is one."""
    asked = Request((), tools=question.tools, tool_choice=question.tool_choice)
    if lacks_call(asked, reply):
        return "no_tool_call", "the reply does not call the tool that it must call"
    wanted = question.response_format
    if wanted is None or reply.tool_calls or reply.finish in CUT_SHORT:
        return None
    try:
        fault = await Form(wanted).fault(reply.text)
    except SchemaTooSlow as error:
        return "schema_too_slow", f"{error}"
    return None if fault is None else ("wrong_form", fault)
