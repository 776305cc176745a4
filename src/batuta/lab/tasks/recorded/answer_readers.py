"""Reads records with answers: Reasoning Gym, MMLU-Pro, MedAgentsBench, RouteLLM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batuta.core import Task, TaskId
from batuta.lab.tasks.datasets.dataset import LETTERS
from batuta.lab.tasks.datasets.rows import Row, read_rows
from batuta.lab.tasks.recorded.outcome_cube import OutcomeCube, ParquetTable, TextColumn
from batuta.lab.tasks.recorded.outcomes import GRADER, RecordedOutcomes, RecordedUsage

MMLU_PRO_SEVEN_MODELS = (
    "gpt-4o-2024-05-13",
    "gemini-1.5-pro-002",
    "gemini-1.5-flash-002",
    "DeepSeek-Coder-V2",
    "Meta-Llama-3_1-70B-Instruct",
    "deepseek-v2-chat",
    "jamba-1.5-large",
)
"""A pool of seven model families without the model that is far ahead of the others."""

_REASONING_GYM_THRESHOLD = 0.99
"""The score from which the record counts an answer as right, as its scorers give partial credit."""


def read_reasoning_gym(folder: Path, part: str) -> RecordedOutcomes:
    """Read `easy` (three samples of most models) or `hard`; all models answered its questions."""
    table = ParquetTable(folder / "outcomes.parquet")
    questions = table.names("query_id")
    is_of_part = [name.startswith(f"{part}/") for name in questions.values]
    rows = np.asarray([*is_of_part, False])[questions.codes]
    samples = table.numbers("sample").astype(np.int64)[rows]
    cube = OutcomeCube(questions.select(rows), table.names("model").select(rows), samples)
    answers = table.names("answer")
    facts = _read_questions(folder)
    return RecordedOutcomes(
        name=f"reasoning_gym/{part}",
        tasks=tuple(
            _make_task(
                id_, facts[id_]["question"], facts[id_]["expected_answer"], id_.split("/")[1:3]
            )
            for id_ in cube.questions
        ),
        families=tuple(id_.split("/")[2] for id_ in cube.questions),
        models=cube.models,
        scores_qms=cube.arrange(table.numbers("score")[rows], np.nan, np.float32),
        solved_from=_REASONING_GYM_THRESHOLD,
        answers_qms=cube.arrange(_answer_codes(answers)[rows], -1, np.int32),
        answers=answers.values,
    ).drop_incomplete()


def read_mmlu_pro(folder: Path, part: str) -> RecordedOutcomes:
    """Read `seven` models or `all` 32, on questions that all were asked in the same words."""
    table = ParquetTable(folder / "outcomes.parquet", [("same_question", "==", 1)])
    cube = OutcomeCube(table.names("query_id"), table.names("model"))
    answers = table.names("answer")
    facts = _read_questions(folder)
    record = RecordedOutcomes(
        name=f"mmlu_pro/{part}",
        tasks=tuple(
            _make_task(
                f"mmlu-pro/{id_}",
                _append_lettered_options(facts[id_]["question"], facts[id_]["options"]),
                facts[id_]["answer"],
                (facts[id_]["category"],),
            )
            for id_ in cube.questions
        ),
        families=tuple(facts[id_]["category"] for id_ in cube.questions),
        models=cube.models,
        scores_qms=cube.arrange(table.numbers("correct"), np.nan, np.float32),
        solved_from=None,
        answers_qms=cube.arrange(_answer_codes(answers), -1, np.int32),
        answers=answers.values,
    )
    return record.select(
        models=MMLU_PRO_SEVEN_MODELS if part == "seven" else None
    ).drop_incomplete()


def read_medagentsbench(folder: Path, part: str) -> RecordedOutcomes:
    """Read `test` or `hard` with ten models, or `methods`: 40 pairs of model and method on `hard`.

    A question that a model was not asked earns it nothing, as in the published figures.
    """
    keep = [("split", "==", "test" if part == "test" else "test_hard")]
    if part != "methods":
        keep.append(("method", "==", "zero_shot"))
    table = ParquetTable(folder / "outcomes.parquet", keep)
    systems = table.names("model", "method") if part == "methods" else table.names("model")
    cube = OutcomeCube(table.names("query_id"), systems)
    answers = table.names("answer")
    facts = _read_questions(folder)
    spent = RecordedUsage(
        input_qms=cube.arrange(table.numbers("prompt_tokens"), -1, np.int32),
        output_qms=cube.arrange(table.numbers("completion_tokens"), -1, np.int32),
        usd_qms=cube.arrange(table.numbers("cost_usd"), np.nan, np.float64),
        seconds_qms=cube.arrange(table.numbers("latency_s"), np.nan, np.float32),
    )
    return RecordedOutcomes(
        name=f"medagentsbench/{part}",
        tasks=tuple(
            _make_task(
                id_,
                _append_options(facts[id_]["question"], facts[id_]["options"]),
                facts[id_]["answer"],
                (facts[id_]["dataset"],),
            )
            for id_ in cube.questions
        ),
        families=tuple(facts[id_]["dataset"] for id_ in cube.questions),
        models=cube.models,
        scores_qms=cube.arrange(table.numbers("correct"), np.nan, np.float32),
        solved_from=None,
        answers_qms=cube.arrange(_answer_codes(answers), -1, np.int32),
        answers=answers.values,
        texts=None,
        usage=spent,
    )


def read_routellm(folder: Path, part: str) -> RecordedOutcomes:
    """Read `mmlu` or `gsm8k` with two models; only GSM8K has the answers' texts."""
    table = ParquetTable(folder / "outcomes.parquet")
    tasks = table.names("task")
    rows = np.asarray([name.startswith(part) for name in tasks.values])[tasks.codes]
    questions, models = table.names("query_id").select(rows), table.names("model").select(rows)
    cube = OutcomeCube(questions, models)
    facts = _read_questions(folder)
    return RecordedOutcomes(
        name=f"routellm/{part}",
        tasks=tuple(
            _make_task(f"routellm/{id_}", facts[id_]["prompt"], "", ()) for id_ in cube.questions
        ),
        families=tuple(id_.partition("/")[0] for id_ in cube.questions),
        models=cube.models,
        scores_qms=cube.arrange(table.numbers("score")[rows], np.nan, np.float32),
    )


def _make_task(id_: str, question: str, target: object, tags: tuple[str, ...] | list[str]) -> Task:
    return Task(
        id=TaskId(id_), question=question, target=str(target), grader=GRADER, tags=tuple(tags)
    )


def _read_questions(folder: Path) -> dict[str, Row]:
    """Return the rows of the questions by id."""
    return {str(row["query_id"]): row for row in read_rows(folder / "queries.jsonl.zst")}


def _answer_codes(answers: TextColumn) -> NDArray[np.float64]:
    """Return the answers' codes; empty answers and the table's "nan" count as none."""
    blank = [value.strip().casefold() in {"", "nan"} for value in (*answers.values, "")]
    return np.where(np.asarray(blank)[answers.codes], -1, answers.codes).astype(np.float64)


def _append_lettered_options(question: str, options: list[str]) -> str:
    return _append_options(question, dict(zip(LETTERS, options, strict=False)))


def _append_options(question: str, options: dict[str, str]) -> str:
    lines = "\n".join(f"{letter}. {option}" for letter, option in options.items())
    return f"{question.strip()}\n\n{lines}"
