"""The description of a data set: its files, and how a row becomes a task."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import orjson

from batuta.core import Task, TaskId
from batuta.lab.tasks.datasets.rows import Row

_REFERS_TO_OPTIONS = re.compile(
    r"\babove\b|\b(?:both|neither) of th|\b[A-J]\)?,?\s*(?:and|or|&)\s*\(?[A-J]\b", re.IGNORECASE
)
"""Matches an option that refers to others by position: "all of the above", "both A and B"."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MultipleChoiceQuestion:
    """A question with options that have no letters yet; its `repr` does not show the text.

    Raises:
        ValueError: there are more options than letters.
    """

    id: TaskId
    stem: str
    """The question without the options."""
    options: tuple[str, ...]
    correct_index: int
    tags: tuple[str, ...] = ()
    difficulty: float | None = None
    private: bool = False

    def __post_init__(self) -> None:
        if len(self.options) > len(ascii_uppercase):
            raise ValueError(
                f"it has {len(self.options)} options, and there are letters for "
                f"{len(ascii_uppercase)}: leave some out, or ask without options"
            )

    def to_task(self, seed: int | None) -> Task:
        """Return the task with its options shuffled by `seed`; None keeps the published order.

        That order is also kept if an option refers to others by position. The shuffled order
        depends only on the seed and the id, and the task's data records it.
        """
        order = list(range(len(self.options)))
        if seed is not None and not any(
            _REFERS_TO_OPTIONS.search(option) for option in self.options
        ):
            random.Random(f"{seed} {self.id}").shuffle(order)
        options = [self.options[index] for index in order]
        lines = (f"{ascii_uppercase[index]}. {option}" for index, option in enumerate(options))
        return Task(
            id=self.id,
            question=f"{self.stem}\n\n"
            + "\n".join(lines)
            + "\n\nAnswer with the letter of one option.",
            target=ascii_uppercase[order.index(self.correct_index)],
            grader="choice",
            tags=self.tags,
            difficulty=self.difficulty,
            data=as_json({"options": options, "order": order, "seed": seed}),
            private=self.private,
        )


RowConverter = Callable[[Row], Task | MultipleChoiceQuestion | None]
"""Converts a row; returns None for a row that is not a usable task, and raises one of `ROW_FAULTS`
for a row of another form."""


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set on the Hugging Face hub."""

    repo: str
    revision: str
    """The commit that public evaluation code pins."""


@dataclass(frozen=True, slots=True)
class DatasetSplit:
    """The files of a split, and the condition for its rows."""

    hub: tuple[str, ...] = ()
    """Files in the hub's repository."""
    local: tuple[str, ...] = ()
    """Files in the data folder, which are preferred to the files from the hub."""
    keep: Callable[[Row], bool] | None = None
    """Returns whether a row belongs to the split; None keeps all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A benchmark."""

    name: str
    description: str
    licence: str
    convert: RowConverter
    splits: Mapping[str, DatasetSplit]
    """The first split is the default."""
    origin: HubDataset | str
    """The data set on the hub, or the address where users get their own copy."""
    redistributable: bool = False
    """Whether the licence allows the rows in a public repository."""


def distinct_ids(ids: Iterable[str]) -> Iterator[str]:
    """Yield the ids in order; the second occurrence of an id becomes `ID#2`, and so on."""
    seen = Counter[str]()
    for id_ in ids:
        seen[id_] += 1
        yield id_ if seen[id_] == 1 else f"{id_}#{seen[id_]}"


def text_digest(*texts: str) -> str:
    """Return twelve hexadecimal digits of the texts; the amount of white space does not count."""
    joined = "\0".join(" ".join(text.split()) for text in texts)
    return hashlib.blake2b(joined.encode(), digest_size=6).hexdigest()


def as_json(data: Any) -> str:
    """Return `data` as JSON for `Task.data`; fractions, which JSON lacks, become strings."""
    try:
        return orjson.dumps(data).decode()
    except orjson.JSONEncodeError:  # integers beyond 64 bits, fractions
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
