"""Plugins of other packages, found by their entry points and loaded on first use.

A package declares its plugins in the group `batuta.plugins`, each under `KIND.NAME`:

    [project.entry-points."batuta.plugins"]
    "command.eval" = "batuta.lab.commands.evaluate:app"

Kinds: `command` (a `typer.Typer`, as `batuta NAME`), `pool` (a `config.loaded.PoolPlugin`, as
`--pool NAME`), `baseline` and `learned-baseline` (methods, served as `baseline/NAME`), `outcomes`
(training data that `--history` and `--cascade` name) and `tasks` (a `lab.task_sources.TaskSource`).
The laboratory (`batuta.lab`) is connected to the server only in this way.
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
    """Return the sorted names of the plugins of a kind; entry points have no stable order."""
    return tuple(sorted(_read_declarations().get(kind, {})))


def open_plugin(kind: str, name: str, use: Callable[[Any], _Opened]) -> _Opened:
    """Import a plugin and return the result of `use` with it.

    An error of the plugin's code that is not a BatutaError becomes a ConfigError.

    Args:
        kind: the kind of plugin.
        name: the name of the plugin.
        use: called with the object that the entry point names; its result is returned.

    Raises:
        ConfigError: no such plugin is installed, it cannot be imported, or `use` failed.
        BatutaError: the plugin or `use` raised it.
    """
    entry = _read_declarations().get(kind, {}).get(name)
    if entry is None:
        raise ConfigError(f"no installed package brings the {kind} {name!r}")
    try:
        return use(entry.load())
    except BatutaError:
        raise
    except (Exception, SystemExit) as error:  # a third-party module may raise anything
        package = f" of the package {entry.dist.name}" if entry.dist else ""
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        message = f"the {kind} {name!r}{package} cannot be loaded: {reason}"
        raise ConfigError(message) from error


@cache
def _read_declarations() -> dict[str, dict[str, EntryPoint]]:
    """Return the entry points of all installed packages, by kind, then by name; read once."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        kind, _, name = entry.name.partition(".")
        found.setdefault(kind, {}).setdefault(name, entry)
    return found
