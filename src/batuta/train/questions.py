"""The questions of a whole training, in order: the curriculum's mix, step by step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from random import Random

import anyio

from batuta import rehearsal
from batuta.config.load import store_target
from batuta.core import Task
from batuta.errors import ConfigError
from batuta.evals.task_sets import REHEARSAL, open_tasks
from batuta.rehearsal import world2
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
    if kind == REHEARSAL:
        known = (*rehearsal.TRAINING_FAMILIES, rehearsal.HELD_OUT_FAMILY)
        family, levels = _parse_simulated_source(name, known)
        return _draw_levels(
            lambda n, level: rehearsal.draw_tasks(family, n, seed, difficulty=level), levels, count
        )
    if kind == world2.WORLD2:
        family, levels = _parse_simulated_source(name, world2.TRAINING_KINDS)
        return _draw_levels(
            lambda n, level: world2.draw_world2_tasks(family, n, seed, level=level), levels, count
        )
    tasks = list(open_tasks(name, FILE_LIMIT, 0).tasks)
    return _repeat_tasks(tasks, count, f"{name} {seed}")


def _parse_simulated_source(name: str, families: Sequence[str]) -> tuple[str | None, range | None]:
    """The family and the difficulties that a source of a simulated world names; None: all.

    Raises:
        ConfigError: there is no such family or difficulty.
    """
    kind, *parts = name.split(":")
    levels = [found for part in parts if (found := _LEVELS_PATTERN.fullmatch(part))]
    chosen = [part for part in parts if not _LEVELS_PATTERN.fullmatch(part)]
    if len(levels) > 1 or len(chosen) > 1 or any(part not in families for part in chosen):
        raise ConfigError(
            f"cannot train on {name!r}; write {kind}[:FAMILY][:FROM-TO], with FAMILY one of "
            f"{', '.join(families)} and difficulties 1-6, such as {kind}:{families[1]}:4-6"
        )
    span = range(int(levels[0][1]), int(levels[0][2]) + 1) if levels else None
    return (chosen[0] if chosen else None), span


def _draw_levels(
    draw: Callable[[int, int | None], Sequence[Task]], levels: range | None, count: int
) -> list[Task]:
    """Fresh questions of those difficulties in equal parts; None: of any."""
    if levels is None:
        return list(draw(count, None))
    each = -(-count // max(1, len(levels)))
    by_level = [draw(each, level) for level in levels]
    return [task for some in zip(*by_level, strict=True) for task in some][:count]


def _repeat_tasks(tasks: list[Task], count: int, seed: str) -> list[Task]:
    """`count` of the tasks: all of them in a random order, then from the beginning."""
    Random(seed).shuffle(tasks)
    return list(islice(cycle(tasks), count))
