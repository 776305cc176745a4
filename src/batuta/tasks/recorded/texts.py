"""Readers of the replies' texts, for the records that have them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batuta.tasks.recorded.cube import Table
from batuta.tasks.recorded.record import Said
from batuta.tasks.sources.rows import read_rows


def reasoning_gym(folder: Path, part: str) -> Iterator[Said]:
    """All visible text; hidden reasoning was not recorded."""
    for row in read_rows(folder / "responses.jsonl.zst"):
        if row["query_id"].startswith(f"{part}/"):
            yield row["query_id"], row["model"], row["sample"], row["response"]


def mmlu_pro(folder: Path, _: str) -> Iterator[Said]:
    """Of the twelve strongest models."""
    for row in read_rows(folder / "responses_top12.jsonl.zst"):
        yield f"mmlu-pro/{row['query_id']}", row["model"], 0, row["response"]


def routellm(folder: Path, _: str) -> Iterator[Said]:
    """Of GSM8K."""
    table = Table(folder / "outcomes.parquet", [("task", "==", "gsm8k_responses")])
    columns = (table.names(name) for name in ("query_id", "model", "response"))
    for id_, model, text in zip(*(names.texts() for names in columns), strict=True):
        yield f"routellm/{id_}", model, 0, text


def livecodebench(folder: Path, part: str) -> Iterator[Said]:
    """Programs of o1-mini and o1-preview, which are models of the part `v5`."""
    if part == "v5":
        for row in read_rows(folder / "responses_o1.jsonl.zst"):
            yield f"livecodebench/{row['query_id']}", row["model"], 0, row["outputs"][0]
