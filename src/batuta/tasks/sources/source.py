"""A source: where a benchmark's files are, and how one of their rows becomes a task."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from batuta.core import Task, TaskId
from batuta.tasks.sources.rows import Row

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_BOUND = re.compile(
    r"\babove\b|\b(?:both|neither) of th|\b[A-J]\)?,?\s*(?:and|or|&)\s*\(?[A-J]\b", re.IGNORECASE
)
"""An option that points at other options by place: "all of the above", "both A and B"."""


@dataclass(frozen=True, slots=True, repr=False)
class Choice:
    """A question with options that are not lettered yet; `repr` tells nothing of its text."""

    id: TaskId
    stem: str
    options: tuple[str, ...]
    right: int
    """Index of the right option."""
    tags: tuple[str, ...] = ()
    difficulty: float | None = None
    private: bool = False

    def task(self, seed: int | None) -> Task:
        """The task with its options in the order that `seed` gives; None: as published.

        Where an option points at others by their place, the published order stays. The order
        depends on the seed and the id alone, and both stay in the task's data.
        """
        order = list(range(len(self.options)))
        if seed is not None and not any(_BOUND.search(option) for option in self.options):
            random.Random(f"{seed} {self.id}").shuffle(order)
        options = [self.options[index] for index in order]
        lines = (f"{LETTERS[place]}. {option}" for place, option in enumerate(options))
        return Task(
            self.id,
            f"{self.stem}\n\n" + "\n".join(lines) + "\n\nAnswer with the letter of one option.",
            LETTERS[order.index(self.right)],
            "choice",
            self.tags,
            self.difficulty,
            as_json({"options": options, "order": order, "seed": seed}),
            self.private,
        )


Convert = Callable[[Row], Task | Choice | None]
"""None: the row is no usable task and is dropped."""


@dataclass(frozen=True, slots=True)
class Hub:
    """A data set on the Hugging Face hub."""

    repo: str
    revision: str
    """The commit that public evaluation code pins."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a source, and the files it is in."""

    hub: tuple[str, ...] = ()
    """Files in the hub's repository."""
    local: tuple[str, ...] = ()
    """Files below BATUTA_DATA, which are looked for first."""
    keep: Callable[[Row], bool] | None = None
    """Which rows belong to it; None: all."""


@dataclass(frozen=True, slots=True)
class Source:
    """A benchmark."""

    name: str
    about: str
    licence: str
    convert: Convert
    splits: Mapping[str, Split]
    """The first one is what the bare name means."""
    origin: Hub | str
    """On the hub, or the address where people get their own copy."""
    vendor: bool = False
    """Whether the licence lets its rows stand in a public repository."""


def digest(*texts: str) -> str:
    """Twelve characters that depend on the texts alone, not on their white space."""
    joined = "\0".join(" ".join(text.split()) for text in texts)
    return hashlib.blake2b(joined.encode(), digest_size=6).hexdigest()


def as_json(data: Any) -> str:
    """`data` for `Task.data`."""
    return orjson.dumps(data).decode()
