r"""Reads users' own tasks from YAML: worked examples, a template, defaults, and the questions.

    template: |-
      {examples}

      Question: {question}
      End with a line `Answer: the answer`.
    example_template: "Question: {question}\nAnswer: {answer}"
    examples:
      - {question: "What is 2 + 3?", answer: 5}
    grader: integer
    tasks:
      - {question: "What is 7 + 8?", answer: 15}

Instead of `tasks` there may be `file`, a file of rows beside it, and `fields`, which names the
columns of the question, the answer and so on.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from batuta.core import Task
from batuta.distribution import install_hint
from batuta.errors import SourceError
from batuta.lab.tasks.datasets.answer_values import is_missing
from batuta.lab.tasks.datasets.rows import Row, read_rows
from batuta.lab.tasks.datasets.task_files import make_tasks

SUITE_ENDINGS = frozenset({".yaml", ".yml"})
_FIELDS = frozenset(
    {"template", "example_template", "examples", "shots", "grader", "tags", "tasks", "file",
     "fields"}
)  # fmt: skip
_MARK = re.compile(r"\{(\w+)\}")
_EXAMPLE_TEMPLATE = "{question}\n{answer}"
_PLAIN_TEMPLATE = "{question}"
_SHOWN_TEMPLATE = "{examples}\n\n{question}"


def read_task_suite(path: Path, seed: int | None = 0) -> tuple[Task, ...]:
    """Read the tasks of a YAML file.

    Args:
        path: the file, as described above.
        seed: the seed of the options' order; None keeps it.

    Raises:
        SourceError: the file cannot be read, or a part of it cannot be used, which the message
            names.
    """
    suite = _read_yaml(path)
    if unknown := sorted(set(suite) - _FIELDS):
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
            if isinstance(question, str):
                asked = _fill_template(template, {"examples": shown, "question": question})
                yield {**defaults, **row, "question": asked}
            else:
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
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{path} is not a mapping of fields; see the evaluation page")
    return {str(name): value for name, value in cast("Mapping[Any, Any]", found).items()}


def _render_examples(suite: Mapping[str, Any], path: Path) -> str:
    """Render the first `shots` examples with their template, separated by blank lines."""
    examples: Any = suite.get("examples") or []
    template: Any = suite.get("example_template", _EXAMPLE_TEMPLATE)
    if not isinstance(examples, list):
        raise SourceError(f"the examples of {path} are no list")
    listed = cast("list[Any]", examples)
    if not isinstance(template, str) or "{question}" not in template or "{answer}" not in template:
        raise SourceError(f"the example_template of {path} needs {{question}} and {{answer}}")
    shots: Any = suite.get("shots", len(listed))
    if not isinstance(shots, int) or not 0 <= shots <= len(listed):
        raise SourceError(f"{path} asks for {shots} shots of {len(listed)} examples")
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
    """Fill in all marks together, so that marks within the texts are kept."""
    return _MARK.sub(lambda found: texts.get(found[1], found[0]), template)


def _suite_rows(suite: Mapping[str, Any], path: Path) -> Iterator[Row]:
    if "tasks" in suite:
        rows: Any = suite["tasks"]
        listed = cast("list[Any]", rows) if isinstance(rows, list) else [None]
        if not all(isinstance(row, Mapping) for row in listed):
            raise SourceError(f"the tasks of {path} are no list of mappings")
        yield from cast("list[Row]", listed)
        return
    named: Any = suite.get("fields") or {}
    if not isinstance(named, Mapping):
        raise SourceError(f"the fields of {path} are no mapping of a field to a column")
    fields = cast("Mapping[str, str]", named)
    for number, row in enumerate(read_rows(path.parent / str(suite["file"])), 1):
        if missing := [column for column in fields.values() if column not in row]:
            has = ", ".join(map(str, row)) or "nothing"
            raise SourceError(f"row {number} of {suite['file']} has no {missing[0]}; it has {has}")
        yield {field: row[column] for field, column in fields.items()} if fields else row
