"""Recorded sets, divided into known and measured questions for each seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Literal

import numpy as np

from batuta.core import Conductor, Grade, Pool, Task
from batuta.core.suggestions import suggest_names
from batuta.environment import benchmark_folder
from batuta.errors import ConfigError
from batuta.lab.baselines.answer_cache import AnswerCache
from batuta.lab.evals.evaluation import EvalPart
from batuta.lab.evals.pool_change import PoolChange
from batuta.lab.evals.subject import Subject
from batuta.lab.evals.task_sets import TaskSet
from batuta.lab.learners.history import History, history_from_record
from batuta.lab.tasks.recorded import (
    PACKAGED_RECORDS,
    RECORDED_NAMES,
    RECORDED_SETS,
    QuestionSplit,
    RecordedOutcomes,
    ReplayPool,
    find_outcomes_file,
    load_recorded,
    random_split,
    unseen_family_split,
)

RECORDED_PREFIX = "recorded:"
"""The prefix of a recorded set's name."""

SplitKind = Literal["random", "unseen", "all"]
"""Measure random questions, whole task families, or all questions without learning from any."""

_SPLITS: Mapping[str, Callable[[RecordedOutcomes, int], QuestionSplit]] = {
    "random": random_split,
    "unseen": unseen_family_split,
}


def available_sets() -> tuple[str, ...]:
    """Return the packaged records, and the recorded sets whose files are in the data folder."""
    folder = benchmark_folder() / "recorded"
    there = (
        name
        for name in RECORDED_NAMES
        if (folder / RECORDED_SETS[name.partition("/")[0]].folder / "outcomes.parquet").is_file()
    )
    return (*PACKAGED_RECORDS, *there)


def open_recorded_parts(
    name: str,
    split: SplitKind,
    seeds: Sequence[int],
    *,
    models: Sequence[str] = (),
    limit: int | None = None,
    simulate: bool = False,
    conductor: Conductor | None = None,
    change: PoolChange | None = None,
) -> tuple[EvalPart, ...]:
    """Open a recorded set and divide it as `make_record_parts` does.

    Args:
        name: a name of `RECORDED_NAMES`, a packaged record, or the path of a file of outcomes.
        split: how questions are divided.
        seeds: the seeds of the splits.
        models: the models to keep; empty for all.
        limit: the most random test questions of each part.
        simulate: answer calls that are not recorded with one of the model's recorded answers.
        conductor: the conductor of `ultra`, if there is one.
        change: the workers that leave and join after fitting; None for no change.

    Raises:
        ConfigError: no such set.
        SourceError: its files are missing, it has no such model, or too few families.
    """
    own = find_outcomes_file(name)
    if name not in RECORDED_NAMES and own is None:
        known = suggest_names(name, (*RECORDED_NAMES, *PACKAGED_RECORDS, "FILE.jsonl"))
        raise ConfigError(f"there is no recorded set {name!r}; {known}")
    record = load_recorded(name, with_texts=own is not None, models=models)
    return make_record_parts(
        record,
        split,
        seeds,
        limit=limit,
        simulate=simulate,
        conductor=conductor,
        change=change,
    )


def make_record_parts(
    record: RecordedOutcomes,
    split: SplitKind,
    seeds: Sequence[int],
    *,
    limit: int | None = None,
    simulate: bool = False,
    conductor: Conductor | None = None,
    change: PoolChange | None = None,
) -> tuple[EvalPart, ...]:
    """Return a part for each seed: the split's test is measured, the rest is known beforehand.

    Replies are the extracted answers if the record has them, which votes and graders read.

    Raises:
        ConfigError: a worker that leaves or joins does not exist.
        SourceError: there are too few families to hold out whole ones.
    """
    replays = ReplayPool(record, simulate=simulate)
    groups = dict(zip((task.id for task in record.tasks), record.families, strict=True))

    async def grade(task: Task, answer: str) -> Grade:
        return record.grade(task, answer)

    def part(seed: int) -> EvalPart:
        pool, history, places = _divide_record(record, split, seed)
        if change and history is not None:
            pool, history = change.apply(pool, history, seed)
        subject = Subject(
            pool=pool,
            clients={},
            conductor=conductor,
            replay_pool=replays,
            answer_cache=AnswerCache(),
        )
        if limit is not None and limit < len(places):
            places = sorted(Random(f"{seed} {record.name}").sample(places, limit))
        asked = tuple(record.tasks[place] for place in places)
        tasks = TaskSet(
            name=f"{RECORDED_PREFIX}{record.name}{change or ''}",
            tasks=asked,
            calibration=(),
            grade=grade,
            family=lambda t: groups[t.id],
            split=split,
        )
        return EvalPart(subject=subject, tasks=tasks, seeds=(seed,), history=history)

    return tuple(part(seed) for seed in seeds)


def _divide_record(
    record: RecordedOutcomes, split: SplitKind, seed: int
) -> tuple[Pool, History | None, list[int]]:
    """Return the workers, what is known about them beforehand, and the test's questions."""
    if split == "all":
        return record.pool(), None, list(range(len(record.tasks)))
    division = _SPLITS[split](record, seed)
    known = np.sort(np.concatenate([division.train, division.calibration]))
    history = history_from_record(record, known)
    return record.pool(calibration=known), history, division.test.tolist()
