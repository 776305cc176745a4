"""A source: where a benchmark's files are, and how one of their rows becomes a task."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from batuta.core import Task, TaskId
from batuta.lab.tasks.datasets.rows import Row

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_REFERS_TO_OPTIONS = re.compile(
    r"\babove\b|\b(?:both|neither) of th|\b[A-J]\)?,?\s*(?:and|or|&)\s*\(?[A-J]\b", re.IGNORECASE
)
"""An option that points at other options by place: "all of the above", "both A and B"."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MultipleChoiceQuestion:
    """A question with options that are not lettered yet; `repr` tells nothing of its text."""

    id: TaskId
    stem: str
    options: tuple[str, ...]
    correct_index: int
    """Index of the right option."""
    tags: tuple[str, ...] = ()
    difficulty: float | None = None
    private: bool = False

    def __post_init__(self) -> None:
        if len(self.options) > len(LETTERS):
            raise ValueError(
                f"it has {len(self.options)} options, and there are letters for {len(LETTERS)}: "
                "leave some out, or ask without options"
            )

    def to_task(self, seed: int | None) -> Task:
        """The task with its options in the order that `seed` gives; None: as published.

        Where an option points at others by their place, the published order stays. The order
        depends on the seed and the id alone, and both stay in the task's data.
        """
        order = list(range(len(self.options)))
        if seed is not None and not any(
            _REFERS_TO_OPTIONS.search(option) for option in self.options
        ):
            random.Random(f"{seed} {self.id}").shuffle(order)
        options = [self.options[index] for index in order]
        lines = (f"{LETTERS[place]}. {option}" for place, option in enumerate(options))
        return Task(
            id=self.id,
            question=f"{self.stem}\n\n"
            + "\n".join(lines)
            + "\n\nAnswer with the letter of one option.",
            target=LETTERS[order.index(self.correct_index)],
            grader="choice",
            tags=self.tags,
            difficulty=self.difficulty,
            data=as_json({"options": options, "order": order, "seed": seed}),
            private=self.private,
        )


RowConverter = Callable[[Row], Task | MultipleChoiceQuestion | None]
"""None: the row is no usable task and is dropped."""


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set on the Hugging Face hub."""

    repo: str
    revision: str
    """The commit that public evaluation code pins."""


@dataclass(frozen=True, slots=True)
class DatasetSplit:
    """A part of a source, and the files it is in."""

    hub: tuple[str, ...] = ()
    """Files in the hub's repository."""
    local: tuple[str, ...] = ()
    """Files below BATUTA_DATA, which are looked for first."""
    keep: Callable[[Row], bool] | None = None
    """Which rows belong to it; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A benchmark."""

    name: str
    description: str
    licence: str
    convert: RowConverter
    splits: Mapping[str, DatasetSplit]
    """The first one is what the bare name means."""
    origin: HubDataset | str
    """The set's place on the hub, or the address where people get their own copy."""
    redistributable: bool = False
    """Whether the licence lets its rows stand in a public repository."""


def text_digest(*texts: str) -> str:
    """Twelve characters that depend on the texts alone, not on their white space."""
    joined = "\0".join(" ".join(text.split()) for text in texts)
    return hashlib.blake2b(joined.encode(), digest_size=6).hexdigest()


def as_json(data: Any) -> str:
    """`data` for `Task.data`."""
    try:
        return orjson.dumps(data).decode()
    except orjson.JSONEncodeError:  # whole numbers beyond 64 bits
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
