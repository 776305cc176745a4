"""Samples of lm-evaluation-harness: `samples_TASK_TIME.jsonl` in a folder named after the model.

A line has `doc_id`, `doc`, `target`, `arguments`, `resps`, `filtered_resps`, `filter`, `metrics`
and each metric's value. Only the first metric with a number and the first filter of a document are
used. If continuations were compared by their likelihood, the answer is the index of the most likely
one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson

from batuta.errors import SourceError
from batuta.lab.tasks.datasets.rows import ROW_FAULTS, Row, read_rows
from batuta.lab.tasks.recorded.outcome_lines import OutcomeCollector

_NAME = re.compile(r"samples_(.+?)(?:_\d{4}-\d\d-\d\dT[\d.:-]+)?")
METRICS = ("exact_match", "acc", "acc_norm", "pass@1", "pass_at_1", "f1", "mcc_score")
"""The metrics that are looked for, in this order, if a line does not name its metrics."""


def import_harness_samples(
    paths: tuple[Path, ...], collector: OutcomeCollector, worker: str
) -> None:
    """Add the samples of the files.

    Files with other names are skipped. `worker` is the model that answered; empty: the folder's
    name.

    Raises:
        SourceError: a file cannot be read, or a line is not a sample.
    """
    for path in paths:
        named = _NAME.fullmatch(path.stem.removesuffix(".jsonl"))
        if named is None:
            continue
        model = worker or path.resolve().parent.name
        filters: dict[str, str] = {}
        for number, row in enumerate(read_rows(path), 1):
            try:
                if _is_first_filter(row, filters):
                    _add_line(row, named[1], model, collector)
            except ROW_FAULTS as error:
                raise SourceError(f"{path}: sample {number} cannot be used: {error!r}") from None


def _is_first_filter(row: Row, filters: dict[str, str]) -> bool:
    name = str(row.get("filter") or "")
    return filters.setdefault(str(row["doc_id"]), name) == name


def _add_line(row: Row, task: str, model: str, collector: OutcomeCollector) -> None:
    prompts = _request_prompts(row["arguments"])
    likelihoods = _continuation_likelihoods(row)
    question = {
        "id": f"{task}/{row['doc_id']}",
        "question": _doc_question(row) or prompts[0],
        "family": task,
        "target": str(row.get("target", "")),
    }
    run: dict[str, Any] = {"score": _metric_value(row)}
    if likelihoods:
        run["answer"] = str(max(range(len(likelihoods)), key=likelihoods.__getitem__))
    else:
        run["reply"] = _first_text(row["resps"])
        run["answer"] = _answer_text(row)
    collector.add_run(question, model, run)


def _answer_text(row: Row) -> str | None:
    found = _first_text(row.get("filtered_resps"))
    return None if found == "[invalid]" else found


def _first_text(found: Any) -> str | None:
    """Return the first item in nested lists as text; None if there is none."""
    while isinstance(found, list):
        found = next(iter(cast("list[Any]", found)), None)
    return None if found is None else str(found)


def _doc_question(row: Row) -> str:
    """Return the question with its options, without examples and template; empty if none."""
    doc = cast("Row", row.get("doc") or {})
    options: Any = doc.get("choices") or doc.get("options")
    asked = doc.get("question") or doc.get("problem")
    if not isinstance(asked, str):
        return ""
    if isinstance(options, Mapping):
        options = cast("Row", options).get("text")
    return asked if not options else f"{asked}\n" + "\n".join(map(str, cast("list[Any]", options)))


def _request_prompts(arguments: Any) -> list[str]:
    if isinstance(arguments, Mapping):
        each = cast("Mapping[str, Row]", arguments).values()
        return [_as_text(one["arg_0"]) for one in each]
    return [_as_text(one[0]) for one in cast("list[list[Any]]", arguments)]


def _as_text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else orjson.dumps(prompt).decode()


def _continuation_likelihoods(row: Row) -> list[float]:
    """Return the log-likelihood of each continuation; empty if texts were generated."""
    found: list[float] = []
    for each in cast("list[Any]", row.get("filtered_resps") or []):
        pair = cast("list[Any]", each) if isinstance(each, list) else []
        if len(pair) != 2 or str(pair[1]) not in {"True", "False"}:  # noqa: PLR2004 - likelihood, greedy
            return []
        found.append(float(pair[0]))
    return found


def _metric_value(row: Row) -> float | None:
    named = cast("list[str]", row.get("metrics") or METRICS)
    for name in named:
        value: Any = row.get(name)
        if isinstance(value, int | float):
            return float(value)
    return None
