"""Questions with known answers, and the grading of answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol

TaskId = NewType("TaskId", str)


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of grading an answer."""

    score: float | None
    """Score in [0, 1]; None if the answer could not be graded."""
    extracted: str | None = None
    """The text that the grader compared with the target; None if it compared none."""
    reason: str = ""
    """Why the answer has this score, or none; empty: not stated."""


class Grader(Protocol):
    """Judges an answer."""

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`, whatever it contains.

        Raises:
            SourceError: the answer cannot be checked, or not in time.
        """
        ...


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Task:
    """A question with a known answer."""

    id: TaskId
    """An id that is the same on every machine."""
    question: str
    target: str
    grader: str
    """The grader's name."""
    tags: tuple[str, ...] = ()
    difficulty: float | None = None
    """Difficulty on a scale of the task's source; None: unknown."""
    data: str = ""
    """Further data for the grader, as JSON, such as the tests of a program or the options of a
    multiple-choice question; empty: none."""
    private: bool = False
    """If True, the text must not be logged, stored or published; `repr` hides it."""

    def __repr__(self) -> str:
        if self.private:
            return f"Task({self.id!r}, private)"
        return f"Task({self.id!r}, {self.question!r}, {self.target!r}, {self.grader!r})"
