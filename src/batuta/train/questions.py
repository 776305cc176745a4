"""The questions of a whole training, in order: the curriculum's mix, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from random import Random

import anyio

from batuta import rehearsal
from batuta.config import store_target
from batuta.core import Task
from batuta.errors import ConfigError
from batuta.evals.tasksets import REHEARSAL, open_tasks
from batuta.train.from_runs import served_tasks
from batuta.train.settings import Settings, Stage

SERVED = "runs"
"""Stored runs that were scored; `runs:PATH` names another store."""
FILE_LIMIT = 1_000_000
"""Questions read of a file at most."""


def questions(settings: Settings) -> list[Task]:
    """One task for every question of every step.

    Raises:
        ConfigError: a source is unknown or a file cannot be used.
    """
    wanted = settings.optimiser.steps * settings.optimiser.questions
    rng = Random(f"questions {settings.seed}")
    mixed: list[Task] = []
    for stage, steps in _stages(settings.curriculum, settings.optimiser.steps):
        count = steps * settings.optimiser.questions
        names = list(stage.tasks)
        drawn = rng.choices(names, [stage.tasks[name] for name in names], k=count)
        supply = {
            name: iter(source(name, drawn.count(name), settings.seed * 7919 + stage.step))
            for name in names
        }
        mixed += [next(supply[name]) for name in drawn]
    return mixed[:wanted]


def _stages(curriculum: Sequence[Stage], steps: int) -> list[tuple[Stage, int]]:
    """Each stage and how many steps it lasts."""
    ordered = sorted(curriculum, key=lambda stage: stage.step)
    ends = [*(stage.step for stage in ordered[1:]), steps]
    return [
        (stage, max(0, min(end, steps) - (stage.step if number else 0)))
        for number, (stage, end) in enumerate(zip(ordered, ends, strict=True))
    ]


def source(name: str, count: int, seed: int) -> list[Task]:
    """`count` training questions of that source.

    Raises:
        ConfigError: there is no such source.
    """
    kind, *parts = name.split(":")
    if kind == SERVED:
        tasks = anyio.run(served_tasks, ":".join(parts) or store_target())
        return _as_many(tasks, count, f"{name} {seed}")
    if kind != REHEARSAL:
        tasks = list(open_tasks(name, FILE_LIMIT, 0).tasks)
        return _as_many(tasks, count, f"{name} {seed}")
    families = (*rehearsal.FAMILIES, rehearsal.HELD_OUT_FAMILY)
    if len(parts) > 1 or any(part not in families for part in parts):
        raise ConfigError(
            f"cannot train on {name!r}; write rehearsal or rehearsal:FAMILY, with FAMILY one of "
            f"{', '.join(families)}"
        )
    return list(rehearsal.tasks(parts[0] if parts else None, count, seed))


def _as_many(tasks: list[Task], count: int, seed: str) -> list[Task]:
    """`count` of the tasks: all of them in a random order, then from the beginning."""
    Random(seed).shuffle(tasks)
    return list(islice(cycle(tasks), count))
