"""Whether a question can be answered here at all: who can see its pictures, what form it wants."""

from __future__ import annotations

from batuta.core import Pool, Question
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
