"""World 2's questions as a source of tasks: for measuring and for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from batuta.core import Conductor, Grade, Task, TaskId
from batuta.errors import ConfigError
from batuta.lab.worlds.drawn_tasks import DrawnTasks
from batuta.lab.worlds.world2.questions import KINDS, TRAINING_KINDS
from batuta.lab.worlds.world2.tasks import WORLD2, draw_world2_tasks


@final
class World2Tasks(DrawnTasks):
    """World 2's questions."""

    name = WORLD2
    families = tuple(KINDS)
    trainable = TRAINING_KINDS
    level_example = f"world2:{TRAINING_KINDS[0]}:4-6"
    draw = staticmethod(draw_world2_tasks)
    grade_answer: Callable[[Task, str], Grade] | None = None
    """Each task names its grader."""

    def solve_question(self, text: str, task_id: TaskId) -> Task | None:
        """Return None: its questions come from their seeds, not from their words."""
        return None

    def hand_written_conductor(self) -> Conductor:
        """Return None, as there is none.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("world2 has no conductor written by hand")
