"""The rehearsal's questions as a source of tasks for evaluations, training and served runs."""

from __future__ import annotations

from typing import final

from batuta.conductors import LLMConductor
from batuta.core import Conductor, Grade, Task, TaskId
from batuta.lab.worlds.drawn_tasks import DrawnTasks
from batuta.lab.worlds.grammar import question_families, read_problem
from batuta.lab.worlds.hand_written_conductor import HandWrittenClient
from batuta.lab.worlds.problem import format_value, solve_problem
from batuta.lab.worlds.tasks import HELD_OUT_FAMILY, TRAINING_FAMILIES, draw_tasks, grade_answer


@final
class RehearsalTasks(DrawnTasks):
    """The rehearsal's questions."""

    name = "rehearsal"
    families = trainable = (*TRAINING_FAMILIES, HELD_OUT_FAMILY)
    level_example = "rehearsal:lists:4-6"
    draw = staticmethod(draw_tasks)

    def _calibration_family(self, family: str | None) -> str | None:
        """Return a training family unchanged; None (all of these) for the held-out family."""
        return family if family in TRAINING_FAMILIES else None

    def grade_answer(self, task: Task, answer: str) -> Grade:
        """Grade with `batuta.lab.worlds.tasks.grade_answer`."""
        return grade_answer(task, answer)

    def solve_question(self, text: str, task_id: TaskId) -> Task | None:
        """Return the question as a task; None if it is not of this world or has no answer."""
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
        """Return the hand-written conductor for the rehearsal's workers."""
        return LLMConductor(name="rehearsal/hand-written", client=HandWrittenClient(0))
