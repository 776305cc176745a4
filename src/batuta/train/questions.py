"""The questions of a whole training, in order: the curriculum's mix, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from random import Random

import anyio

from batuta.config.load import store_target
from batuta.config.task_sources import TASK_SOURCES
from batuta.core import Task
from batuta.evals.judged_runs import read_judged_tasks
from batuta.evals.task_sets import open_tasks
from batuta.train.settings import CurriculumStage, TrainSettings

RUNS_SOURCE = "runs"
"""Stored runs that were scored; `runs:PATH` names another store."""
FILE_LIMIT = 1_000_000
"""Questions read of a file at most."""


def draw_questions(settings: TrainSettings) -> list[Task]:
    """One task for every question of every step.

    Raises:
        ConfigError: a source is unknown or a file cannot be used.
    """
    wanted = settings.optimiser.steps * settings.optimiser.questions
    mixed: list[Task] = []
    for stage, steps in _stage_steps(settings.curriculum, settings.optimiser.steps):
        count = steps * settings.optimiser.questions
        mixed += draw_mix(stage.tasks, count, settings.seed * 7919 + stage.step)
    return mixed[:wanted]


def draw_mix(mix: Mapping[str, float], count: int, seed: int) -> list[Task]:
    """`count` training questions of a mix of sources.

    Raises:
        ConfigError: a source is unknown or a file cannot be used.
    """
    names = list(mix)
    chosen = Random(f"questions {seed}").choices(names, [mix[name] for name in names], k=count)
    supply = {name: iter(draw_from_source(name, chosen.count(name), seed)) for name in names}
    return [next(supply[name]) for name in chosen]


def _stage_steps(
    curriculum: Sequence[CurriculumStage], steps: int
) -> list[tuple[CurriculumStage, int]]:
    """Each stage and how many steps it lasts."""
    ordered = sorted(curriculum, key=lambda stage: stage.step)
    ends = [*(stage.step for stage in ordered[1:]), steps]
    return [
        (stage, max(0, min(end, steps) - (stage.step if number else 0)))
        for number, (stage, end) in enumerate(zip(ordered, ends, strict=True))
    ]


def draw_from_source(name: str, count: int, seed: int) -> list[Task]:
    """`count` training questions of that source.

    Raises:
        ConfigError: there is no such source.
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
    """`count` of the tasks: all of them in a random order, then from the beginning."""
    Random(seed).shuffle(tasks)
    return list(islice(cycle(tasks), count))
