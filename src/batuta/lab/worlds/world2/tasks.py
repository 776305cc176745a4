"""Fresh tasks of world 2 from a seed."""

from __future__ import annotations

from batuta.core import Task, TaskId
from batuta.lab.worlds.world2.questions import (
    TRAINING_KINDS,
    draw_world2_question,
    world2_task_id,
)

WORLD2 = "world2"
HELD_OUT_TAG = "held-out wording"


def draw_world2_tasks(
    family: str | None,
    n: int,
    seed: int,
    *,
    held_out: bool = False,
    difficulty: int | None = None,
) -> tuple[Task, ...]:
    """Return fresh tasks, the same on every machine.

    Args:
        family: its name; None: the families for training in turn.
        n: how many.
        seed: other seeds give other questions.
        held_out: the same questions, in wordings that are kept from training.
        difficulty: 1 to 6; None: drawn.
    """
    names = TRAINING_KINDS if family is None else (family,)
    return tuple(
        _draw_task(names[at % len(names)], (seed, at), held_out=held_out, level=difficulty)
        for at in range(n)
    )


def _draw_task(family: str, key: tuple[int, int], *, held_out: bool, level: int | None) -> Task:
    question = draw_world2_question(family, key, held_out=held_out, level=level)
    return Task(
        id=TaskId(world2_task_id(question)),
        question=question.text,
        target=question.answer,
        grader=question.kind.grader,
        tags=(WORLD2, family, *((HELD_OUT_TAG,) if held_out else ())),
        difficulty=float(question.level),
    )
