"""Opens an executor by its name."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from batuta.errors import ConfigError
from batuta.lab.executor.local import LocalExecutor
from batuta.lab.executor.protocol import Executor

LOCAL = "local"
RAY = "ray"


@asynccontextmanager
async def open_executor(name: str = LOCAL, workers: int | None = None) -> AsyncGenerator[Executor]:
    """The executor of that name, closed with the block.

    Args:
        name: `local`; `ray`: the cluster that RAY_ADDRESS names or that runs on this machine,
            else a new one here; `ray:local`: a new one here; `ray:HOST:PORT`: that cluster.
        workers: processes that run items; None: one for each free core. Of Ray alone.

    Raises:
        ConfigError: there is no such executor, its extra is missing, or the cluster cannot be
            used.
    """
    kind, _, address = name.partition(":")
    if kind == LOCAL and not address:
        if workers is not None:
            raise ConfigError("the local executor runs in one process; workers are for ray")
        yield LocalExecutor()
    elif kind == RAY:
        from batuta.lab.executor.ray import open_ray  # noqa: PLC0415 - an extra that loads slowly

        async with open_ray(address or None, workers) as executor:
            yield executor
    else:
        raise ConfigError(
            f"there is no executor {name!r}; choose local, ray, ray:local or ray:HOST:PORT"
        )
