"""The two simulated worlds that a conductor is trained for, each with workers that a seed draws."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from other_families import KNOWLEDGE

from batuta.core import Client, Pool, WorkerId
from batuta.lab.worlds import HELD_OUT_FAMILY, TRAINING_FAMILIES, draw_tasks
from batuta.lab.worlds.drawn_tasks import DrawTasks
from batuta.lab.worlds.drawn_workers import drawn_clients, drawn_pool
from batuta.lab.worlds.world2 import (
    HELD_OUT_KINDS,
    TRAINING_KINDS,
    draw_world2_tasks,
    world2_clients,
    world2_pool,
)


class World(NamedTuple):
    """Questions and workers."""

    pool: Callable[[int, int], Pool]
    """Of a seed and a number of workers."""
    clients: Callable[[int, int], Mapping[WorkerId, Client]]
    draw_tasks: DrawTasks
    training: tuple[str, ...]
    """Its families for training."""
    held_out: tuple[str, ...]
    """Its families that training never sees."""
    matters: Mapping[str, str]
    """What a step's wording calls the matter of a question, by family."""
    abilities: tuple[str, ...]
    """What a card's description says a share of, and a thought may rank."""
    alike: Mapping[str, str] = MappingProxyType({})
    """By family that is not for training, of this world or another kind, one that is, whose rule it gets."""
    too_near: frozenset[str] = frozenset()
    """Labels of other kinds of questions that mean one of its families."""


REHEARSAL, WORLD2 = "rehearsal", "world2"
WORLDS: Mapping[str, World] = {
    WORLD2: World(
        pool=world2_pool,
        clients=world2_clients,
        draw_tasks=draw_world2_tasks,
        training=TRAINING_KINDS,
        held_out=HELD_OUT_KINDS,
        matters={
            "bills": "the bill",
            "clock": "the time",
            "letters": "the letters",
            "almanac": "the lighthouses",
            "walks": "the walk",
            "ranks": "the order",
        },
        abilities=("plans",),
    ),
    REHEARSAL: World(
        pool=drawn_pool,
        clients=drawn_clients,
        draw_tasks=draw_tasks,
        training=TRAINING_FAMILIES,
        held_out=(HELD_OUT_FAMILY,),
        matters={
            "arithmetic": "the number",
            "lists": "the list",
            "facts": "the chain",
            "text": "the text",
            "calendar": "the date",
        },
        abilities=("plans", "knows", "checks"),
        alike=dict.fromkeys((HELD_OUT_FAMILY, *KNOWLEDGE), "facts"),
        too_near=frozenset({"calendars", "dates", "months", "weekdays"}),
    ),
}
"""World 2 and world 1, the rehearsal."""


def rule_of_family(world: World, chosen: Mapping[str, str], family: str) -> str:
    """The searched rule for a question of that family, else that of its like, else the commonest."""
    commonest = Counter(chosen.values()).most_common(1)[0][0]
    return chosen.get(world.alike.get(family, family), commonest)


def add_world_option(parser: argparse.ArgumentParser) -> None:
    """`--world`: which of them."""
    parser.add_argument("--world", choices=[*WORLDS], default=WORLD2)
