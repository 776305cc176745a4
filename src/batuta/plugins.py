"""Plugins: what other packages add to Batuta, found by their entry points and loaded when used.

A package declares them in the group `batuta.plugins`, each under `KIND.NAME`:

    [project.entry-points."batuta.plugins"]
    "command.eval" = "batuta.lab.commands.evaluate:app"

Kinds: `command` (a `typer.Typer`, as `batuta NAME`), `pool` (a `config.loaded.PoolPlugin`, as
`--pool NAME`), `baseline` and `learned-baseline` (methods, served
as `baseline/NAME`), `outcomes` (what `--history` and `--cascade` teach) and `tasks` (a
`lab.task_sources.TaskSource`). The laboratory (`batuta.lab`) reaches the server in this way alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from batuta.errors import BatutaError, ConfigError

GROUP = "batuta.plugins"
"""The group of entry points."""
_Opened = TypeVar("_Opened")


def plugin_names(kind: str) -> tuple[str, ...]:
    """Return the names of the plugins of a kind, sorted: an installer keeps no order."""
    return tuple(sorted(_read_declarations().get(kind, {})))


def open_plugin(kind: str, name: str, use: Callable[[Any], _Opened]) -> _Opened:
    """Import a plugin and use it: whatever is wrong with it is one sentence, not our end.

    Args:
        kind: a kind of plugin.
        name: one of that kind's.
        use: called with what its entry point names; makes of it what is wanted.

    Raises:
        ConfigError: nothing of that kind and name is installed, it cannot be imported, or it is
            not what its kind asks for.
    """
    entry = _read_declarations().get(kind, {}).get(name)
    if entry is None:
        raise ConfigError(f"no installed package brings the {kind} {name!r}")
    try:
        return use(entry.load())
    except BatutaError:
        raise
    except (Exception, SystemExit) as error:  # a stranger's module may do anything
        package = f" of the package {entry.dist.name}" if entry.dist else ""
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        message = f"the {kind} {name!r}{package} cannot be loaded: {reason}"
        raise ConfigError(message) from error


@cache
def _read_declarations() -> dict[str, dict[str, EntryPoint]]:
    """Read the declarations of every installed package once; kinds, then names."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        kind, _, name = entry.name.partition(".")
        found.setdefault(kind, {}).setdefault(name, entry)
    return found
