"""Reads recorded sets: one function per set reads the scores, and another the replies, if any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.core import Task, TaskId
from batuta.lab.tasks.datasets.coding import LEVELS
from batuta.lab.tasks.datasets.rows import Row, import_arrow, read_rows
from batuta.lab.tasks.recorded.outcomes import (
    GRADER,
    Integers,
    RecordedOutcomes,
    RecordedUsage,
    ReplyRow,
)


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """A dictionary-encoded column of strings."""

    values: tuple[str, ...]
    """The distinct strings, sorted."""
    codes: NDArray[np.int32]
    """Indices into `values`; -1 if missing."""

    def texts(self) -> list[str]:
        """Return the string of each row; empty if it is missing."""
        return [self.values[code] if code >= 0 else "" for code in self.codes]

    def select(self, rows: NDArray[np.bool_]) -> TextColumn:
        """Return the column of the rows, with only the strings that occur in these rows."""
        present, codes = np.unique(self.codes[rows], return_inverse=True)
        is_missing = present[:1] == -1  # the smallest code, so it comes first
        values = tuple(self.values[int(code)] for code in present.tolist() if code >= 0)
        return TextColumn(values, (codes - int(is_missing.sum())).astype(np.int32))


class ParquetTable:
    """Columns of a Parquet file."""

    def __init__(self, path: Path, keep: Sequence[tuple[str, str, Any]] | None = None) -> None:
        """Read the file.

        `keep` has conditions for the rows, such as `("split", "==", "test")`; None keeps all.
        """
        self._table = import_arrow("pyarrow.parquet").read_table(path, filters=keep)

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Return a column of numbers; NaN where missing."""
        values = self._table.column(column).to_numpy(zero_copy_only=False)
        return np.asarray(values, np.float64)

    def strings(self, *columns: str) -> TextColumn:
        """Return a column of strings; several columns are joined by a space."""
        texts = [self._table.column(column).cast("string") for column in columns]
        joined = import_arrow("pyarrow.compute").binary_join_element_wise(*texts, " ")
        coded = joined.combine_chunks().dictionary_encode()
        values: list[str] = coded.dictionary.to_pylist()
        order = sorted(range(len(values)), key=values.__getitem__)
        rank = np.full(len(values) + 1, -1, np.int32)  # the last item is for the code -1
        rank[order] = np.arange(len(values), dtype=np.int32)
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return TextColumn(tuple(values[index] for index in order), rank[codes])


class OutcomeCube:
    """Arranges the rows of a table by question, model and sample."""

    def __init__(
        self, questions: TextColumn, models: TextColumn, samples: Integers | None = None
    ) -> None:
        self.questions = questions.values
        self.models = models.values
        rows = len(questions.codes)
        depth = np.zeros(rows, np.int64) if samples is None else samples.astype(np.int64)
        self._shape = (len(self.questions), len(self.models), int(depth.max(initial=0)) + 1)
        flat = np.ravel_multi_index((questions.codes, models.codes, depth), self._shape)
        self._flat, self._first = np.unique(flat, return_index=True)
        self._all = flat

    def arrange(self, values: NDArray[Any], missing: float, dtype: type[Any]) -> NDArray[Any]:
        """Return a column's values as an array over questions, models and samples.

        The first of several rows with the same place is used. Places without a value get `missing`.
        """
        cube = np.full(self._shape, missing, dtype)
        cube.reshape(-1)[self._flat] = np.nan_to_num(values[self._first], nan=missing)
        return cube

    def mean(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return means of rows with the same question, model and sample; NaN if there are none."""
        size = int(np.prod(self._shape))
        total = np.bincount(self._all, values, size)
        count = np.bincount(self._all, minlength=size)
        cube = np.full(size, np.nan, np.float32)
        cube[count > 0] = (total[count > 0] / count[count > 0]).astype(np.float32)
        return cube.reshape(self._shape)


MMLU_PRO_SEVEN_MODELS = (
    "gpt-4o-2024-05-13", "gemini-1.5-pro-002", "gemini-1.5-flash-002", "DeepSeek-Coder-V2",
    "Meta-Llama-3_1-70B-Instruct", "deepseek-v2-chat", "jamba-1.5-large",
)  # fmt: skip
"""Seven models of five families, without the model that is far ahead of the others."""

_REASONING_GYM_THRESHOLD = 0.99
"""The score from which an answer counts as correct, since scorers also give partial credit."""


def read_reasoning_gym(folder: Path, part: str) -> RecordedOutcomes:
    """Read `easy` (three samples of most models) or `hard`: questions that all models answered."""
    table = ParquetTable(folder / "outcomes.parquet")
    questions = table.strings("query_id")
    is_of_part = [name.startswith(f"{part}/") for name in questions.values]
    rows = np.asarray([*is_of_part, False])[questions.codes]
    samples = table.numbers("sample").astype(np.int64)[rows]
    cube = OutcomeCube(questions.select(rows), table.strings("model").select(rows), samples)
    answers = table.strings("answer")
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
    """Read `seven` or `all` (32 models): the questions that all answered, in the same wording."""
    table = ParquetTable(folder / "outcomes.parquet", [("same_question", "==", 1)])
    cube = OutcomeCube(table.strings("query_id"), table.strings("model"))
    answers = table.strings("answer")
    facts = _read_questions(folder)
    record = RecordedOutcomes(
        name=f"mmlu_pro/{part}",
        tasks=tuple(
            _make_task(
                f"mmlu-pro/{id_}",
                _append_options(
                    facts[id_]["question"],
                    dict(zip(ascii_uppercase, facts[id_]["options"], strict=False)),
                ),
                facts[id_]["answer"],
                (facts[id_]["category"],),
            )
            for id_ in cube.questions
        ),
        families=tuple(facts[id_]["category"] for id_ in cube.questions),
        models=cube.models,
        scores_qms=cube.arrange(table.numbers("correct"), np.nan, np.float32),
        answers_qms=cube.arrange(_answer_codes(answers), -1, np.int32),
        answers=answers.values,
    )
    return record.select(
        models=MMLU_PRO_SEVEN_MODELS if part == "seven" else None
    ).drop_incomplete()


def read_medagentsbench(folder: Path, part: str) -> RecordedOutcomes:
    """Read `test` or `hard` with ten models, or `methods`: 40 pairs of model and method on `hard`.

    A question that a model was not asked counts as wrong for it, as in the published figures.
    """
    keep = [("split", "==", "test" if part == "test" else "test_hard")]
    if part != "methods":
        keep.append(("method", "==", "zero_shot"))
    table = ParquetTable(folder / "outcomes.parquet", keep)
    systems = table.strings("model", "method") if part == "methods" else table.strings("model")
    cube = OutcomeCube(table.strings("query_id"), systems)
    answers = table.strings("answer")
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
        answers_qms=cube.arrange(_answer_codes(answers), -1, np.int32),
        answers=answers.values,
        usage=spent,
    )


def read_routellm(folder: Path, part: str) -> RecordedOutcomes:
    """Read `mmlu` or `gsm8k` with two models; only GSM8K has replies."""
    cube, scores = _arrange_scores(folder, "task", lambda task: task.startswith(part))
    facts = _read_questions(folder)
    return RecordedOutcomes(
        name=f"routellm/{part}",
        tasks=tuple(
            _make_task(f"routellm/{id_}", facts[id_]["prompt"], "") for id_ in cube.questions
        ),
        families=tuple(id_.partition("/")[0] for id_ in cube.questions),
        models=cube.models,
        scores_qms=scores,
    )


def _arrange_scores(
    folder: Path, column: str, is_kept: Callable[[str], bool]
) -> tuple[OutcomeCube, NDArray[np.float32]]:
    """Return the cube and the scores of the rows with a value of `column` that is kept."""
    table = ParquetTable(folder / "outcomes.parquet")
    names = table.strings(column)
    rows = np.asarray([*map(is_kept, names.values), False])[names.codes]  # -1: missing
    cube = OutcomeCube(table.strings("query_id").select(rows), table.strings("model").select(rows))
    return cube, cube.arrange(table.numbers("score")[rows], np.nan, np.float32)


def _make_task(id_: str, question: str, target: object, tags: Sequence[str] = ()) -> Task:
    return Task(
        id=TaskId(id_), question=question, target=str(target), grader=GRADER, tags=tuple(tags)
    )


def _read_questions(folder: Path) -> dict[str, Row]:
    return {str(row["query_id"]): row for row in read_rows(folder / "queries.jsonl.zst")}


def _answer_codes(answers: TextColumn) -> NDArray[np.float64]:
    """Return the answers' codes; empty answers and the table's "nan" count as none."""
    blank = [value.strip().casefold() in {"", "nan"} for value in (*answers.values, "")]
    return np.where(np.asarray(blank)[answers.codes], -1, answers.codes).astype(np.float64)


def _append_options(question: str, options: dict[str, str]) -> str:
    lines = "\n".join(f"{letter}. {option}" for letter, option in options.items())
    return f"{question.strip()}\n\n{lines}"


def reasoning_gym_replies(folder: Path, part: str) -> Iterator[ReplyRow]:
    """Yield the visible texts of all replies; hidden reasoning was not recorded."""
    for row in read_rows(folder / "responses.jsonl.zst"):
        if row["query_id"].startswith(f"{part}/"):
            yield row["query_id"], row["model"], row["sample"], row["response"]


def mmlu_pro_replies(folder: Path, _: str) -> Iterator[ReplyRow]:
    """Yield the replies of the twelve strongest models."""
    for row in read_rows(folder / "responses_top12.jsonl.zst"):
        yield f"mmlu-pro/{row['query_id']}", row["model"], 0, row["response"]


def routellm_replies(folder: Path, _: str) -> Iterator[ReplyRow]:
    """Yield the replies to GSM8K."""
    table = ParquetTable(folder / "outcomes.parquet", [("task", "==", "gsm8k_responses")])
    columns = (table.strings(name) for name in ("query_id", "model", "response"))
    for id_, model, text in zip(*(names.texts() for names in columns), strict=True):
        yield f"routellm/{id_}", model, 0, text


def livecodebench_replies(folder: Path, part: str) -> Iterator[ReplyRow]:
    """Yield programs of o1-mini and o1-preview, for the part `v5` only."""
    if part == "v5":
        for row in read_rows(folder / "responses_o1.jsonl.zst"):
            yield f"livecodebench/{row['query_id']}", row["model"], 0, row["outputs"][0]


_SCENARIOS = {"2024": "codegen_2024_8ed5690", "v5": "codegen_v5", "v6": "codegen_v6"}
"""The scenarios of the file by part, where their names differ."""

_PERCENT = 100


def read_livecodebench(folder: Path, part: str) -> RecordedOutcomes:
    """Read `v6`, `v5`, `2024`, `repair`, `testgen` or `execution`: means of one to ten samples.

    The record has the statements of 880 problems, and programs of o1-mini and o1-preview in `v5`.
    """
    table = ParquetTable(
        folder / "outcomes.parquet", [("scenario", "==", _SCENARIOS.get(part, part))]
    )
    questions, models = table.strings("query_id"), table.strings("model")
    cube = OutcomeCube(questions, models)
    facts = {row["question_id"]: row for row in read_rows(folder / "queries.jsonl.zst")}
    levels = _first_of(questions, table.strings("difficulty"))
    families = _first_of(questions, table.strings("platform"))
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

    A score is the mean of ten samples or, for multiple choice and MATH, the probability of the
    model's answer if that is correct. RouterDC's own evaluation counts any score above 0 as 1.
    """
    is_training = part == "train"
    return _read_split(
        f"routerdc/{part}", folder, lambda split: split.endswith("train") == is_training
    )


def read_llmrouter(folder: Path, part: str) -> RecordedOutcomes:
    """Read `train` or `test`; a family is a cluster of questions if the set has clusters."""
    return _read_split(f"llmrouter/{part}", folder, lambda split: split == part)


def read_matharena(folder: Path, part: str) -> RecordedOutcomes:
    """Read `aime25`: the models that were asked all 30 problems, with up to four samples each.

    The record says how many of a model's samples solved a problem, but not which samples: their
    order is drawn with a fixed seed. Tokens and dollars of a call are the model's means.
    """
    table = ParquetTable(folder / "outcomes.parquet")
    questions, models = table.strings("query_id"), table.strings("model")
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
    for index in np.ndindex(*solved_qm.shape):
        tried, solved = max(int(tried_qm[index]), 0), int(solved_qm[index])
        scores[index][:tried] = rng.permutation([1.0] * solved + [0.0] * (tried - solved))
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


def _read_split(name: str, folder: Path, is_kept: Callable[[str], bool]) -> RecordedOutcomes:
    cube, scores = _arrange_scores(folder, "split", is_kept)
    facts = _read_questions(folder)
    return RecordedOutcomes(
        name=name,
        tasks=tuple(_make_task(id_, facts[id_]["question"], "") for id_ in cube.questions),
        families=tuple(_cluster_name(facts[id_]) for id_ in cube.questions),
        models=cube.models,
        scores_qms=scores,
    )


def _cluster_name(fact: Row) -> str:
    if "cluster_id" not in fact:
        return str(fact["split"])
    number = fact["cluster_id"]
    return "no cluster" if number is None else f"cluster {number}"


def _first_of(keys: TextColumn, values: TextColumn) -> dict[str, str]:
    """Return the value in the first row of each key; "" where it is missing."""
    _, first = np.unique(keys.codes, return_index=True)
    codes = values.codes[first]
    return {
        key: values.values[code] if code >= 0 else ""
        for key, code in zip(keys.values, codes, strict=True)
    }


def _contest_task(id_: str, facts: dict[str, Row], level: str) -> Task:
    known = facts.get(id_)
    statement = known["question_content"] if known else f"[the statement of {id_} was not recorded]"
    starter = known["starter_code"].rstrip() if known else ""
    question = f"{statement.strip()}\n\n{starter}" if starter else statement.strip()
    return Task(
        id=TaskId(f"livecodebench/{id_}"),
        question=question,
        target="",
        grader=GRADER,
        difficulty=LEVELS.get(level),
    )
