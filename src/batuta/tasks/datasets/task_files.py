"""Tasks of one's own: a file of JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from batuta.core import Task, TaskId
from batuta.errors import SourceError
from batuta.tasks.datasets.dataset import LETTERS, MultipleChoiceQuestion, as_json, text_digest
from batuta.tasks.datasets.rows import Row, read_rows

_INTEGER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)")
_FIELDS = {
    "id",
    "question",
    "answer",
    "options",
    "grader",
    "scoring",
    "tags",
    "difficulty",
    "data",
}
LIKELIHOOD = "log-likelihood"
LIKELIHOOD_BY_LENGTH = "log-likelihood-by-length"
"""What `scoring` may be: options are compared by how likely a model finds their texts, as they are
or divided by their number of characters; or their letters, where its server tells no more."""


def read_task_file(path: Path, seed: int | None = 0) -> tuple[Task, ...]:
    """The tasks of a file with a JSON object a line.

    A line has `question` and `answer`, and may have `id`, `options` (a list; the answer is then a
    letter), `grader` (default: choice with options, integer for an integer, else exact), `scoring`
    (`log-likelihood` or `log-likelihood-by-length`, with options), `tags`, `difficulty`, `data`.

    Raises:
        SourceError: a line that cannot be used; the sentence names it.
    """
    return make_tasks(read_rows(path), path, seed)


def make_tasks(rows: Iterable[Row], path: Path, seed: int | None) -> tuple[Task, ...]:
    """The tasks of rows, which came from that file; see `read_task_file`.

    Raises:
        SourceError: a row that cannot be used; the sentence names it.
    """
    tasks: dict[TaskId, Task] = {}
    for number, row in enumerate(rows, 1):
        try:
            task = _make_task(row, seed)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SourceError(f"task {number} of {path} is no task: {_error_text(error)}") from None
        if task.id in tasks:
            raise SourceError(
                f"task {number} of {path} has the id {task.id} of one before it: leave one out, or "
                "give each an id of its own"
            )
        tasks[task.id] = task
    if not tasks:
        raise SourceError(f"{path} has no tasks; write one JSON object a line")
    return tuple(tasks.values())


def _make_task(row: Row, seed: int | None) -> Task:
    question: Any = row["question"]
    if not isinstance(question, str) or not question.strip():
        raise ValueError("its question is not a text")
    _check_fields(row)
    id_ = TaskId(str(row["id"]) if "id" in row else f"own/{text_digest(question)}")
    tags = tuple(str(tag) for tag in row.get("tags", ()))
    difficulty = None if row.get("difficulty") is None else float(row["difficulty"])
    answer = str(row["answer"]).strip()
    scoring = row.get("scoring")
    if options := row.get("options"):
        task = _make_question(
            id_, question, options=options, answer=answer, tags=tags, difficulty=difficulty
        ).to_task(seed)
        if not scoring:
            return task
        scored = {**json.loads(task.data), "scoring": scoring, "stem": question}
        return replace(task, data=as_json(scored))
    if scoring:
        raise ValueError(f"it is scored by {scoring}, which needs options")
    data = row.get("data", "")
    text = data if isinstance(data, str) else as_json(data)
    grader = row.get("grader") or ("integer" if _INTEGER.fullmatch(answer) else "exact")
    return Task(
        id=id_,
        question=question,
        target=answer,
        grader=grader,
        tags=tags,
        difficulty=difficulty,
        data=text,
    )


def _check_fields(row: Row) -> None:
    if unknown := sorted(set(row) - _FIELDS):
        raise ValueError(f"it has the unknown field {unknown[0]!r}")
    if isinstance(row["answer"], bool) or row["answer"] is None:
        raise ValueError("its answer is neither text nor a number")
    if not str(row["answer"]).strip() and not row.get("data"):
        raise ValueError("its answer is empty")
    if row.get("scoring") not in {None, LIKELIHOOD, LIKELIHOOD_BY_LENGTH}:
        raise ValueError(f"its scoring is neither {LIKELIHOOD!r} nor {LIKELIHOOD_BY_LENGTH!r}")
    if isinstance(row.get("tags"), str):
        raise TypeError("its tags are not a list")


def _make_question(
    id_: TaskId,
    question: str,
    options: Sequence[str],
    answer: str,
    *,
    tags: tuple[str, ...],
    difficulty: float | None,
) -> MultipleChoiceQuestion:
    right = LETTERS.find(answer.upper()) if len(answer) == 1 else -1
    if not 0 <= right < len(options):
        raise ValueError(f"its answer is not the letter of one of its {len(options)} options")
    return MultipleChoiceQuestion(
        id=id_,
        stem=question,
        options=tuple(options),
        correct_index=right,
        tags=tags,
        difficulty=difficulty,
    )


def _error_text(error: Exception) -> str:
    return f"it has no field {error}" if isinstance(error, KeyError) else str(error)
