"""Reads records with scores and few texts: LiveCodeBench, RouterDC, LLMRouter, MathArena."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batuta.core import Task, TaskId
from batuta.lab.tasks.datasets.rows import Row, read_rows
from batuta.lab.tasks.recorded.outcome_cube import OutcomeCube, ParquetTable, TextColumn
from batuta.lab.tasks.recorded.outcomes import GRADER, RecordedOutcomes, RecordedUsage

_SCENARIOS = {"2024": "codegen_2024_8ed5690", "v5": "codegen_v5", "v6": "codegen_v6"}
"""The names in the file of parts that are named differently here."""

_PERCENT = 100


def read_livecodebench(folder: Path, part: str) -> RecordedOutcomes:
    """Read `v6`, `v5`, `2024`, `repair`, `testgen` or `execution`: means of one to ten samples.

    The record has the statements of 880 problems, and programs of o1-mini and o1-preview in `v5`.
    """
    table = ParquetTable(
        folder / "outcomes.parquet", [("scenario", "==", _SCENARIOS.get(part, part))]
    )
    questions, models = table.names("query_id"), table.names("model")
    cube = OutcomeCube(questions, models)
    facts = {row["question_id"]: row for row in read_rows(folder / "queries.jsonl.zst")}
    levels = _first_of(questions, table.names("difficulty"))
    families = _first_of(questions, table.names("platform"))
    return RecordedOutcomes(
        name=f"livecodebench/{part}",
        tasks=tuple(_contest_task(id_, facts, levels[id_]) for id_ in cube.questions),
        families=tuple(
            families[id_] or levels[id_] or id_.partition("/")[0] for id_ in cube.questions
        ),
        models=cube.models,
        scores_qms=cube.mean(table.numbers("pass_at_1") / _PERCENT),
    )


def read_routerdc(folder: Path, part: str) -> RecordedOutcomes:
    """Read `train` or `test`: all files of that part, each as a family.

    A score is the mean of ten samples or, in the files of multiple choice and MATH, the probability
    of the right answer if it was right; RouterDC's own evaluation counts any score above 0.
    """
    table = ParquetTable(folder / "outcomes.parquet")
    return _read_split(
        f"routerdc/{part}",
        table,
        [name.endswith("train") == (part == "train") for name in table.names("split").values],
        folder,
    )


def read_llmrouter(folder: Path, part: str) -> RecordedOutcomes:
    """Read `train` or `test`; a family is a cluster of questions if the record has one."""
    table = ParquetTable(folder / "outcomes.parquet")
    names = table.names("split").values
    return _read_split(f"llmrouter/{part}", table, [name == part for name in names], folder)


def read_matharena(folder: Path, part: str) -> RecordedOutcomes:
    """Read `aime25`: the models that were asked all 30 problems, with up to four samples each.

    The record says how many of a model's samples solved a problem, but not which: their order is
    drawn once with a fixed seed. Tokens and dollars of a call are the model's means.
    """
    table = ParquetTable(folder / "outcomes.parquet")
    questions, models = table.names("query_id"), table.names("model")
    cube = OutcomeCube(questions, models)
    solved = cube.arrange(table.numbers("n_success"), -1, np.int32)[:, :, 0]
    tried = cube.arrange(table.numbers("n_trials"), -1, np.int32)[:, :, 0]
    facts = {row["task_id"]: row for row in read_rows(folder / "queries.jsonl.zst")}
    record = RecordedOutcomes(
        name=f"matharena/{part}",
        tasks=tuple(
            _make_task(id_, facts[id_]["problem"], str(facts[id_]["gold_answer"]))
            for id_ in cube.questions
        ),
        families=tuple(id_.rpartition("_")[0] for id_ in cube.questions),
        models=cube.models,
        scores_qms=_draw_samples(solved, tried),
        usage=_mean_usage(folder, cube.models, (*solved.shape, int(tried.max()))),
    )
    least = tried.min(axis=0)
    return record.select(
        models=[model for model, n in zip(cube.models, least, strict=True) if n > 0]
    )


def _draw_samples(solved_qm: NDArray[np.int32], tried_qm: NDArray[np.int32]) -> NDArray[np.float32]:
    depth = int(tried_qm.max())
    rng = np.random.default_rng(0)
    scores = np.full((*solved_qm.shape, depth), np.nan, np.float32)
    for place in np.ndindex(*solved_qm.shape):
        tried, solved = max(int(tried_qm[place]), 0), int(solved_qm[place])
        scores[place][:tried] = rng.permutation([1.0] * solved + [0.0] * (tried - solved))
    return scores


def _mean_usage(folder: Path, models: tuple[str, ...], shape: tuple[int, ...]) -> RecordedUsage:
    facts = {str(row["model_config"]): row for row in read_rows(folder / "models.json")}

    def per_call(column: str) -> NDArray[np.float64]:
        totals = [float(facts[model][column] or np.nan) for model in models]
        trials = [float(facts[model]["total_trials"]) for model in models]
        means = np.asarray(totals, np.float64) / np.asarray(trials, np.float64)
        return np.broadcast_to(means[None, :, None], shape)

    return RecordedUsage(
        input_qms=np.nan_to_num(per_call("total_input_tokens"), nan=-1).round().astype(np.int32),
        output_qms=np.nan_to_num(per_call("total_output_tokens"), nan=-1).round().astype(np.int32),
        usd_qms=per_call("total_cost"),
        seconds_qms=np.full(shape, np.nan, np.float32),
    )


def _read_split(
    name: str, table: ParquetTable, parts: list[bool], folder: Path
) -> RecordedOutcomes:
    splits = table.names("split")
    rows = np.asarray(parts)[splits.codes]
    questions, models = table.names("query_id").select(rows), table.names("model").select(rows)
    cube = OutcomeCube(questions, models)
    facts = {str(row["query_id"]): row for row in read_rows(folder / "queries.jsonl.zst")}
    return RecordedOutcomes(
        name=name,
        tasks=tuple(_make_task(id_, facts[id_]["question"], "") for id_ in cube.questions),
        families=tuple(_cluster_name(facts[id_]) for id_ in cube.questions),
        models=cube.models,
        scores_qms=cube.arrange(table.numbers("score")[rows], np.nan, np.float32),
    )


def _cluster_name(fact: Row) -> str:
    if "cluster_id" not in fact:
        return str(fact["split"])
    number = fact["cluster_id"]
    return "no cluster" if number is None else f"cluster {number}"


def _first_of(keys: TextColumn, values: TextColumn) -> dict[str, str]:
    """Return the value in each key's first row, or an empty text."""
    _, first = np.unique(keys.codes, return_index=True)
    codes = values.codes[first]
    return {
        key: values.values[code] if code >= 0 else ""
        for key, code in zip(keys.values, codes, strict=True)
    }


def _contest_task(id_: str, facts: dict[str, Row], level: str) -> Task:
    known = facts.get(id_)
    said = known["question_content"] if known else f"[the statement of {id_} was not recorded]"
    starter = known["starter_code"].rstrip() if known else ""
    question = f"{said.strip()}\n\n{starter}" if starter else said.strip()
    levels = {"easy": 1.0, "medium": 2.0, "hard": 3.0}
    return Task(
        id=TaskId(f"livecodebench/{id_}"),
        question=question,
        target="",
        grader=GRADER,
        tags=(),
        difficulty=levels.get(level),
    )


def _make_task(id_: str, question: str, target: str) -> Task:
    return Task(id=TaskId(id_), question=question, target=target, grader=GRADER)
