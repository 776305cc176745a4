"""The rehearsal's questions as a source of tasks: for measuring, for training, for served runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import final

from batuta.core import Conductor, Grade, Task, TaskId
from batuta.errors import ConfigError
from batuta.rehearsal.grammar import question_families, read_problem
from batuta.rehearsal.hand_written_conductor import HandWrittenClient
from batuta.rehearsal.problem import format_value, solve_problem
from batuta.rehearsal.tasks import HELD_OUT_FAMILY, TRAINING_FAMILIES, draw_tasks, grade_answer
from batuta.solvers import LLMConductor

HELD_OUT = "held-out"
TEST_SEED = 7_000_000
"""Added to the seed of test questions, which training never draws."""
CALIBRATION_SEED = 8_000_000
"""Added to the seed of calibration questions."""
OVERDRAW_FACTOR = 2
"""Times as many questions are drawn as are wanted, for some come twice."""
_FAMILIES = (*TRAINING_FAMILIES, HELD_OUT_FAMILY)
_LEVELS_PATTERN = re.compile(r"([1-6])-([1-6])")


@final
class RehearsalTasks:
    """Fresh questions with computed answers; what a source of tasks must do is in `config`."""

    name = "rehearsal"

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
        if len(chosen) > 1 or any(part not in _FAMILIES for part in chosen):
            raise ConfigError(
                f"there are no tasks {':'.join((self.name, *parts))!r}; write rehearsal, "
                "rehearsal:FAMILY or rehearsal:FAMILY:held-out, with FAMILY one of "
                f"{', '.join(_FAMILIES)}"
            )
        wanted = chosen[0] if chosen else None
        trained = wanted if wanted in TRAINING_FAMILIES else None
        held_out = HELD_OUT in parts
        drawn = draw_tasks(wanted, OVERDRAW_FACTOR * limit, TEST_SEED + seed, held_out=held_out)
        asked = dict(list({task.id: task for task in drawn}.items())[:limit])
        more = draw_tasks(trained, calibration, CALIBRATION_SEED + seed)
        others = {task.id: task for task in more if task.id not in asked}
        return tuple(asked.values()), tuple(others.values())

    def draw_training(self, parts: Sequence[str], count: int, seed: int) -> list[Task]:
        """Fresh questions of one family or all, of some difficulties or all.

        Raises:
            ConfigError: there is no such family or difficulty.
        """
        levels = [found for part in parts if (found := _LEVELS_PATTERN.fullmatch(part))]
        chosen = [part for part in parts if not _LEVELS_PATTERN.fullmatch(part)]
        if len(levels) > 1 or len(chosen) > 1 or any(part not in _FAMILIES for part in chosen):
            raise ConfigError(
                f"cannot train on {':'.join((self.name, *parts))!r}; write "
                "rehearsal[:FAMILY][:FROM-TO], with FAMILY one of "
                f"{', '.join(_FAMILIES)} and difficulties 1-6, such as rehearsal:lists:4-6"
            )
        family = chosen[0] if chosen else None
        if not levels:
            return list(draw_tasks(family, count, seed))
        span = range(int(levels[0][1]), int(levels[0][2]) + 1)
        each = -(-count // max(1, len(span)))
        by_level = [draw_tasks(family, each, seed, difficulty=level) for level in span]
        return [task for some in zip(*by_level, strict=True) for task in some][:count]

    def grade_answer(self, task: Task, answer: str) -> Grade:
        """Whether the answer's last word is the task's target; 1 or 0."""
        return grade_answer(task, answer)

    def solve_question(self, text: str, task_id: TaskId) -> Task | None:
        """The question with its computed answer; None: it is not of this world."""
        problem = read_problem(text)
        value = None if problem is None else solve_problem(problem)
        if problem is None or value is None:
            return None
        return Task(
            id=task_id,
            question=text,
            target=format_value(value),
            grader=question_families()[problem.family].grader(problem, value),
            tags=(self.name, problem.family),
            difficulty=float(problem.difficulty),
        )

    def hand_written_conductor(self) -> Conductor:
        """A conductor made for its workers by hand."""
        return LLMConductor(name="rehearsal/hand-written", client=HandWrittenClient(0))
