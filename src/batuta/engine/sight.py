"""Decides who is shown a question's pictures, files and recordings, and what others read. Pure.

A worker that cannot see them reads what a step has written that did. Where nobody in the pool has
an ability by name, nothing is known, and everybody is shown everything.
"""

from __future__ import annotations

from dataclasses import replace

from batuta.core import (
    Audio,
    File,
    Image,
    Message,
    Part,
    Pool,
    Question,
    Request,
    Step,
    Text,
    Worker,
    Workflow,
)
from batuta.core.worker import AUDIO, FILES, VISION
from batuta.engine.step_prompt import able_workers

UNSEEN = {
    "image": "[A picture that you cannot see.]",
    "file": "[A file that you cannot read.]",
    "audio": "[A recording that you cannot hear.]",
}
"""The sentence that stands in the place of an attachment, by its kind."""
_TAGS = {"image": VISION, "file": FILES, "audio": AUDIO}


def lacked_tags(question: Question, pool: Pool, worker: Worker) -> frozenset[str]:
    """Return the abilities that the question needs, that the worker lacks and another one has."""
    return frozenset(
        tag
        for tag in question.needed_tags
        if tag not in worker.tags and any(tag in other.tags for other in pool)
    )


def show_seen(request: Request, lacked: frozenset[str]) -> Request:
    """Return the request with words in the place of what its worker cannot be shown."""
    if not lacked:
        return request
    return replace(request, messages=tuple(_seen_turn(m, lacked) for m in request.messages))


def _seen_turn(message: Message, lacked: frozenset[str]) -> Message:
    if not message.attachments:
        return message
    return replace(message, parts=tuple(_seen_part(part, lacked) for part in message.parts))


def _seen_part(part: Part, lacked: frozenset[str]) -> Part:
    if isinstance(part, Image | File | Audio) and _TAGS[part.kind] in lacked:
        return Text(UNSEEN[part.kind], cache=part.cache)
    return part


def give_sight(workflow: Workflow, question: Question, pool: Pool) -> Workflow:
    """Return the workflow in which each model sees what is attached, or reads somebody who does.

    A step of one that cannot reads the steps before it that can, too; where there is none, it is
    given to the best worker that can.
    """
    if not question.needed_tags:
        return workflow
    steps = list[Step]()
    seen, informed = list[int](), set[int]()
    for index, given in enumerate(workflow.steps):
        step, worker = given, _find_worker(pool, given)
        is_blind = worker is not None and bool(lacked_tags(question, pool, worker))
        if is_blind and worker is not None and worker.is_model and not _is_told(step, informed):
            if seen:
                step = replace(step, access=tuple(sorted({*step.access, *seen})))
            else:
                best = able_workers(question, list(pool.ranked()))[0]
                step = replace(step, worker=best.id)
                is_blind = bool(lacked_tags(question, pool, best))
        if not is_blind:
            seen.append(index)
        if not is_blind or _is_told(step, informed):
            informed.add(index)
        steps.append(step)
    changed = tuple(steps)
    return workflow if changed == workflow.steps else Workflow(changed)


def _is_told(step: Step, informed: set[int]) -> bool:
    """Return True if the step reads one that knows what is attached, or the round before."""
    return step.previous or step.continues or not informed.isdisjoint(step.access)


def _find_worker(pool: Pool, step: Step) -> Worker | None:
    """Return the step's worker; None: a rule forbids it, and another one will be put there."""
    return next((worker for worker in pool if worker.id == step.worker), None)
