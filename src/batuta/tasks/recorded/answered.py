"""Readers of records that have answers: Reasoning Gym, MMLU-Pro, MedAgentsBench, RouteLLM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batuta.core import Task, TaskId
from batuta.tasks.recorded.cube import Cube, Names, Table
from batuta.tasks.recorded.record import GRADER, Recorded, Spent
from batuta.tasks.sources.rows import Row, read_rows
from batuta.tasks.sources.source import LETTERS

MMLU_PRO_SEVEN = (
    "gpt-4o-2024-05-13",
    "gemini-1.5-pro-002",
    "gemini-1.5-flash-002",
    "DeepSeek-Coder-V2",
    "Meta-Llama-3_1-70B-Instruct",
    "deepseek-v2-chat",
    "jamba-1.5-large",
)
"""A pool of seven families without the model that is far above the others."""

_REASONING_GYM_SOLVED = 0.99
"""Its scorers give partial credit; the record counts an answer as right from here."""


def reasoning_gym(folder: Path, part: str) -> Recorded:
    """`easy` (three samples of most models) or `hard`; the questions that all models answered."""
    table = Table(folder / "outcomes.parquet")
    questions = table.names("query_id")
    mine = [name.startswith(f"{part}/") for name in questions.values]
    rows = np.asarray([*mine, False])[questions.codes]
    samples = table.numbers("sample").astype(np.int64)[rows]
    cube = Cube(questions.only(rows), table.names("model").only(rows), samples)
    answers = table.names("answer")
    facts = _facts(folder)
    return Recorded(
        f"reasoning_gym/{part}",
        tuple(
            _task(id_, facts[id_]["question"], facts[id_]["expected_answer"], id_.split("/")[1:3])
            for id_ in cube.questions
        ),
        tuple(id_.split("/")[2] for id_ in cube.questions),
        cube.models,
        cube.place(table.numbers("score")[rows], np.nan, np.float32),
        _REASONING_GYM_SOLVED,
        cube.place(_counted(answers)[rows], -1, np.int32),
        answers.values,
    ).complete()


def mmlu_pro(folder: Path, part: str) -> Recorded:
    """`seven` models, or `all` 32; the questions that all of them were asked in the same words."""
    table = Table(folder / "outcomes.parquet", [("same_question", "==", 1)])
    cube = Cube(table.names("query_id"), table.names("model"))
    answers = table.names("answer")
    facts = _facts(folder)
    record = Recorded(
        f"mmlu_pro/{part}",
        tuple(
            _task(
                f"mmlu-pro/{id_}",
                _lettered(facts[id_]["question"], facts[id_]["options"]),
                facts[id_]["answer"],
                (facts[id_]["category"],),
            )
            for id_ in cube.questions
        ),
        tuple(facts[id_]["category"] for id_ in cube.questions),
        cube.models,
        cube.place(table.numbers("correct"), np.nan, np.float32),
        None,
        cube.place(_counted(answers), -1, np.int32),
        answers.values,
    )
    return record.select(models=MMLU_PRO_SEVEN if part == "seven" else None).complete()


def medagentsbench(folder: Path, part: str) -> Recorded:
    """`test` or `hard` with ten models, `methods`: 40 pairs of model and method on `hard`.

    A question that an arm was not asked earns it nothing, as in the published figures.
    """
    keep = [("split", "==", "test" if part == "test" else "test_hard")]
    if part != "methods":
        keep.append(("method", "==", "zero_shot"))
    table = Table(folder / "outcomes.parquet", keep)
    arms = table.names("model", "method") if part == "methods" else table.names("model")
    cube = Cube(table.names("query_id"), arms)
    answers = table.names("answer")
    facts = _facts(folder)
    spent = Spent(
        cube.place(table.numbers("prompt_tokens"), -1, np.int32),
        cube.place(table.numbers("completion_tokens"), -1, np.int32),
        cube.place(table.numbers("cost_usd"), np.nan, np.float64),
        cube.place(table.numbers("latency_s"), np.nan, np.float32),
    )
    return Recorded(
        f"medagentsbench/{part}",
        tuple(
            _task(
                id_,
                _optioned(facts[id_]["question"], facts[id_]["options"]),
                facts[id_]["answer"],
                (facts[id_]["dataset"],),
            )
            for id_ in cube.questions
        ),
        tuple(facts[id_]["dataset"] for id_ in cube.questions),
        cube.models,
        cube.place(table.numbers("correct"), np.nan, np.float32),
        None,
        cube.place(_counted(answers), -1, np.int32),
        answers.values,
        None,
        spent,
    )


def routellm(folder: Path, part: str) -> Recorded:
    """`mmlu` or `gsm8k`, two models; only GSM8K has the answers' texts."""
    table = Table(folder / "outcomes.parquet")
    tasks = table.names("task")
    rows = np.asarray([name.startswith(part) for name in tasks.values])[tasks.codes]
    questions, models = table.names("query_id").only(rows), table.names("model").only(rows)
    cube = Cube(questions, models)
    facts = _facts(folder)
    return Recorded(
        f"routellm/{part}",
        tuple(_task(f"routellm/{id_}", facts[id_]["prompt"], "", ()) for id_ in cube.questions),
        tuple(id_.partition("/")[0] for id_ in cube.questions),
        cube.models,
        cube.place(table.numbers("score")[rows], np.nan, np.float32),
    )


def _task(id_: str, question: str, target: object, tags: tuple[str, ...] | list[str]) -> Task:
    return Task(TaskId(id_), question, str(target), GRADER, tuple(tags))


def _facts(folder: Path) -> dict[str, Row]:
    """What is known of each question."""
    return {str(row["query_id"]): row for row in read_rows(folder / "queries.jsonl.zst")}


def _counted(answers: Names) -> NDArray[np.float64]:
    """The answers' numbers; an empty answer is none."""
    blank = [not value.strip() for value in (*answers.values, "")]
    return np.where(np.asarray(blank)[answers.codes], -1, answers.codes).astype(np.float64)


def _lettered(question: str, options: list[str]) -> str:
    return _optioned(question, dict(zip(LETTERS, options, strict=False)))


def _optioned(question: str, options: dict[str, str]) -> str:
    lines = "\n".join(f"{letter}. {option}" for letter, option in options.items())
    return f"{question.strip()}\n\n{lines}"
