"""The outcomes file: one JSON line per question, with each worker's answers and scores.

The shortest line is:

    {"question": "2+2?", "workers": {"oboe": {"score": 1}}}

A question may also have `id`, `family` and `target` (the correct answer). `question` may be left
out if `id` is that of a benchmark's question (`gsm8k/81817ecac799`): the text is read from the data
folder, or is the id if the question is not there or is private.

Instead of `score` a worker may have `scores`, one per run (null if ungraded), with as many
`answers` (extracted, null if none) and `replies` (full texts). `runs` is the number of runs of
which `score` is the mean, by default 1. Each of `usd`, `input_tokens`, `output_tokens` and
`seconds` is a number that holds for every run, or, beside `scores`, a list with a number per run.
If one of these is missing, it is unknown and not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any, cast

import orjson

from batuta.environment import benchmark_folder
from batuta.errors import SourceError, report_unwritable
from batuta.lab.tasks.datasets import DATASETS, load_tasks, local_files
from batuta.lab.tasks.datasets.rows import ROW_FAULTS, Row, read_rows
from batuta.lab.tasks.graders.answer_form import strip_edges
from batuta.language.answer_extraction import final_answer

EXAMPLE = '{"question": "2+2?", "workers": {"oboe": {"score": 1}}}'
"""The shortest line of a file of outcomes."""

_EDGES = " \t*_`\"'$()"
_NUMBERS = ("usd", "input_tokens", "output_tokens", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutcome:
    """A worker's runs on a question."""

    scores: tuple[float, ...]
    """Scores of the runs in [0, 1], or their mean alone; NaN if ungraded."""
    runs: int
    """The number of runs; larger than the number of scores if only their mean is known."""
    answers: tuple[str | None, ...] = ()
    """Answers of the runs, extracted from the replies if not given; empty if none is known."""
    replies: tuple[str | None, ...] = ()
    """Replies of the runs; empty if none is known."""
    usd: tuple[float, ...] = ()
    """Dollars of each run. Here and below, NaN means unknown, and () that all are unknown."""
    input_tokens: tuple[float, ...] = ()
    output_tokens: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    @property
    def graded_runs(self) -> int:
        """The number of runs that have a score, or whose mean is the score."""
        graded = sum(not isnan(score) for score in self.scores)
        return self.runs if graded == len(self.scores) else graded


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeLine:
    """A question, and the runs of each worker on it; texts that the line lacks are empty."""

    question: str
    """The question's text; empty until it is read from the data folder."""
    workers: Mapping[str, WorkerOutcome]
    id: str = ""
    family: str = ""
    target: str = ""
    is_named_by_id: bool = False
    """Whether the line has no text; then `question` is read from the data folder, or is the id."""


@dataclass(slots=True, kw_only=True)
class OutcomeCollector:
    """Collects runs in any order and groups them by question."""

    facts: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """The fields of each question, by its id, or by its text if it has no id."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = field(
        default_factory=dict[str, dict[str, list[dict[str, Any]]]]
    )
    """The runs of each worker, by the key of the question as in `facts`."""
    differing: int = 0
    """Number of runs whose question has a known id, but not the text that is kept for it."""
    left_out: list[str] = field(default_factory=list[str])
    """Descriptions of the runs with a score of NaN or infinity, which is not a grade."""

    def add_run(self, question: Mapping[str, str], worker: str, run: Mapping[str, Any]) -> None:
        """Add a run of a worker.

        A question has `question`, and may have `id`, `family` and `target`; of questions with the
        same id, the first is kept. A run may have `score`, `answer`, `reply`, `usd`,
        `input_tokens`, `output_tokens`, `seconds`. A run with a NaN or infinite score is left out.
        """
        key = question.get("id") or question["question"]
        score = run.get("score")
        if isinstance(score, float) and not isfinite(score):
            self.left_out.append(f"{worker} on {key} (score {score})")
            return
        known = self.facts.setdefault(key, dict(question))
        self.differing += known["question"] != question["question"]
        self.runs.setdefault(key, {}).setdefault(worker, []).append(
            {name: None if _is_nan(value) else value for name, value in run.items()}
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each question, in the order of their first runs."""
        return [
            {
                **{name: text for name, text in facts.items() if text},
                "workers": {one: _joined_runs(runs) for one, runs in self.runs[key].items()},
            }
            for key, facts in self.facts.items()
        ]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def _joined_runs(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of the runs as lists, without fields that no run has."""
    found: dict[str, Any] = {"scores": [run.get("score") for run in runs]}
    for one, many in (("answer", "answers"), ("reply", "replies"), *((n, n) for n in _NUMBERS)):
        if any(run.get(one) is not None for run in runs):
            found[many] = [run.get(one) for run in runs]
    return found


def write_outcome_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write the rows to a file that `read_outcome_lines` reads.

    Raises:
        StoreError: the file cannot be written.
    """
    lines = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    with report_unwritable(path):
        path.write_bytes(lines)


def read_outcome_lines(path: Path) -> tuple[OutcomeLine, ...]:
    """Read the lines of a file in this format, plain, .gz or .zst.

    Raises:
        SourceError: the file or a benchmark that has its questions cannot be read, the file has no
            outcome, or a line has another form.
    """
    lines: list[OutcomeLine] = []
    for number, row in enumerate(read_rows(path), start=1):
        try:
            lines.append(parse_outcome_line(row))
        except ROW_FAULTS as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise SourceError(f"{path}: question {number} cannot be used: {reason}") from None
    if not any(line.workers for line in lines):
        raise SourceError(f"{path} has no outcomes: write one question per line, such as {EXAMPLE}")
    return _with_questions(lines)


def _with_questions(lines: Sequence[OutcomeLine]) -> tuple[OutcomeLine, ...]:
    texts = find_texts(line.id for line in lines if not line.question)
    return tuple(
        line
        if line.question
        else replace(line, question=texts.get(line.id, line.id), is_named_by_id=True)
        for line in lines
    )


def parse_outcome_line(row: Row) -> OutcomeLine:
    """Parse the JSON object of a line.

    Raises:
        KeyError: the line has neither question nor id, it has no workers, or a worker has no score.
        TypeError: a field has another form.
        ValueError: a number cannot be read, a score is not in [0, 1], another number is negative
            or not finite, `runs` is below 1, or lists are of different lengths.
    """
    workers = _as_object(row["workers"], "the field workers")
    question = "" if "question" not in row and row.get("id") else row["question"]
    if not isinstance(question, str):
        raise TypeError("its question is not a string")
    return OutcomeLine(
        question=question,
        workers={str(name): _parse_outcome(name, runs) for name, runs in workers.items()},
        id=_field_text(row, "id"),
        family=_field_text(row, "family"),
        target=_field_text(row, "target"),
    )


def _parse_outcome(worker: str, value: Any) -> WorkerOutcome:
    data = _as_object(value, f"the outcome of {worker}")
    scores = tuple(map(_read_score, _read_list(data, "scores")))
    runs = len(scores) or int(data.get("runs", 1))
    scores = scores or (_read_score(data["score"]),)
    if runs < len(scores):
        raise ValueError(f"{runs} runs with {len(scores)} scores")
    replies = _read_texts(data, "replies", len(scores))
    answers = _read_texts(data, "answers", len(scores)) or tuple(
        None if reply is None else stated_answer(reply) for reply in replies
    )
    numbers = {name: _per_run(data.get(name), name, len(scores)) for name in _NUMBERS}
    return WorkerOutcome(scores=scores, runs=runs, answers=answers, replies=replies, **numbers)


def stated_answer(reply: str) -> str | None:
    """Return the marked answer or the last line, in a comparable form; None if there is none."""
    found = final_answer(reply)
    return (
        None if found is None else strip_edges(" ".join(found.split()), _EDGES).casefold() or None
    )


def _as_object(value: Any, what: str) -> Row:
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} is {value!r}, which is not an object")
    return cast("Row", value)


def _field_text(row: Row, name: str) -> str:
    value = row.get(name)
    return "" if value is None else str(value)


def _read_list(data: Row, name: str) -> list[Any]:
    value: Any = data.get(name)
    if value is not None and not isinstance(value, list):
        raise TypeError(f"{name} is not a list")
    return cast("list[Any]", value) or []


def _read_texts(data: Row, name: str, runs: int) -> tuple[str | None, ...]:
    found = tuple(None if text is None else str(text) for text in _read_list(data, name))
    if found and len(found) != runs:
        raise ValueError(f"{len(found)} {name} with {runs} scores")
    return found


def _per_run(value: Any, name: str, runs: int) -> tuple[float, ...]:
    """Return a number for each run; a single number holds for all."""
    if value is None:
        return ()
    given = cast("list[Any]", value) if isinstance(value, list) else [value] * runs
    if len(given) != runs:
        raise ValueError(f"{len(given)} {name} with {runs} scores")
    return tuple(nan if one is None or _is_nan(one) else _read_amount(one, name) for one in given)


def _read_amount(value: Any, name: str) -> float:
    amount = float(value)
    if not (isfinite(amount) and amount >= 0):
        raise ValueError(f"{name} of {value} is not an amount; write a number of at least 0")
    return amount


def _read_score(value: Any) -> float:
    if value is None or _is_nan(value):
        return nan
    score = float(value)
    if not 0 <= score <= 1:
        raise ValueError(f"a score of {value} is not in [0, 1]")
    return score


Importer = Callable[[tuple[Path, ...], OutcomeCollector, str], None]
"""Reads another program's files into the collector; the text names the worker if no file does."""


def find_texts(ids: Iterable[str]) -> dict[str, str]:
    """Return the texts of questions, by id, from the benchmarks in the data folder.

    Private and unknown questions are left out.

    Raises:
        SourceError: a file of a benchmark has changed or cannot be read.
    """
    wanted: dict[str, set[str]] = {}
    for id_ in ids:
        wanted.setdefault(id_.partition("/")[0], set()).add(id_)
    found: dict[str, str] = {}
    for name, wanted_ids in wanted.items():
        for split in _local_splits(name):
            if not wanted_ids - found.keys():
                break
            tasks = load_tasks(f"{name}:{split}")
            found |= {
                str(task.id): task.question
                for task in tasks
                if task.id in wanted_ids and not task.private
            }
    return found


def _local_splits(name: str) -> list[str]:
    source, folder = DATASETS.get(name), benchmark_folder()
    return [s for s in source.splits if local_files(source, s, folder)] if source else []
