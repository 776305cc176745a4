"""A selector's choices in the form that RouterArena (arXiv 2510.00202) takes submissions in.

Its prediction file is a JSON list with an entry a question: its index, the prompt, and the name of
the model that is chosen; replies, costs and accuracies are filled in by its own pipeline. Its
robustness is the share of rephrased questions for which the choice stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import orjson

from batuta.errors import SourceError, StoreError

ArenaEntry = Mapping[str, Any]
INDEX = "global index"


class ChoosesWorkers(Protocol):
    """Whoever gives each question to one worker."""

    @property
    def workers(self) -> Sequence[str]:
        """Those it can choose."""
        ...

    def choose_indices(self, questions: Sequence[str]) -> Sequence[int]:
        """The place of the worker for each question."""
        ...


def read_arena_questions(path: Path) -> tuple[ArenaEntry, ...]:
    """The entries of RouterArena's data file that have an index and a prompt.

    Raises:
        SourceError: it cannot be read, or no entry has both.
    """
    try:
        rows: Any = orjson.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{path} is no JSON: {error}") from None
    found: list[ArenaEntry] = [
        row for row in _as_list(rows) if row.get(INDEX) and _entry_prompt(row)
    ]
    if not found:
        raise SourceError(f"{path} has no entry with a `{INDEX}` and a `prompt`")
    return tuple(found)


def predict_arena(
    chooser: ChoosesWorkers, entries: Iterable[ArenaEntry], names: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """An entry of the prediction file for each question.

    Args:
        chooser: who chooses.
        entries: as `read_arena_questions` gives them.
        names: RouterArena's names of the workers' models; a worker without one keeps its own.
    """
    asked = list(entries)
    prompts = [_entry_prompt(entry) for entry in asked]
    chosen = chooser.choose_indices(prompts)
    known = names or {}
    return [
        {
            INDEX: entry[INDEX],
            "prompt": prompt,
            "prediction": known.get(chooser.workers[place], str(chooser.workers[place])),
            "generated_result": None,
            "cost": None,
            "accuracy": None,
        }
        for entry, prompt, place in zip(asked, prompts, chosen, strict=True)
    ]


def write_predictions(predictions: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The prediction file.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        path.write_bytes(orjson.dumps(predictions, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None


def choice_robustness(
    predictions: Sequence[Mapping[str, Any]], rephrased: Sequence[Mapping[str, Any]]
) -> float | None:
    """The share of rephrased questions whose choice is that of the original; None: none is."""
    chosen = {entry[INDEX]: entry["prediction"] for entry in predictions}
    same = [chosen[entry[INDEX]] == entry["prediction"] for entry in rephrased
            if entry[INDEX] in chosen]  # fmt: skip
    return sum(same) / len(same) if same else None


def _as_list(rows: Any) -> list[dict[str, Any]]:
    listed = cast("list[Any]", rows) if isinstance(rows, list) else []
    return [cast("dict[str, Any]", row) for row in listed if isinstance(row, dict)]


def _entry_prompt(entry: ArenaEntry) -> str:
    return str(entry.get("prompt_formatted") or entry.get("prompt") or "")
