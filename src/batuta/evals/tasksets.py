"""What is asked: the rehearsal's questions, or a file of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batuta import rehearsal
from batuta.core import Grade, Task, TaskId
from batuta.errors import ConfigError
from batuta.evals.marking import Marking, is_integer, mark

REHEARSAL = "rehearsal"
HELD_OUT = "held-out"
TEST_SEED = 7_000_000
"""Added to the seed of test questions, which training never draws."""
CALIBRATION_SEED = 8_000_000
"""Added to the seed of calibration questions."""
DRAWN = 2
"""Times as many questions are drawn as are wanted, for some come twice."""


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Questions to be measured on, others to choose the best single worker by, and the grader."""

    name: str
    tasks: tuple[Task, ...]
    calibration: tuple[Task, ...]
    """Training questions, none of them in `tasks`; empty: there are none."""
    grade: Marking


def open_tasks(name: str, limit: int, calibration: int, seed: int = 0) -> TaskSet:
    """The task set of that name.

    Args:
        name: `rehearsal[:family][:held-out]` (fresh questions; `held-out` takes the wordings kept
            from training), or the path of a JSONL file.
        limit: how many questions at most.
        calibration: how many others to calibrate on at most; of a file, those past the limit.
        seed: of the rehearsal's questions.

    Raises:
        ConfigError: there is no such family or file, or a line of it cannot be used.
    """
    kind, *parts = name.split(":")
    if kind == REHEARSAL:
        return _rehearsal(name, parts, limit, calibration, seed)
    asked = read_tasks(Path(name))
    others = asked[limit : limit + calibration]
    return TaskSet(Path(name).name, asked[:limit], others, mark)


def family(task: Task) -> str:
    """The group that a task is counted in: its first tag that says something of its kind."""
    plain = (tag for tag in task.tags if tag not in {REHEARSAL, "held-out wording"})
    return next(plain, "all")


def _rehearsal(name: str, parts: list[str], limit: int, calibration: int, seed: int) -> TaskSet:
    families = (*rehearsal.FAMILIES, rehearsal.HELD_OUT_FAMILY)
    held_out = HELD_OUT in parts
    chosen = [part for part in parts if part != HELD_OUT]
    if len(chosen) > 1 or any(part not in families for part in chosen):
        raise ConfigError(
            f"there are no tasks {name!r}; write rehearsal, rehearsal:FAMILY or "
            f"rehearsal:FAMILY:held-out, with FAMILY one of {', '.join(families)}"
        )
    wanted = chosen[0] if chosen else None
    trained = wanted if wanted in rehearsal.FAMILIES else None
    drawn = rehearsal.tasks(wanted, DRAWN * limit, TEST_SEED + seed, held_out=held_out)
    asked = dict(list({task.id: task for task in drawn}.items())[:limit])
    more = rehearsal.tasks(trained, calibration, CALIBRATION_SEED + seed)
    others = {task.id: task for task in more if task.id not in asked}
    return TaskSet(name, tuple(asked.values()), tuple(others.values()), _rehearsal_grade)


async def _rehearsal_grade(task: Task, answer: str) -> Grade:
    return rehearsal.grade(task, answer)


class _Line(BaseModel):
    """One question of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str = ""
    question: str = Field(min_length=1)
    answer: str | int | float
    grader: Literal["exact", "integer", "contains"] | None = None
    tags: list[str] = []
    difficulty: float | int | None = None


def read_tasks(path: Path) -> tuple[Task, ...]:
    """The questions of a JSONL file: question and answer, perhaps id, grader, tags, difficulty.

    Without a grader an integer answer is graded as one, any other exactly. Without an id the
    question's digest is taken.

    Raises:
        ConfigError: the file cannot be read, or a line of it cannot be used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; write one JSON object a line") from None
    tasks: dict[TaskId, Task] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        task = _task(line, f"{path}, line {number}")
        if task.id in tasks:
            raise ConfigError(f"{path}, line {number}: a task with the id {task.id} came before")
        tasks[task.id] = task
    if not tasks:
        raise ConfigError(f"{path} has no questions; write one JSON object a line")
    return tuple(tasks.values())


def _task(text: str, where: str) -> Task:
    try:
        line = _Line.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = f"{first['loc'][0]}: " if first["loc"] else ""
        raise ConfigError(f"{where}: {field}{first['msg']}") from None
    target = str(line.answer)
    if not target.strip():
        raise ConfigError(f"{where}: the answer is empty")
    grader = line.grader or ("integer" if is_integer(target) else "exact")
    if grader == "integer" and not is_integer(target):
        raise ConfigError(f"{where}: the answer {target!r} is no integer; name another grader")
    digest = blake2b(line.question.encode("utf-8", "replace"), digest_size=8).hexdigest()
    difficulty = None if line.difficulty is None else float(line.difficulty)
    return Task(
        TaskId(line.id or digest), line.question, target, grader, tuple(line.tags), difficulty
    )
