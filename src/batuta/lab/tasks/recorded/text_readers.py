"""Reads the replies' texts of the records that have them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batuta.lab.tasks.datasets.rows import read_rows
from batuta.lab.tasks.recorded.outcome_cube import ParquetTable
from batuta.lab.tasks.recorded.outcomes import ReplyRow


def reasoning_gym_replies(folder: Path, part: str) -> Iterator[ReplyRow]:
    """Yield all visible texts; hidden reasoning was not recorded."""
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
    columns = (table.names(name) for name in ("query_id", "model", "response"))
    for id_, model, text in zip(*(names.texts() for names in columns), strict=True):
        yield f"routellm/{id_}", model, 0, text


def livecodebench_replies(folder: Path, part: str) -> Iterator[ReplyRow]:
    """Yield programs of o1-mini and o1-preview, which belong to the part `v5`."""
    if part == "v5":
        for row in read_rows(folder / "responses_o1.jsonl.zst"):
            yield f"livecodebench/{row['query_id']}", row["model"], 0, row["outputs"][0]
