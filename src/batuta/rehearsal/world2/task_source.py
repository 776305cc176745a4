"""World 2's questions as a source of tasks: for measuring and for training."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import final

from batuta.core import Conductor, Grade, Task, TaskId
from batuta.errors import ConfigError
from batuta.rehearsal.task_source import CALIBRATION_SEED, HELD_OUT, OVERDRAW_FACTOR, TEST_SEED
from batuta.rehearsal.world2.questions import KINDS, TRAINING_KINDS
from batuta.rehearsal.world2.tasks import WORLD2, draw_world2_tasks

_LEVELS_PATTERN = re.compile(r"([1-6])-([1-6])")


@final
class World2Tasks:
    """Fresh questions with computed answers; what a source of tasks must do is in `config`."""

    name = WORLD2
    grade_answer: Callable[[Task, str], Grade] | None = None
    """Each task names its grader."""

    def draw_test(
        self, parts: Sequence[str], limit: int, calibration: int, seed: int
    ) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        """Questions that training never draws, and others, none of them twice.

        Args:
            parts: a family, and `held-out` for the wordings kept from training; either may lack.
            limit: of the first ones, at most.
            calibration: of the others, at most.
            seed: other seeds give other questions.

        Raises:
            ConfigError: there is no such family.
        """
        chosen = [part for part in parts if part != HELD_OUT]
        if len(chosen) > 1 or any(part not in KINDS for part in chosen):
            raise ConfigError(
                f"there are no tasks {':'.join((self.name, *parts))!r}; write world2, "
                f"world2:FAMILY or world2:FAMILY:held-out, with FAMILY one of {', '.join(KINDS)}"
            )
        wanted = chosen[0] if chosen else None
        held_out = HELD_OUT in parts
        drawn = draw_world2_tasks(
            wanted, OVERDRAW_FACTOR * limit, TEST_SEED + seed, held_out=held_out
        )
        asked = dict(list({task.id: task for task in drawn}.items())[:limit])
        more = draw_world2_tasks(wanted, calibration, CALIBRATION_SEED + seed)
        others = {task.id: task for task in more if task.id not in asked}
        return tuple(asked.values()), tuple(others.values())

    def draw_training(self, parts: Sequence[str], count: int, seed: int) -> list[Task]:
        """Fresh questions of one family or all that are for training, of some levels or all.

        Raises:
            ConfigError: there is no such family or difficulty.
        """
        levels = [found for part in parts if (found := _LEVELS_PATTERN.fullmatch(part))]
        chosen = [part for part in parts if not _LEVELS_PATTERN.fullmatch(part)]
        if len(levels) > 1 or len(chosen) > 1 or any(part not in TRAINING_KINDS for part in chosen):
            raise ConfigError(
                f"cannot train on {':'.join((self.name, *parts))!r}; write "
                "world2[:FAMILY][:FROM-TO], with FAMILY one of "
                f"{', '.join(TRAINING_KINDS)} and difficulties 1-6, such as "
                f"world2:{TRAINING_KINDS[0]}:4-6"
            )
        family = chosen[0] if chosen else None
        if not levels:
            return list(draw_world2_tasks(family, count, seed))
        span = range(int(levels[0][1]), int(levels[0][2]) + 1)
        each = -(-count // max(1, len(span)))
        by_level = [draw_world2_tasks(family, each, seed, level=level) for level in span]
        return [task for some in zip(*by_level, strict=True) for task in some][:count]

    def solve_question(self, text: str, task_id: TaskId) -> Task | None:
        """None: its questions come from their seeds, not from their words."""
        return None

    def hand_written_conductor(self) -> Conductor:
        """There is none.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("world2 has no conductor written by hand")
