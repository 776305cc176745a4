"""The questions of a whole training in order, drawn from the mixes of the curriculum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, islice, pairwise
from random import Random

import anyio

from batuta.config.load import store_target
from batuta.core import Task
from batuta.errors import ConfigError
from batuta.lab.evals.judged_runs import read_judged_tasks
from batuta.lab.evals.task_sets import open_tasks
from batuta.lab.task_sources import TASK_SOURCES
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.train.settings import CurriculumStage, TrainSettings

RUNS_SOURCE = "runs"
"""Source of the scored runs of the default store; `runs:PATH` names another store."""
_HELD_OUT_SEED = 5_000_011
"""Offset of the seed for held-out questions; the offset of a curriculum stage is its first step."""
_SPARE = 4
"""Questions drawn for each held-out question, as some are drawn twice."""
_DRAW_FACTORS = (1, 2, 4, 8, 16)
"""Questions drawn for each requested question, until enough of them are not held out."""
FILE_LIMIT = 1_000_000
"""Maximum number of questions read from a file."""


def draw_held_out(settings: TrainSettings) -> list[Task]:
    """Return at most `evaluation.questions` different questions on which the training is evaluated.

    The list is empty if `evaluation.every` is 0.

    Raises:
        ConfigError: a world or store has no such questions, or a source has no question left.
        SourceError, StoreError: a benchmark, a file or a store cannot be used.
    """
    e, mix = settings.evaluation, dict(settings.evaluation.tasks)
    if not e.every:
        return []
    for stage in () if mix else settings.curriculum:
        for name, weight in stage.tasks.items():
            mix[name] = mix.get(name, 0.0) + weight
    seed = settings.seed * 7919 + _HELD_OUT_SEED
    found = {text_key(task.question): task for task in draw_mix(mix, _SPARE * e.questions, seed)}
    return list(found.values())[: e.questions]


def held_out_keys(settings: TrainSettings) -> frozenset[str]:
    """Return the `text_key` of every held-out question.

    Raises:
        ConfigError: a world or store has no such questions, or a source has no question left.
        SourceError, StoreError: a benchmark, a file or a store cannot be used.
    """
    return frozenset(text_key(task.question) for task in draw_held_out(settings))


def draw_questions(settings: TrainSettings) -> list[Task]:
    """Draw one task for every question of every step, without the held-out questions.

    Raises:
        ConfigError: a world or store has no such questions, or a source has no question left.
        SourceError, StoreError: a benchmark, a file or a store cannot be used.
    """
    mixed, without = list[Task](), held_out_keys(settings)
    for stage, steps in _stage_steps(settings.curriculum, settings.optimiser.steps):
        count = steps * settings.optimiser.questions
        mixed += draw_mix(stage.tasks, count, settings.seed * 7919 + stage.step, without)
    return mixed


def draw_mix(
    mix: Mapping[str, float], count: int, seed: int, without: frozenset[str] = frozenset()
) -> list[Task]:
    """Draw `count` training questions of a mix of sources, none with a `text_key` in `without`.

    Raises:
        ConfigError: a world or store has no such questions, or a source has no question left.
        SourceError, StoreError: a benchmark, a file or a store cannot be used.
    """
    names = list(mix)
    chosen = Random(f"questions {seed}").choices(names, [mix[name] for name in names], k=count)
    supply = {name: iter(draw_others(name, chosen.count(name), seed, without)) for name in names}
    return [next(supply[name]) for name in chosen]


def draw_others(name: str, count: int, seed: int, without: frozenset[str]) -> list[Task]:
    """Draw `count` training questions of the source, none with a `text_key` in `without`.

    If there are fewer different questions, they are repeated.

    Raises:
        ConfigError: the world or store has no such questions, or all of them are held out.
        SourceError, StoreError: the benchmark, file or store cannot be used.
    """
    kept: list[Task] = []
    for factor in _DRAW_FACTORS:
        drawn = draw_from_source(name, factor * count, seed)
        kept = [task for task in drawn if text_key(task.question) not in without]
        if len(kept) >= count:
            break
    if count and not kept:
        raise ConfigError(
            f"{name} has no question left to learn from: all are held out; lower "
            "evaluation.questions, or name others as evaluation.tasks"
        )
    return list(islice(cycle(kept), count))


def _stage_steps(
    curriculum: Sequence[CurriculumStage], steps: int
) -> list[tuple[CurriculumStage, int]]:
    """Return each stage with the number of its steps; the first stage begins at step 0."""
    starts = [0, *(stage.step for stage in curriculum[1:]), steps]
    return [
        (stage, max(0, min(end, steps) - start))
        for stage, (start, end) in zip(curriculum, pairwise(starts), strict=True)
    ]


def draw_from_source(name: str, count: int, seed: int) -> list[Task]:
    """Draw `count` training questions of a source, repeated if there are fewer.

    Raises:
        ConfigError: the world or store has no such questions.
        SourceError, StoreError: the benchmark, file or store cannot be used.
    """
    kind, *parts = name.split(":")
    if kind == RUNS_SOURCE:
        tasks = anyio.run(read_judged_tasks, ":".join(parts) or store_target())
        return _repeat_tasks(tasks, count, f"{name} {seed}")
    if kind in TASK_SOURCES:
        return TASK_SOURCES[kind]().draw_training(parts, count, seed)
    tasks = list(open_tasks(name, FILE_LIMIT, 0).tasks)
    return _repeat_tasks(tasks, count, f"{name} {seed}")


def _repeat_tasks(tasks: list[Task], count: int, seed: str) -> list[Task]:
    """Return `count` of the tasks: all of them in random order, then again from the beginning."""
    Random(seed).shuffle(tasks)
    return list(islice(cycle(tasks), count))


def mix_in_runs(settings: TrainSettings, source: str, share: float) -> TrainSettings:
    """Return the settings with `share` of every stage's questions from served runs.

    The other sources keep their proportions; a stage without other sources takes all questions from
    `source`, which is `runs` or `runs:TARGET`.
    """
    stages: list[CurriculumStage] = []
    for stage in settings.curriculum:
        others = {name: w for name, w in stage.tasks.items() if name != source and w}
        whole = sum(others.values())
        kept = {name: weight / whole * (1 - share) for name, weight in others.items() if share < 1}
        stages.append(
            CurriculumStage(step=stage.step, tasks={**kept, source: share if kept else 1.0})
        )
    return settings.model_copy(update={"curriculum": stages})
