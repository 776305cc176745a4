"""RouterBench (arXiv 2403.12031): one row per question, three columns per model.

The columns are `sample_id`, `prompt` and `eval_name`; and for each model `MODEL` (its score),
`MODEL|model_response` and `MODEL|total_cost` (dollars).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from batuta.errors import SourceError
from batuta.lab.tasks.datasets.rows import ROW_FAULTS, Row, read_rows
from batuta.lab.tasks.literals import read_literal
from batuta.lab.tasks.recorded.outcome_lines import OutcomeCollector

_COST = "|total_cost"
_REPLY = "|model_response"


def import_routerbench(paths: tuple[Path, ...], collector: OutcomeCollector, _: str) -> None:
    """Add every model's run on every question, if it has a score.

    Raises:
        SourceError: a file cannot be read, is a pickle (reading it could run a program) or lacks
            the columns, or a row cannot be used.
    """
    for path in paths:
        if path.suffix == ".pkl":
            raise SourceError(
                f"{path} is a pickle, which can run programs when it is read. If you trust it: "
                f"python -c \"import pandas; pandas.read_pickle('{path}').to_parquet("
                f"'{path.with_suffix('.parquet')}')\""
            )
        for number, row in enumerate(read_rows(path), 1):
            try:
                _add_row(row, path, collector)
            except ROW_FAULTS as error:
                raise SourceError(f"{path}: row {number} cannot be used: {error}") from None


def _add_row(row: Row, path: Path, collector: OutcomeCollector) -> None:
    models = [name.removesuffix(_COST) for name in row if name.endswith(_COST)]
    if not models or "prompt" not in row:
        raise SourceError(f"{path} has no columns prompt and MODEL{_COST}: is it RouterBench's?")
    question = {
        "id": str(row.get("sample_id") or ""),
        "question": unwrap_text(row["prompt"]),
        "family": str(row.get("eval_name") or ""),
    }
    for model in models:
        reply: Any = row.get(model + _REPLY)
        run = {
            "score": _read_number(row.get(model)),
            "usd": _read_number(row.get(model + _COST)),
            "reply": None if reply is None else unwrap_text(reply),
        }
        if run["score"] is not None:
            collector.add_run(question, model, run)


def _read_number(cell: Any) -> float | None:
    return None if cell is None or cell == "" else float(cell)


def unwrap_text(value: Any) -> str:
    """Return the text of a cell; the strings of a printed Python list are joined by line breaks."""
    text = str(value)
    if text.startswith("[") and text.endswith("]"):
        found = read_literal(text)
        parts = cast("list[Any]", found) if isinstance(found, list) else []
        if parts and all(isinstance(part, str) for part in parts):
            return "\n".join(map(str, parts))
    return text
