"""World 2's questions as a source of tasks for evaluations and training."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from batuta.core import Conductor, Grade, Task, TaskId
from batuta.errors import ConfigError
from batuta.lab.worlds.drawn_tasks import DrawnTasks
from batuta.lab.worlds.world2.questions import (
    KINDS,
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
    """Return fresh tasks as `DrawTasks` says; `held_out` changes only the wording."""
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


@final
class World2Tasks(DrawnTasks):
    """World 2's questions."""

    name = WORLD2
    families = tuple(KINDS)
    trainable = TRAINING_KINDS
    level_example = f"world2:{TRAINING_KINDS[0]}:4-6"
    draw = staticmethod(draw_world2_tasks)
    grade_answer: Callable[[Task, str], Grade] | None = None
    """None, because each task names its grader."""

    def solve_question(self, text: str, task_id: TaskId) -> Task | None:
        """Return None: this world's tasks are not recovered from their text."""
        return None

    def hand_written_conductor(self) -> Conductor:
        """Raise `ConfigError`: this world has no hand-written conductor."""
        raise ConfigError("world2 has no hand-written conductor")
