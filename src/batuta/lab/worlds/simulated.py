"""The pools of simulated workers, the rehearsal's and world 2's, as plugins of the settings."""

from __future__ import annotations

from collections.abc import Mapping

from batuta.conductors import LLMConductor
from batuta.config.conductors import ConductorOpener, open_trained
from batuta.config.loaded import LoadedConfig, PoolPlugin
from batuta.core import Client, Conductor, Limits, Pool, WorkerId
from batuta.errors import ConfigError
from batuta.lab.worlds.drawn_pools import MOST_WORKERS, parse_drawn_source
from batuta.lab.worlds.drawn_workers import drawn_clients, drawn_pool
from batuta.lab.worlds.hand_written_conductor import CONDUCTOR_WORKER, HandWrittenClient
from batuta.lab.worlds.pools import (
    WORLD_PROFILES,
    rehearsal_clients,
    rehearsal_pool,
    shipped_policy_folder,
)
from batuta.lab.worlds.tasks import draw_tasks
from batuta.lab.worlds.world2 import world2_clients, world2_pool

REHEARSAL_POOL = "rehearsal"
WORLD2_POOL = "world2"
HAND_WRITTEN_CONDUCTOR = "hand-written"


def rehearsal_config(
    conductor: str | None = None, time_scale: float | None = None, world: str = ""
) -> LoadedConfig:
    """Return the configuration of the rehearsal: simulated workers, offline.

    Args:
        conductor: the conductor's name; None: the shipped trained conductor, or `best` for drawn
            workers.
        time_scale: the factor of the workers' delays; None: 1.
        world: one of `WORLD_PROFILES`, or `SEED[:COUNT]` for workers drawn from a seed.

    Raises:
        ConfigError: there is no such world, or the conductor cannot be opened.
    """
    if world not in WORLD_PROFILES:
        return drawn_config(f"{REHEARSAL_POOL}:{world}", conductor, time_scale)
    scale = 1.0 if time_scale is None else time_scale
    worker_clients = rehearsal_clients(scale, world)
    workers = rehearsal_pool(world)
    if conductor is None:
        chosen: Conductor = open_trained(shipped_policy_folder())
    elif conductor == HAND_WRITTEN_CONDUCTOR:
        model = HandWrittenClient(scale)
        chosen = LLMConductor(name="rehearsal/hand-written", client=model, worker=CONDUCTOR_WORKER)
    else:
        chosen = ConductorOpener(pool=workers, clients=worker_clients).named(conductor)
    after = " after the shift" if world else ""
    return LoadedConfig(
        source=f"the rehearsal{after} (simulated workers)",
        pool=workers,
        clients=worker_clients,
        conductor=chosen,
        limits=Limits(),
        simulated=True,
        examples=_example_questions(),
    )


def drawn_config(
    source: str, conductor: str | None = None, time_scale: float | None = None
) -> LoadedConfig:
    """Return a configuration with workers of world 2 or the rehearsal, drawn as `source` says.

    `conductor` is the conductor's name; None: `best`. `time_scale` is the factor of the rehearsal's
    delays; None: 1.

    Raises:
        ConfigError: the source is malformed, or the conductor cannot be opened.
    """
    world = source.partition(":")[0]
    drawn = parse_drawn_source(source)
    if drawn is None:
        raise ConfigError(
            f"there is no pool {source}; write {_NAMES_OF_POOLS[world]}{world}:SEED or "
            f"{world}:SEED:COUNT, such as {world}:12:7, with at most {MOST_WORKERS} workers"
        )
    seed, count = drawn
    pool, worker_clients = _draw_workers(world, seed, count, time_scale)
    opener = ConductorOpener(pool=pool, clients=worker_clients)
    named = "world 2" if world == WORLD2_POOL else "the rehearsal"
    return LoadedConfig(
        source=f"{named}, {count} simulated workers of seed {seed}",
        pool=pool,
        clients=worker_clients,
        conductor=opener.named(conductor or "best"),
        limits=Limits(),
        simulated=True,
        examples=_example_questions() if world == REHEARSAL_POOL else (),
    )


def _example_questions() -> tuple[str, ...]:
    return tuple(task.question for task in draw_tasks(None, 5, seed=3, difficulty=4))


def _open_rehearsal(
    source: str, conductor: str | None = None, time_scale: float | None = None
) -> LoadedConfig:
    return rehearsal_config(conductor, time_scale, source.partition(":")[2])


def _find_world(workers: Pool) -> str:
    """Return the first pool of the rehearsal with all these workers; if none has, `rehearsal`."""
    names = {str(worker.id) for worker in workers}
    worlds = (world for world, known in WORLD_PROFILES.items() if names <= {p.name for p in known})
    return ":".join((REHEARSAL_POOL, next(worlds, ""))).rstrip(":")


REHEARSAL = PoolPlugin(open=_open_rehearsal, find=_find_world)
WORLD2 = PoolPlugin(open=drawn_config, find=lambda _: None)

_NAMES_OF_POOLS = {WORLD2_POOL: "world2, ", REHEARSAL_POOL: "rehearsal, rehearsal:shifted, "}
"""The pools of each world that need no seed, for the error message."""


def _draw_workers(
    world: str, seed: int, count: int, time_scale: float | None
) -> tuple[Pool, Mapping[WorkerId, Client]]:
    if world == WORLD2_POOL:
        return world2_pool(seed, count), world2_clients(seed, count)
    pace = 1.0 if time_scale is None else time_scale
    return drawn_pool(seed, count), drawn_clients(seed, count, pace)
