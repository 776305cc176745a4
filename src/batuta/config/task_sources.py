"""Worlds whose questions are drawn and not read, by what the names of their tasks begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from batuta.core import Conductor, Grade, Task, TaskId


class TaskSource(Protocol):
    """A world of questions with known answers, and of simulated workers that can answer them."""

    @property
    def name(self) -> str:
        """What the names of its task sets begin with; a tag of each of its tasks."""
        ...

    def draw_test(
        self, parts: Sequence[str], limit: int, calibration: int, seed: int
    ) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        """Questions to measure on and others to calibrate on, none of them drawn for training.

        Raises:
            ConfigError: there are no such questions; `parts` are what follows its name.
        """
        ...

    def draw_training(self, parts: Sequence[str], count: int, seed: int) -> list[Task]:
        """Questions to train on.

        Raises:
            ConfigError: there are no such questions.
        """
        ...

    @property
    def grade_answer(self) -> Callable[[Task, str], Grade] | None:
        """How good the answer to one of its tasks is; None: each task names its grader."""
        ...

    def solve_question(self, text: str, task_id: TaskId) -> Task | None:
        """The question with its answer; None: it is not of this world."""
        ...

    def hand_written_conductor(self) -> Conductor:
        """A conductor made for its workers by hand.

        Raises:
            ConfigError: there is none.
        """
        ...


def _load_rehearsal() -> TaskSource:
    from batuta.rehearsal.task_source import RehearsalTasks  # noqa: PLC0415 - only when needed

    return RehearsalTasks()


def _load_world2() -> TaskSource:
    from batuta.rehearsal.world2.task_source import World2Tasks  # noqa: PLC0415 - only when needed

    return World2Tasks()


REHEARSAL = "rehearsal"
WORLD2 = "world2"
TASK_SOURCES: Mapping[str, Callable[[], TaskSource]] = MappingProxyType({
    REHEARSAL: _load_rehearsal, WORLD2: _load_world2
})  # fmt: skip
"""By name; a new world is one row."""


def find_source_grader(task: Task) -> Callable[[Task, str], Grade] | None:
    """The grader of the world that the task was drawn from; None: the task names its own."""
    source = next((TASK_SOURCES[tag]() for tag in task.tags if tag in TASK_SOURCES), None)
    return None if source is None else source.grade_answer
