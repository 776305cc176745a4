"""What is asked: the rehearsal's questions, a benchmark's, or those of a file of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from batuta import rehearsal
from batuta.core import Grade, Task
from batuta.errors import ConfigError
from batuta.evals.grading import AnswerGrader, grade_by_task
from batuta.rehearsal import world2
from batuta.tasks import datasets

REHEARSAL = "rehearsal"
HELD_OUT = "held-out"
TEST_SEED = 7_000_000
"""Added to the seed of test questions, which training never draws."""
CALIBRATION_SEED = 8_000_000
"""Added to the seed of calibration questions."""
OVERDRAW_FACTOR = 2
"""Times as many questions are drawn as are wanted, for some come twice."""


def task_family(task: Task) -> str:
    """The group that a task is counted in: its first tag that says something of its kind."""
    plain = (tag for tag in task.tags if tag not in {REHEARSAL, world2.WORLD2, "held-out wording"})
    return next(plain, "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """Questions to be measured on, others to choose the best single worker by, and the grader."""

    name: str
    tasks: tuple[Task, ...]
    calibration: tuple[Task, ...]
    """Training questions, none of them in `tasks`; empty: there are none."""
    grade: AnswerGrader = grade_by_task
    family: Callable[[Task], str] = task_family
    split: str = ""
    """How a record was divided: `random` or `unseen`; empty: it is no record."""

    @property
    def uses_task_graders(self) -> bool:
        """Whether each task names its grader, which may need processes, a sandbox, a judge."""
        return self.grade is grade_by_task


def open_tasks(
    name: str, limit: int, calibration: int, seed: int = 0, *, files: Sequence[Path] = ()
) -> TaskSet:
    """The task set of that name.

    Args:
        name: `rehearsal[:family][:held-out]` or `world2[:family][:held-out]` (fresh questions;
            `held-out` takes the wordings kept from training), a benchmark as `batuta tasks list`
            names it, or the path of a JSONL file.
        limit: how many questions at most; of a file the first ones, of a benchmark some by lot.
        calibration: how many others to calibrate on at most; of a file, those past the limit.
        seed: of the rehearsal's questions and of the lot.
        files: your own copy of the benchmark's files.

    Raises:
        ConfigError: there is no such family.
        SourceError: there is no such benchmark or file, or it cannot be used.
    """
    kind, *parts = name.split(":")
    if kind == REHEARSAL:
        return _open_rehearsal(name, parts, limit=limit, calibration=calibration, seed=seed)
    if kind == world2.WORLD2:
        return _open_world2(name, parts, limit=limit, calibration=calibration, seed=seed)
    wanted = limit + calibration
    asked = list(datasets.load_tasks(name, files=files, seed=seed, size=wanted))
    if ".jsonl" in Path(name).suffixes:
        return TaskSet(
            name=Path(name).name, tasks=tuple(asked[:limit]), calibration=tuple(asked[limit:wanted])
        )
    Random(f"{seed} {name}").shuffle(asked)
    rest = tuple(asked[limit:wanted])
    return TaskSet(name=name, tasks=tuple(asked[:limit]), calibration=rest, family=_benchmark_part)


def _benchmark_part(task: Task) -> str:
    """The part of its benchmark that a task belongs to: its second tag, if there is one."""
    return next(iter(task.tags[1:]), "all")


def _open_rehearsal(
    name: str, parts: list[str], limit: int, calibration: int, *, seed: int
) -> TaskSet:
    families = (*rehearsal.TRAINING_FAMILIES, rehearsal.HELD_OUT_FAMILY)
    held_out = HELD_OUT in parts
    chosen = [part for part in parts if part != HELD_OUT]
    if len(chosen) > 1 or any(part not in families for part in chosen):
        raise ConfigError(
            f"there are no tasks {name!r}; write rehearsal, rehearsal:FAMILY or "
            f"rehearsal:FAMILY:held-out, with FAMILY one of {', '.join(families)}"
        )
    wanted = chosen[0] if chosen else None
    trained = wanted if wanted in rehearsal.TRAINING_FAMILIES else None
    drawn = rehearsal.draw_tasks(
        wanted, OVERDRAW_FACTOR * limit, TEST_SEED + seed, held_out=held_out
    )
    asked = dict(list({task.id: task for task in drawn}.items())[:limit])
    more = rehearsal.draw_tasks(trained, calibration, CALIBRATION_SEED + seed)
    others = {task.id: task for task in more if task.id not in asked}
    return TaskSet(
        name=name,
        tasks=tuple(asked.values()),
        calibration=tuple(others.values()),
        grade=_grade_rehearsal,
    )


def _open_world2(
    name: str, parts: list[str], limit: int, calibration: int, *, seed: int
) -> TaskSet:
    held_out = HELD_OUT in parts
    chosen = [part for part in parts if part != HELD_OUT]
    if len(chosen) > 1 or any(part not in world2.KINDS for part in chosen):
        raise ConfigError(
            f"there are no tasks {name!r}; write world2, world2:FAMILY or "
            f"world2:FAMILY:held-out, with FAMILY one of {', '.join(world2.KINDS)}"
        )
    wanted = chosen[0] if chosen else None
    drawn = world2.draw_world2_tasks(
        wanted, OVERDRAW_FACTOR * limit, TEST_SEED + seed, held_out=held_out
    )
    asked = dict(list({task.id: task for task in drawn}.items())[:limit])
    more = world2.draw_world2_tasks(wanted, calibration, CALIBRATION_SEED + seed)
    others = {task.id: task for task in more if task.id not in asked}
    return TaskSet(name=name, tasks=tuple(asked.values()), calibration=tuple(others.values()))


async def _grade_rehearsal(task: Task, answer: str) -> Grade:
    return rehearsal.grade_answer(task, answer)
