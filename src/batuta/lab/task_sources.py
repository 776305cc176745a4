"""Simulated worlds, which generate their questions; their plugins are of the kind `tasks`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Protocol

from batuta.core import Conductor, Grade, Task, TaskId
from batuta.errors import ConfigError
from batuta.plugins import open_plugin, plugin_names


class TaskSource(Protocol):
    """A world of questions with known answers, and of simulated workers that can answer them."""

    @property
    def name(self) -> str:
        """The prefix of the names of its task sets, and a tag of each of its tasks."""
        ...

    def draw_test(
        self, parts: Sequence[str], limit: int, calibration: int, seed: int
    ) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        """Return test questions and other questions for calibration; training uses other seeds.

        Args:
            parts: the rest of the task set's name, split at colons.
            limit: the maximum number of test questions.
            calibration: the maximum number of calibration questions.
            seed: another seed draws other questions.

        Raises:
            ConfigError: there are no such questions.
        """
        ...

    def draw_training(self, parts: Sequence[str], count: int, seed: int) -> list[Task]:
        """Return `count` training questions; `parts` and `seed` are as for `draw_test`.

        Raises:
            ConfigError: there are no such questions.
        """
        ...

    @property
    def grade_answer(self) -> Callable[[Task, str], Grade] | None:
        """Grades an answer to one of its tasks; None if each task names its grader."""
        ...

    def solve_question(self, text: str, task_id: TaskId) -> Task | None:
        """Return the question as a task with its answer, and with the id `task_id`.

        Return None if the question is not of this world, or if this world cannot solve it.
        """
        ...

    def hand_written_conductor(self) -> Conductor:
        """Return a conductor written by hand for its workers.

        Raises:
            ConfigError: there is none.
        """
        ...


REHEARSAL = "rehearsal"
WORLD2 = "world2"


def _open_source(name: str) -> TaskSource:
    def use(source: Callable[[], TaskSource]) -> TaskSource:
        return source()

    return open_plugin("tasks", name, use)


TASK_SOURCES: Mapping[str, Callable[[], TaskSource]] = MappingProxyType({
    name: partial(_open_source, name) for name in plugin_names("tasks")
})  # fmt: skip
"""Functions that open a world, by its name: the plugins of the kind `tasks`."""


def check_simulated_questions(
    names: Iterable[str], pool: str, *, simulated: bool, allowed: bool = False
) -> None:
    """Raise ConfigError if real models would be asked questions of a simulated world.

    Real models may cost money, and their answers to such questions say nothing about them.

    Args:
        names: the names of the task sets.
        pool: the pool's name, for the message.
        simulated: whether the workers are programs, which cost nothing.
        allowed: whether the user has confirmed it with --simulated-questions.
    """
    worlds = [name for name in names if name.partition(":")[0] in TASK_SOURCES]
    if not worlds or simulated or allowed:
        return
    raise ConfigError(
        f"{worlds[0]} has questions of a simulated world, but the workers of {pool} are real "
        f"models: use simulated workers (--pool {worlds[0].partition(':')[0]}) or your own "
        "questions (--tasks FILE.jsonl), or allow it with --simulated-questions"
    )


def find_source_grader(task: Task) -> Callable[[Task, str], Grade] | None:
    """Return the grader of the task's world; None if the task names its own grader."""
    source = next((TASK_SOURCES[tag]() for tag in task.tags if tag in TASK_SOURCES), None)
    return None if source is None else source.grade_answer
