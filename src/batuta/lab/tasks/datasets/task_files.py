r"""Reads users' own tasks from a file of rows, such as JSON lines or CSV, or from YAML.

A YAML file has worked examples, a template, defaults, and the questions:

    template: |-
      {examples}

      Question: {question}
      End with a line that begins with `Answer:` and gives your answer.
    example_template: "Question: {question}\nAnswer: {answer}"
    examples:
      - {question: "What is 2 + 3?", answer: 5}
    grader: integer
    tasks:
      - {question: "What is 7 + 8?", answer: 15}

`shots` is the number of examples to show (default: all). Instead of `tasks` there may be `file`, a
file of rows beside the YAML file, and `fields`, which names the columns of the question, the answer
and so on.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from batuta.core import Task, TaskId
from batuta.distribution import install_hint
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

_FIELDS = {"id", "question", "answer", "options", "grader", "tags", "difficulty", "data"}


def read_task_file(path: Path, seed: int | None = 0) -> tuple[Task, ...]:
    """Read the tasks of a file of rows (see `read_rows`); the seed shuffles options, unless None.

    A row has `question` and `answer`; the answer may be missing if there are `data` and no
    `options`. It may have `id`, `grader` (default: integer for an integer, else exact), `tags`,
    `difficulty`, `data`, and `options` (see `read_options`), with which the answer is a letter and
    the grader is always choice. Empty, null and NaN fields count as missing.

    Raises:
        SourceError: the file cannot be read or has no rows, or a row, which the message names,
            cannot be used or has the id of an earlier one.
    """
    return make_tasks(read_rows(path), path, seed)


def make_tasks(rows: Iterable[Row], path: Path, seed: int | None) -> tuple[Task, ...]:
    """Convert the rows of a file to tasks, as `read_task_file` describes.

    Raises:
        SourceError: there are no rows, or a row, which the message names, cannot be used or has the
            id of an earlier one.
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
        how = "write one per line"
        if path.suffix in SUITE_ENDINGS:
            how = "list them under `tasks`, or in the file that `file` names"
        raise SourceError(f"{path} has no tasks: {how}")
    return tuple(tasks.values())


def _make_task(row: Row, seed: int | None) -> Task:
    question: Any = row["question"]
    if not isinstance(question, str) or not question.strip():
        raise ValueError("its question is not a string, or is empty")
    given = {name: value for name, value in row.items() if not is_missing(value)}
    _check_fields(row, given)
    answer = answer_text(given.get("answer", ""))
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
    """Return the grader (by default `integer` for an integer, else `exact`) and the target."""
    if grader not in {None, "integer"}:
        return cast("str", grader), answer
    digits = whole_number(answer)
    return (grader or "exact", answer) if digits is None else ("integer", digits)


def _check_fields(row: Row, given: Row) -> None:
    """Raise `ValueError` for an unknown field or a missing answer, `TypeError` for a wrong grader.

    The answer may be missing if there are `data` and no `options`.
    """
    if unknown := sorted(set(map(str, row)) - _FIELDS):
        raise ValueError(f"it has the unknown field {unknown[0]!r}")
    if "answer" not in given and ("data" not in given or "options" in given):
        raise ValueError("its answer is empty" if "answer" in row else "it has no field 'answer'")
    if not isinstance(given.get("grader", ""), str):
        raise TypeError(f"its grader {given['grader']!r} is not a name")


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


SUITE_ENDINGS = frozenset({".yaml", ".yml"})
_SUITE_FIELDS = frozenset(
    {"template", "example_template", "examples", "shots", "grader", "tags", "tasks", "file",
     "fields"}
)  # fmt: skip
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_EXAMPLE_TEMPLATE = "{question}\n{answer}"
_PLAIN_TEMPLATE = "{question}"
_SHOWN_TEMPLATE = "{examples}\n\n{question}"


def read_task_suite(path: Path, seed: int | None = 0) -> tuple[Task, ...]:
    """Read the tasks of a YAML file; the seed shuffles options, unless None.

    Raises:
        SourceError: a file cannot be read, PyYAML is missing, or a part, which the message names,
            is invalid.
    """
    suite = _read_yaml(path)
    if unknown := sorted(set(suite) - _SUITE_FIELDS):
        raise SourceError(f"{path} has the unknown field {unknown[0]!r}")
    if ("tasks" in suite) == ("file" in suite):
        raise SourceError(f"{path} needs `tasks` or `file`, and not both")
    shown = _render_examples(suite, path)
    template = suite.get("template") or (_SHOWN_TEMPLATE if shown else _PLAIN_TEMPLATE)
    if not isinstance(template, str) or "{question}" not in template:
        raise SourceError(f"the template of {path} has no {{question}}")
    defaults = {name: suite[name] for name in ("grader", "tags") if name in suite}

    def rows() -> Iterator[Row]:
        for given in _suite_rows(suite, path):
            row = {k: v for k, v in given.items() if k not in defaults or not is_missing(v)}
            question = row.get("question")
            if isinstance(question, str) and question.strip():
                texts = {"examples": shown, "question": question}
                row["question"] = _fill_template(template, texts)
            yield {**defaults, **row}

    return make_tasks(rows(), path, seed)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise SourceError(f"reading YAML needs PyYAML: {install_hint('tasks')}") from None
    try:
        found = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an invalid date
        raise SourceError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{path} is not a mapping of fields, such as `tasks`")
    return {str(name): value for name, value in cast("Mapping[Any, Any]", found).items()}


def _render_examples(suite: Mapping[str, Any], path: Path) -> str:
    """Render the first `shots` examples with their template, separated by blank lines."""
    examples: Any = suite.get("examples") or []
    template: Any = suite.get("example_template", _EXAMPLE_TEMPLATE)
    if not isinstance(examples, list):
        raise SourceError(f"the examples of {path} are not a list")
    listed = cast("list[Any]", examples)
    if not isinstance(template, str) or "{question}" not in template or "{answer}" not in template:
        raise SourceError(f"the example_template of {path} needs {{question}} and {{answer}}")
    shots: Any = suite.get("shots", len(listed))
    if not isinstance(shots, int) or not 0 <= shots <= len(listed):
        raise SourceError(
            f"`shots` of {path} is {shots}: write a number from 0 to {len(listed)} (all examples)"
        )
    shown: list[str] = []
    for number, example in enumerate(listed[:shots], 1):
        if not isinstance(example, Mapping) or not {"question", "answer"} <= set(
            cast("Mapping[str, Any]", example)
        ):
            raise SourceError(f"example {number} of {path} needs a question and an answer")
        texts = {name: str(text) for name, text in cast("Mapping[str, Any]", example).items()}
        shown.append(_fill_template(template, texts))
    return "\n\n".join(shown)


def _fill_template(template: str, texts: Mapping[str, str]) -> str:
    """Fill in all placeholders in one pass, so that those in inserted texts stay."""
    return _PLACEHOLDER.sub(lambda found: texts.get(found[1], found[0]), template)


def _suite_rows(suite: Mapping[str, Any], path: Path) -> Iterator[Row]:
    if "tasks" in suite:
        rows: Any = suite["tasks"]
        listed = cast("list[Any]", rows) if isinstance(rows, list) else [None]
        if not all(isinstance(row, Mapping) for row in listed):
            raise SourceError(f"the tasks of {path} are not a list of mappings")
        yield from cast("list[Row]", listed)
        return
    named: Any = suite.get("fields") or {}
    columns = cast("Mapping[Any, Any]", named).values() if isinstance(named, Mapping) else [None]
    if not all(isinstance(column, str | int) for column in columns):
        raise SourceError(f"the fields of {path} do not map field names to columns")
    fields = cast("Mapping[str, str]", named)
    for number, row in enumerate(read_rows(path.parent / str(suite["file"])), 1):
        if missing := [column for column in fields.values() if column not in row]:
            has = ", ".join(map(str, row)) or "nothing"
            raise SourceError(f"row {number} of {suite['file']} has no {missing[0]}; it has {has}")
        yield {field: row[column] for field, column in fields.items()} if fields else row
