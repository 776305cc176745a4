"""Grades generated tasks by their own generator."""

from __future__ import annotations

from typing import final

from batuta.core import Grade, Task
from batuta.lab.tasks.datasets.reasoning_gym import score_answer
from batuta.language import answer_extraction


@final
class ReasoningGymGrader:
    """Judges the marked answer to one task as its generator does, in [0, 1]."""

    def __init__(self, task: Task) -> None:
        self._task = task

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`.

        Raises:
            SourceError: the generator's package is not installed.
        """
        found = answer_extraction.final_answer(answer)
        return Grade(0.0, None, "no answer") if found is None else score_answer(self._task, found)
