"""The questions of a whole training, in order: the curriculum's mix, step by step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from random import Random

import anyio

from batuta import rehearsal
from batuta.config.load import store_target
from batuta.core import Task
from batuta.errors import ConfigError
from batuta.evals.task_sets import REHEARSAL, open_tasks
from batuta.train.settings import CurriculumStage, TrainSettings
from batuta.train.tasks_from_runs import read_judged_tasks

RUNS_SOURCE = "runs"
"""Stored runs that were scored; `runs:PATH` names another store."""
_LEVELS_PATTERN = re.compile(r"([1-6])-([1-6])")
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
    if kind != REHEARSAL:
        tasks = list(open_tasks(name, FILE_LIMIT, 0).tasks)
        return _repeat_tasks(tasks, count, f"{name} {seed}")
    return _draw_rehearsal(name, parts, count, seed)


def _draw_rehearsal(name: str, parts: list[str], count: int, seed: int) -> list[Task]:
    """Fresh questions of the rehearsal, of one family or all, of some difficulties or all.

    Raises:
        ConfigError: there is no such family or difficulty.
    """
    families = (*rehearsal.TRAINING_FAMILIES, rehearsal.HELD_OUT_FAMILY)
    levels = [found for part in parts if (found := _LEVELS_PATTERN.fullmatch(part))]
    chosen = [part for part in parts if not _LEVELS_PATTERN.fullmatch(part)]
    if len(levels) > 1 or len(chosen) > 1 or any(part not in families for part in chosen):
        raise ConfigError(
            f"cannot train on {name!r}; write rehearsal[:FAMILY][:FROM-TO], with FAMILY one of "
            f"{', '.join(families)} and difficulties 1-6, such as rehearsal:lists:4-6"
        )
    family = chosen[0] if chosen else None
    if not levels:
        return list(rehearsal.draw_tasks(family, count, seed))
    span = range(int(levels[0][1]), int(levels[0][2]) + 1)
    each = -(-count // max(1, len(span)))
    by_level = [rehearsal.draw_tasks(family, each, seed, difficulty=level) for level in span]
    return [task for some in zip(*by_level, strict=True) for task in some][:count]


def _repeat_tasks(tasks: list[Task], count: int, seed: str) -> list[Task]:
    """`count` of the tasks: all of them in a random order, then from the beginning."""
    Random(seed).shuffle(tasks)
    return list(islice(cycle(tasks), count))
