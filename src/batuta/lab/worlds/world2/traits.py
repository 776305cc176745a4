"""The workers of world 2 are drawn, not written: design/0015-world-2.md says from what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from batuta.lab.worlds.drawn_pools import draw_name
from batuta.lab.worlds.seeded_random import seeded_generator, uniform_number
from batuta.lab.worlds.world2.questions import KINDS

ABILITY_SPREAD = 0.74
TASTE_SPREAD = 0.69
LEVEL_SLOPE = 0.25
MIDDLE_LEVEL = 3.5
ITEM_SHARE, OWN_SHARE, FRESH_SHARE = 0.400, 0.355, 0.245
"""Shares of the latent number's variance: the question's, the worker's with it, the moment's."""
TRAP_RATE, OWN_MISTAKE_RATE = 0.34, 0.56
"""Shares of wrong answers: the question's trap, the worker's own mistake; the rest are new ones."""
TRUST_RANGE = (0.05, 0.40)
DISCERNMENT_RANGE = (0.50, 0.90)
PLANNING_MEAN, PLANNING_SPREAD = 0.9, 0.4
WORDING_SPREAD = 0.15
PRICE_BASE, PRICE_SPREAD, PRICE_BY_ABILITY = 0.5, 0.6, 0.8
PRICE_SHARE_IN = 0.25

NORMAL = NormalDist()
_TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTraits:
    """The drawn traits of a worker; conductors never see them, only what its card measured."""

    name: str
    ability: float
    """Over all families, in probits; 0 on average."""
    tastes: tuple[tuple[str, float], ...]
    """Beyond that, by family."""
    planning: float
    """How often a plan is right, in probits."""
    trust: float
    """Chance to accept what is read without a look."""
    discernment: float
    """Chance to settle on the right one of two answers."""
    price: float
    """Dollars per million tokens out."""

    def skill(self, family: str) -> float:
        """Return the ability in that family, in probits, at the middle level."""
        return self.ability + dict(self.tastes)[family] + KINDS[family].base


def normal_number(*parts: object) -> float:
    """Return a standard normal number that depends on every part and on nothing else."""
    return NORMAL.inv_cdf(min(1 - _TINY, max(_TINY, uniform_number("world 2", *parts))))


@lru_cache(maxsize=64)
def draw_traits(seed: int, count: int) -> tuple[WorkerTraits, ...]:
    """Return `count` workers; the first ones are the same whatever the count."""
    rng = seeded_generator("world 2 workers", seed)
    found: list[WorkerTraits] = []
    names: set[str] = set()
    while len(found) < count:
        name = draw_name(rng)
        ability = rng.gauss(0, ABILITY_SPREAD)
        drawn = WorkerTraits(
            name=name,
            ability=ability,
            tastes=tuple((family, rng.gauss(0, TASTE_SPREAD)) for family in KINDS),
            planning=rng.gauss(PLANNING_MEAN, PLANNING_SPREAD),
            trust=rng.uniform(*TRUST_RANGE),
            discernment=rng.uniform(*DISCERNMENT_RANGE),
            price=PRICE_BASE * math.exp(rng.gauss(0, PRICE_SPREAD) + PRICE_BY_ABILITY * ability),
        )
        if name not in names:
            names.add(name)
            found.append(drawn)
    return tuple(found)
