"""The rehearsal's pools and their clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from batuta.core import Client, Pool, Worker, WorkerId
from batuta.lab.worlds.client import RehearsalClient, model_name
from batuta.lab.worlds.profiles import PROFILES, SHIFTED_PROFILES, WorkerProfile

WORLD_PROFILES: Mapping[str, tuple[WorkerProfile, ...]] = {
    "": PROFILES,
    "shifted": SHIFTED_PROFILES,
}
"""Workers by world: "" is the world in which the shipped conductor was trained, and "shifted" is
that world after a change."""


def rehearsal_pool(world: str = "") -> Pool:
    """Return the workers of the rehearsal in a world of `WORLD_PROFILES`.

    Raises:
        KeyError: there is no such world.
    """
    return Pool(
        tuple(
            Worker(
                id=WorkerId(profile.name),
                model=model_name(profile),
                description=profile.description,
                tags=("rehearsal", "simulated", "local"),
                context_window=32_768,
                price=profile.price,
                strength=profile.strength,
            )
            for profile in WORLD_PROFILES[world]
        )
    )


def rehearsal_clients(time_scale: float = 1.0, world: str = "") -> Mapping[WorkerId, Client]:
    """Return a client for each worker of `rehearsal_pool`.

    With a time scale of 0 replies take no time.

    Raises:
        KeyError: there is no such world.
    """
    return {
        WorkerId(profile.name): RehearsalClient(profile, time_scale)
        for profile in WORLD_PROFILES[world]
    }


def shipped_policy_folder() -> Path:
    """Return the folder of the shipped conductor, which was trained on `rehearsal_pool()`."""
    return Path(__file__).parent / "policy"
