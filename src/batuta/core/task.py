"""A question with a known answer, and how answers are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol

TaskId = NewType("TaskId", str)


@dataclass(frozen=True, slots=True)
class Grade:
    """A judged answer. A wrong answer is a grade; no judgement is `score=None`."""

    score: float | None
    """Score in [0, 1]; None if undecided."""
    extracted: str | None = None
    """The text that the grader took for the answer."""
    reason: str = ""


class Grader(Protocol):
    """Judges an answer."""

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`; never raises for a wrong or strange answer."""
        ...


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Task:
    """A question with a known answer."""

    id: TaskId
    """The same on every machine."""
    question: str
    target: str
    grader: str
    """The grader's name."""
    tags: tuple[str, ...] = ()
    difficulty: float | None = None
    data: str = ""
    """Further data of the grader, as JSON: the tests of a program, the options."""
    private: bool = False
    """True: its text is never logged, stored or published; `repr` hides it."""

    def __repr__(self) -> str:
        if self.private:
            return f"Task({self.id!r}, private)"
        return f"Task({self.id!r}, {self.question!r}, {self.target!r}, {self.grader!r})"
