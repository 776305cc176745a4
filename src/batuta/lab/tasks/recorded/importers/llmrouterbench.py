"""LLMRouterBench (arXiv 2601.07206): one JSON file per data set, split and model.

A file has `dataset_name`, `split`, `model_name` and `records`. A record has `index`,
`origin_query`, `prompt`, `score`, `prediction`, `ground_truth`, `raw_output`, `prompt_tokens`,
`completion_tokens` and `cost` (dollars). Among files with the same data set, split and model, the
last by name is used, because a name ends in the time of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson

from batuta.errors import SourceError
from batuta.lab.tasks.datasets.rows import ROW_FAULTS, Row, parse_json
from batuta.lab.tasks.recorded.outcome_lines import OutcomeCollector


def import_llmrouterbench(
    paths: tuple[Path, ...], collector: OutcomeCollector, worker: str
) -> None:
    """Add every run of the latest files; trial runs (`demo`) are left out.

    A file without a model's name has the runs of `worker`.

    Raises:
        SourceError: a file cannot be read or has no JSON object, or a record cannot be used.
    """
    latest: dict[tuple[str, str, str], tuple[Path, Row]] = {}
    for path in sorted(paths, key=lambda path: path.name):
        data = read_json_object(path)
        if "records" in data and not data.get("demo"):
            key = (
                _field_text(data, "dataset_name"),
                _field_text(data, "split"),
                _field_text(data, "model_name"),
            )
            latest[key] = (path, data)
    for (dataset, split, model), (path, data) in latest.items():
        for number, record in enumerate(cast("list[Row]", data["records"])):
            try:
                _add_record(record, (dataset, split, model or worker), collector)
            except ROW_FAULTS as error:
                raise SourceError(f"{path}: record {number} cannot be used: {error!r}") from None


def read_json_object(path: Path) -> Row:
    """Return the JSON object in a file.

    Raises:
        SourceError: the file has no JSON object, or cannot be read.
    """
    try:
        data = parse_json(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SourceError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise SourceError(f"{path} is not a JSON object")
    return cast("Row", data)


def _field_text(data: Row, name: str) -> str:
    return str(data.get(name) or "")


def _add_record(record: Row, source: tuple[str, str, str], collector: OutcomeCollector) -> None:
    dataset, split, model = source
    question = {
        "id": f"{dataset}/{split}/{record['index']}",
        "question": _as_text(record.get("origin_query") or record["prompt"]),
        "family": dataset,
        "target": _as_text(record.get("ground_truth")),
    }
    run = {
        "score": record.get("score"),
        "answer": _as_text(record.get("prediction")) or None,
        "reply": _as_text(record.get("raw_output")) or None,
        "usd": record.get("cost"),
        "input_tokens": record.get("prompt_tokens"),
        "output_tokens": record.get("completion_tokens"),
    }
    collector.add_run(question, model, run)


def _as_text(value: Any) -> str:
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        return _as_text(value[0])
    if value is None or isinstance(value, str):
        return value or ""
    return orjson.dumps(value, default=str).decode()
