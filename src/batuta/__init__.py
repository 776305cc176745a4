"""Batuta: an open, self-hosted conductor of language models.

    import batuta

    async with batuta.open("batuta.toml") as session:
        run = await session.ask("…", max_cost=0.05)
    print(run.answer, run.cost)

From synchronous code: `batuta.ask_sync("…")`. Each name is documented in the module that defines
it. Names are imported on first use, so `import batuta` takes almost no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batuta.core import Limits, Pool, Question, Run, Step, Worker, Workflow
    from batuta.engine import RunHooks, RunSettings, conduct
    from batuta.session import Session, ask, ask_sync
    from batuta.session import open_session as open  # noqa: A004 - as in `aiofiles.open`

    __version__: str

__all__ = [
    "Limits",
    "Pool",
    "Question",
    "Run",
    "RunHooks",
    "RunSettings",
    "Session",
    "Step",
    "Worker",
    "Workflow",
    "__version__",
    "ask",
    "ask_sync",
    "conduct",
    "open",
]

_HOMES = {
    "Limits": "batuta.core",
    "Pool": "batuta.core",
    "Question": "batuta.core",
    "Run": "batuta.core",
    "RunHooks": "batuta.engine",
    "RunSettings": "batuta.engine",
    "Session": "batuta.session",
    "Step": "batuta.core",
    "Worker": "batuta.core",
    "Workflow": "batuta.core",
    "ask": "batuta.session",
    "ask_sync": "batuta.session",
    "conduct": "batuta.engine",
}


def __getattr__(name: str) -> Any:
    """Return a public name, imported from its module.

    Raises:
        AttributeError: there is no such name.
    """
    if name == "__version__":
        from batuta.distribution import package_version  # noqa: PLC0415

        return package_version()
    if name == "open":
        return import_module("batuta.session").open_session
    if name not in _HOMES:
        raise AttributeError(f"module 'batuta' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
