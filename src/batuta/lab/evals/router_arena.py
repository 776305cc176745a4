"""Writes the choices of a selector or router as a submission to RouterArena (arXiv 2510.00202).

The prediction file is a JSON list with an entry for each question: its index, the prompt, and the
name of the chosen model. RouterArena's pipeline adds replies, costs and accuracies. RouterArena's
robustness is the share of rephrased questions for which the choice stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import orjson

from batuta.errors import SourceError, report_unwritable

ArenaEntry = Mapping[str, Any]
"""An entry of RouterArena's data file, with an index and a prompt."""
INDEX = "global index"


class ChoosesWorkers(Protocol):
    """Chooses one worker for each question, as selectors and routers do."""

    @property
    def workers(self) -> Sequence[str]:
        """The workers to choose from."""
        ...

    def choose_indices(self, questions: Sequence[str]) -> Sequence[int]:
        """Return the index of the worker for each question."""
        ...


def read_arena_questions(path: Path) -> tuple[ArenaEntry, ...]:
    """Read the entries of RouterArena's data file that have an index and a prompt.

    Raises:
        SourceError: the file cannot be read, or no entry has both.
    """
    try:
        rows: Any = orjson.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{path} is not JSON: {error}") from None
    found: list[ArenaEntry] = [
        row for row in _as_list(rows) if row.get(INDEX) and _entry_prompt(row)
    ]
    if not found:
        raise SourceError(f"{path} has no entry with a `{INDEX}` and a `prompt`")
    return tuple(found)


def predict_arena(
    chooser: ChoosesWorkers, entries: Iterable[ArenaEntry], names: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return an entry of the prediction file for each question.

    `names` maps workers to RouterArena's names of their models; other workers keep their ids.
    """
    asked = list(entries)
    prompts = [_entry_prompt(entry) for entry in asked]
    chosen = chooser.choose_indices(prompts)
    known = names or {}
    return [
        {
            INDEX: entry[INDEX],
            "prompt": prompt,
            "prediction": known.get(chooser.workers[index], str(chooser.workers[index])),
            "generated_result": None,
            "cost": None,
            "accuracy": None,
        }
        for entry, prompt, index in zip(asked, prompts, chosen, strict=True)
    ]


def write_predictions(predictions: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the prediction file.

    Raises:
        StoreError: the file cannot be written.
    """
    with report_unwritable(path):
        path.write_bytes(orjson.dumps(predictions, option=orjson.OPT_INDENT_2) + b"\n")


def choice_robustness(
    predictions: Sequence[Mapping[str, Any]], rephrased: Sequence[Mapping[str, Any]]
) -> float | None:
    """Return the share of rephrased questions with the same choice as the original question.

    None if no rephrased question has the index of an original one.
    """
    chosen = {entry[INDEX]: entry["prediction"] for entry in predictions}
    same = [chosen[entry[INDEX]] == entry["prediction"] for entry in rephrased
            if entry[INDEX] in chosen]  # fmt: skip
    return sum(same) / len(same) if same else None


def _as_list(rows: Any) -> list[dict[str, Any]]:
    listed = cast("list[Any]", rows) if isinstance(rows, list) else []
    return [cast("dict[str, Any]", row) for row in listed if isinstance(row, dict)]


def _entry_prompt(entry: ArenaEntry) -> str:
    return str(entry.get("prompt_formatted") or entry.get("prompt") or "")
