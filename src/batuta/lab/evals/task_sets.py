"""Task sets: questions of a simulated world, a benchmark, or a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

from batuta.core import Grade, Task
from batuta.errors import ConfigError, SourceError
from batuta.lab.evals.grading import AnswerGrader, grade_by_task
from batuta.lab.task_sources import TASK_SOURCES, find_source_grader
from batuta.lab.tasks import datasets
from batuta.lab.tasks.question_keys import text_key


def task_family(task: Task) -> str:
    """Return the family of a task: its first tag that describes the kind of question, or `all`."""
    plain = (tag for tag in task.tags if tag not in {*TASK_SOURCES, "held-out wording"})
    return next(plain, "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """Questions to measure on, questions for calibration, and their grader."""

    name: str
    tasks: tuple[Task, ...]
    calibration: tuple[Task, ...]
    """Questions on which each worker is measured alone; may be empty. No question of a benchmark or
    a file repeats the words of a question in `tasks`."""
    grade: AnswerGrader = grade_by_task
    family: Callable[[Task], str] = task_family
    split: str = ""
    """The split of a record: `random`, `unseen` or `all`; empty if the set is not a record."""

    @property
    def uses_task_graders(self) -> bool:
        """Whether each task names its grader, which may need processes, a sandbox or a judge."""
        return self.grade is grade_by_task


def open_tasks(
    name: str, limit: int, calibration: int, seed: int = 0, *, files: Sequence[Path] = ()
) -> TaskSet:
    """Open the task set of that name.

    Args:
        name: `rehearsal[:family][:held-out]` or `world2[:family][:held-out]` (fresh questions;
            `held-out` takes the wordings held out from training), a benchmark as `batuta tasks
            list` names it, or the path of a JSONL or YAML file.
        limit: maximum number of questions: the first of a file, random questions of a benchmark.
        calibration: maximum number of calibration questions, which come after those of `limit`.
        seed: the seed of generated questions and of random choices.
        files: local copies of the benchmark's files; may be empty.

    Raises:
        ConfigError: there is no such family, or `files` are given for a world.
        SourceError: there is no such benchmark or file, or it has no question that can be used.
    """
    kind, *parts = name.split(":")
    if kind in TASK_SOURCES:
        if files:
            raise ConfigError(f"{name} generates its questions: --from-file does not apply")
        source = TASK_SOURCES[kind]()
        drawn, others = source.draw_test(parts, limit, calibration, seed)
        grade = grade_by_task if source.grade_answer is None else _grade_drawn
        return TaskSet(name=name, tasks=drawn, calibration=others, grade=grade)
    wanted = limit + calibration
    asked = list(datasets.load_tasks(name, files=files, seed=seed, size=wanted))
    if not asked:
        raise SourceError(f"there is no question of {name} in {', '.join(map(str, files)) or name}")
    if datasets.is_task_file(name):
        name, family = Path(name).name, task_family
    else:
        Random(f"{seed} {name}").shuffle(asked)
        family = _benchmark_part
    tasks = tuple(asked[:limit])
    others = _other_questions(tasks, asked[limit:], calibration)
    return TaskSet(name=name, tasks=tasks, calibration=others, family=family)


def _other_questions(
    tasks: Sequence[Task], candidates: Sequence[Task], count: int
) -> tuple[Task, ...]:
    """Return the first `count` candidates that do not repeat the words of a task."""
    known = {text_key(task.question) for task in tasks}
    return tuple(islice((t for t in candidates if text_key(t.question) not in known), count))


def _benchmark_part(task: Task) -> str:
    """Return the part of a benchmark that a task belongs to, which is the task's second tag."""
    return next(iter(task.tags[1:]), "all")


async def _grade_drawn(task: Task, answer: str) -> Grade:
    """Grade by the world from which the task was drawn."""
    grade = find_source_grader(task)
    return await grade_by_task(task, answer) if grade is None else grade(task, answer)
