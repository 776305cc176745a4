"""The pools of simulated workers: the rehearsal and world 2."""

from __future__ import annotations

from batuta.config.conductors import ConductorOpener
from batuta.config.loaded import LoadedConfig
from batuta.core import Conductor, Limits
from batuta.errors import ConfigError
from batuta.solvers import LLMConductor
from batuta.solvers.open_conductor import open_trained

REHEARSAL_POOL = "rehearsal"
WORLD2_POOL = "world2"
HAND_WRITTEN_CONDUCTOR = "hand-written"


def rehearsal_config(
    conductor: str | None = None, time_scale: float | None = None, world: str = ""
) -> LoadedConfig:
    """The embedded rehearsal: simulated workers, offline.

    Raises:
        ConfigError: no such conductor, or no such world.
    """
    from batuta.rehearsal import (  # noqa: PLC0415 - only when needed
        CONDUCTOR_WORKER,
        HandWrittenClient,
        rehearsal_clients,
        rehearsal_pool,
        shipped_policy_folder,
    )
    from batuta.rehearsal.pools import WORLD_PROFILES  # noqa: PLC0415 - same

    if world not in WORLD_PROFILES:
        known = ", ".join(
            f"{REHEARSAL_POOL}:{name}" if name else REHEARSAL_POOL for name in WORLD_PROFILES
        )
        raise ConfigError(f"there is no pool {REHEARSAL_POOL}:{world}; choose one of: {known}")
    worker_clients = rehearsal_clients(
        time_scale=1.0 if time_scale is None else time_scale, world=world
    )
    workers = rehearsal_pool(world)
    if conductor is None:
        chosen: Conductor = open_trained(shipped_policy_folder())
    elif conductor == HAND_WRITTEN_CONDUCTOR:
        model = HandWrittenClient() if time_scale is None else HandWrittenClient(time_scale)
        chosen = LLMConductor(name="rehearsal/hand-written", client=model, worker=CONDUCTOR_WORKER)
    else:
        chosen = ConductorOpener(pool=workers, clients=worker_clients).named(str(conductor))
    after = " after the shift" if world else ""
    source = f"the rehearsal{after} (simulated workers)"
    return LoadedConfig(
        source=source,
        pool=workers,
        clients=worker_clients,
        conductor=chosen,
        limits=Limits(),
        simulated=True,
    )


def world2_config(source: str, conductor: str | None = None) -> LoadedConfig:
    """Simulated workers of world 2, drawn by the seed that the source names.

    Raises:
        ConfigError: no such conductor, or the source says something else.
    """
    from batuta.rehearsal.world2 import (  # noqa: PLC0415 - only when needed
        parse_world2_source,
        world2_clients,
        world2_pool,
    )

    drawn = parse_world2_source(source)
    if drawn is None:
        raise ConfigError(
            f"there is no pool {source}; write world2, world2:SEED or world2:SEED:COUNT, "
            "such as world2:12:7, with at most 2000 workers"
        )
    seed, count = drawn
    pool, worker_clients = world2_pool(seed, count), world2_clients(seed, count)
    cast = ConductorOpener(pool=pool, clients=worker_clients)
    return LoadedConfig(
        source=f"world 2, {count} simulated workers of seed {seed}",
        pool=pool,
        clients=worker_clients,
        conductor=cast.named(conductor or "best"),
        limits=Limits(),
        simulated=True,
    )
