"""The shipped pools and their clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from batuta.core import Client, Pool, Worker, WorkerId
from batuta.rehearsal.profiles import PROFILES, SHIFTED, Profile
from batuta.rehearsal.worker import RehearsalClient, model_name

WORLDS: Mapping[str, tuple[Profile, ...]] = {"": PROFILES, "shifted": SHIFTED}
"""Who plays in which world: the one that the shipped conductor learned on, and the one after a
change."""


def pool(world: str = "") -> Pool:
    """The workers of the rehearsal orchestra.

    Args:
        world: one of `WORLDS`.

    Raises:
        KeyError: there is no such world.
    """
    return Pool(
        tuple(
            Worker(
                WorkerId(profile.name),
                model_name(profile),
                profile.description,
                ("rehearsal", "simulated", "local"),
                32_768,
                profile.price,
                strength=profile.strength,
            )
            for profile in WORLDS[world]
        )
    )


def clients(seed: int = 0, time_scale: float = 1.0, world: str = "") -> Mapping[WorkerId, Client]:
    """A client for each of them.

    Args:
        seed: of the lapses, where a request brings none.
        time_scale: 0: no time passes.
        world: one of `WORLDS`.

    Raises:
        KeyError: there is no such world.
    """
    return {
        WorkerId(profile.name): RehearsalClient(profile, seed, time_scale)
        for profile in WORLDS[world]
    }


def trained() -> Path:
    """The folder of the shipped conductor, which learned on this orchestra."""
    return Path(__file__).parent / "policy"
