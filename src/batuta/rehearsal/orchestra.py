"""The shipped pool and its clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from batuta.core import Client, Pool, Worker, WorkerId
from batuta.rehearsal.profiles import PROFILES
from batuta.rehearsal.worker import RehearsalClient, model_name


def pool() -> Pool:
    """The seven workers of the rehearsal orchestra."""
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
            for profile in PROFILES
        )
    )


def clients(seed: int = 0, time_scale: float = 1.0) -> Mapping[WorkerId, Client]:
    """A client for each of them.

    Args:
        seed: of the lapses, where a request brings none.
        time_scale: 0: no time passes.
    """
    return {
        WorkerId(profile.name): RehearsalClient(profile, seed, time_scale) for profile in PROFILES
    }


def trained() -> Path:
    """The folder of the shipped conductor, which learned on this orchestra."""
    return Path(__file__).parent / "policy"
