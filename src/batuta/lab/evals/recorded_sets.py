"""Recorded sets: what is learned from and what is measured, a part for each seed."""

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
    RECORDED_NAMES,
    RECORDED_SETS,
    QuestionSplit,
    RecordedOutcomes,
    ReplayPool,
    is_outcomes_file,
    load_recorded,
    random_split,
    unseen_family_split,
)

RECORDED_PREFIX = "recorded:"
"""Before the name of a recorded set."""

SplitKind = Literal["random", "unseen", "all"]
"""Questions at random, or whole task families; or all are measured and nothing is learned."""

_SPLITS: Mapping[str, Callable[[RecordedOutcomes, int], QuestionSplit]] = {
    "random": random_split,
    "unseen": unseen_family_split,
}


def available_sets() -> tuple[str, ...]:
    """The recorded sets whose files are in the data folder."""
    folder = benchmark_folder() / "recorded"
    return tuple(
        name
        for name in RECORDED_NAMES
        if (folder / RECORDED_SETS[name.partition("/")[0]].folder / "outcomes.parquet").is_file()
    )


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
    """The parts of a recorded set, as `parts_of` makes them.

    Args:
        name: as in `batuta.lab.tasks.recorded.NAMES`, or the path of a file of outcomes.
        split: how questions are divided.
        seeds: of the splits.
        models: which are kept; empty: all.
        limit: test questions of each part at most, at random.
        simulate: a call that the record cannot know gets one of the model's recorded answers.
        conductor: of `ultra`; None: there is none.
        change: who left and who joined after the rest was learned from; None: nobody.

    Raises:
        ConfigError: no such set.
        SourceError: its files are missing, it has no such model, or too few families.
    """
    if name not in RECORDED_NAMES and not is_outcomes_file(name):
        known = suggest_names(name, (*RECORDED_NAMES, "FILE.jsonl"))
        raise ConfigError(f"there is no recorded set {name!r}; {known}")
    record = load_recorded(name, with_texts=is_outcomes_file(name), models=models)
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
    """A part for each seed: the test of its split is measured, the rest is known beforehand.

    Replies are the extracted answers, where the record has them: what votes and graders read.

    Raises:
        ConfigError: a worker leaves or joins that there is not.
        SourceError: too few families for whole ones to be held out.
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
    """The workers, what is known of them beforehand (None: nothing), and the test's questions."""
    if split == "all":
        return record.pool(), None, list(range(len(record.tasks)))
    division = _SPLITS[split](record, seed)
    known = np.sort(np.concatenate([division.train, division.calibration]))
    history = history_from_record(record, known)
    return record.pool(calibration=known), history, division.test.tolist()
