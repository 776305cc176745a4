"""Recorded sets: what is learned from and what is measured, a part for each seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Literal

import numpy as np

from batuta.baselines.chorus import Chorus
from batuta.core import Conductor, Grade, Task
from batuta.errors import ConfigError
from batuta.evals.evaluate import Part
from batuta.evals.subject import Subject
from batuta.evals.tasksets import TaskSet
from batuta.solvers.history import of_record
from batuta.tasks.recorded import (
    NAMES,
    SETS,
    Deck,
    Division,
    Recorded,
    load,
    random_split,
    unseen_split,
)
from batuta.tasks.sources import data_folder

PREFIX = "recorded:"
"""Before the name of a recorded set."""

Split = Literal["random", "unseen"]
"""Questions by lot, or whole task families."""

_SPLITS: Mapping[Split, Callable[[Recorded, int], Division]] = {
    "random": random_split,
    "unseen": unseen_split,
}


def here() -> tuple[str, ...]:
    """The recorded sets whose files are in the data folder."""
    folder = data_folder() / "recorded"
    return tuple(
        name
        for name in NAMES
        if (folder / SETS[name.partition("/")[0]].folder / "outcomes.parquet").is_file()
    )


def recorded_parts(
    name: str,
    split: Split,
    seeds: Sequence[int],
    *,
    models: Sequence[str] = (),
    limit: int | None = None,
    simulate: bool = False,
    conductor: Conductor | None = None,
) -> tuple[Part, ...]:
    """The parts of a recorded set, as `parts_of` makes them.

    Args:
        name: as in `batuta.tasks.recorded.NAMES`.
        split: how questions are divided.
        seeds: of the splits.
        models: which are kept; empty: all.
        limit: test questions of each part at most, by lot.
        simulate: a call that the record cannot know gets one of the model's recorded answers.
        conductor: of `ultra`; None: there is none.

    Raises:
        ConfigError: no such set.
        SourceError: its files are missing, it has no such model, or too few families.
    """
    if name not in NAMES:
        raise ConfigError(f"there is no recorded set {name!r}; choose among: {', '.join(NAMES)}")
    record = load(name, with_texts=False).select(models=models or None)
    return parts_of(record, split, seeds, limit=limit, simulate=simulate, conductor=conductor)


def parts_of(
    record: Recorded,
    split: Split,
    seeds: Sequence[int],
    *,
    limit: int | None = None,
    simulate: bool = False,
    conductor: Conductor | None = None,
) -> tuple[Part, ...]:
    """A part for each seed: the test of its split is measured, the rest is known beforehand.

    Replies are the extracted answers, where the record has them: what votes and graders read.

    Raises:
        SourceError: too few families for whole ones to be held out.
    """
    deck = Deck(record, simulate=simulate)
    groups = dict(zip((task.id for task in record.tasks), record.families, strict=True))

    async def grade(task: Task, answer: str) -> Grade:
        return record.grade(task, answer)

    def part(seed: int) -> Part:
        division = _SPLITS[split](record, seed)
        known = np.sort(np.concatenate([division.train, division.calibration]))
        pool = record.pool(calibration=known)
        subject = Subject(pool, {}, conductor, deck=deck, chorus=Chorus())
        places: list[int] = division.test.tolist()
        if limit is not None and limit < len(places):
            places = sorted(Random(f"{seed} {record.name}").sample(places, limit))
        asked = tuple(record.tasks[place] for place in places)
        tasks = TaskSet(f"{PREFIX}{record.name}", asked, (), grade, lambda t: groups[t.id], split)
        return Part(subject, tasks, (seed,), of_record(record, known))

    return tuple(part(seed) for seed in seeds)
