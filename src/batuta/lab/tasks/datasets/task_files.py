"""Reads users' own tasks from a file of JSON lines."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from batuta.core import Task, TaskId
from batuta.errors import SourceError
from batuta.lab.tasks.datasets.answer_values import (
    answer_text,
    is_missing,
    read_options,
    read_tags,
    whole_number,
)
from batuta.lab.tasks.datasets.dataset import MultipleChoiceQuestion, as_json, text_digest
from batuta.lab.tasks.datasets.rows import ROW_FAULTS, Row, read_rows

_FIELDS = {
    "id",
    "question",
    "answer",
    "options",
    "grader",
    "tags",
    "difficulty",
    "data",
}


def read_task_file(path: Path, seed: int | None = 0) -> tuple[Task, ...]:
    """Read the tasks of a file with a JSON object per line.

    A line has `question` and `answer`, and may have `id`, `options` (see `read_options`; the answer
    is then a letter), `grader` (default: choice with options, integer for an integer, else exact),
    `tags`, `difficulty`, `data`. Empty, null and NaN fields count as missing.

    Raises:
        SourceError: a line cannot be used; the message names it.
    """
    return make_tasks(read_rows(path), path, seed)


def make_tasks(rows: Iterable[Row], path: Path, seed: int | None) -> tuple[Task, ...]:
    """Make tasks of rows that came from that file, as `read_task_file` describes.

    Raises:
        SourceError: a row cannot be used; the message names it.
    """
    tasks: dict[TaskId, Task] = {}
    for number, row in enumerate(rows, 1):
        try:
            task = _make_task(row, seed)
        except ROW_FAULTS as error:
            raise SourceError(
                f"task {number} of {path} cannot be used: {_error_text(error)}"
            ) from None
        if task.id in tasks:
            raise SourceError(
                f"task {number} of {path} has the same id {task.id} as an earlier one: remove one, "
                "or give each its own id"
            )
        tasks[task.id] = task
    if not tasks:
        raise SourceError(f"{path} has no tasks; write one JSON object a line")
    return tuple(tasks.values())


def _make_task(row: Row, seed: int | None) -> Task:
    question: Any = row["question"]
    if not isinstance(question, str) or not question.strip():
        raise ValueError("its question is not a text")
    answer = answer_text(row["answer"])
    given = {name: value for name, value in row.items() if not is_missing(value)}
    _check_fields(row, given)
    id_ = TaskId(answer_text(given["id"]) if "id" in given else f"own/{text_digest(question)}")
    tags = read_tags(given.get("tags"))
    difficulty = float(given["difficulty"]) if "difficulty" in given else None
    if difficulty is not None and not math.isfinite(difficulty):
        raise ValueError(f"its difficulty {difficulty} is not finite")
    if options := given.get("options"):
        return _make_question(
            id_, question, options=options, answer=answer, tags=tags, difficulty=difficulty
        ).to_task(seed)
    data = given.get("data", "")
    grader, target = _grader_and_target(given.get("grader"), answer)
    return Task(
        id=id_,
        question=question,
        target=target,
        grader=grader,
        tags=tags,
        difficulty=difficulty,
        data=data if isinstance(data, str) else as_json(data),
    )


def _grader_and_target(grader: str | None, answer: str) -> tuple[str, str]:
    """Return the grader, `integer` for an integer if none is named, and the target."""
    if grader not in {None, "integer"}:
        return cast("str", grader), answer
    digits = whole_number(answer)
    return (grader or "exact", answer) if digits is None else ("integer", digits)


def _check_fields(row: Row, given: Row) -> None:
    """Raise ValueError for an unknown field, or if neither answer nor data is given."""
    if unknown := sorted(set(map(str, row)) - _FIELDS):
        raise ValueError(f"it has the unknown field {unknown[0]!r}")
    if "answer" not in given and "data" not in given:
        raise ValueError("its answer is empty")


def _make_question(
    id_: TaskId,
    question: str,
    options: Any,
    answer: str,
    *,
    tags: tuple[str, ...],
    difficulty: float | None,
) -> MultipleChoiceQuestion:
    texts = read_options(options)
    wanted = answer.strip("() .:").upper()
    if wanted not in texts:
        raise ValueError(f"its answer is not the letter of one of its {len(texts)} options")
    return MultipleChoiceQuestion(
        id=id_,
        stem=question,
        options=tuple(texts.values()),
        correct_index=list(texts).index(wanted),
        tags=tags,
        difficulty=difficulty,
    )


def _error_text(error: Exception) -> str:
    return f"it has no field {error}" if isinstance(error, KeyError) else str(error)
