"""Plugins of this package and others, found by their entry points and loaded on first use.

A package declares its plugins in the group `batuta.plugins`, each under `KIND.NAME`:

    [project.entry-points."batuta.plugins"]
    "command.eval" = "batuta.lab.commands.evaluate:app"

The kinds, and what each entry point names:

- `command`: a `typer.Typer`, run as `batuta NAME`.
- `pool`: a `config.loaded.PoolPlugin`, for `--pool NAME`; each of its workers has the tag NAME.
- `baseline`: a function that takes NAME and returns its `Solver`, served as `baseline/NAME`.
- `outcomes`, with the name `open`: a function that takes the pool, the file of `--history`, the
  folder of `--cascade` and the cascade's checker (the last three may be None), and returns the
  methods that learn from them (`gateway.serving.baselines.LearnedMethods`).
- `learned-baseline`: nothing is loaded; NAME is a method that `outcomes.open` may serve as
  `baseline/NAME`.
- `tasks`: a class or function that takes no arguments and returns a `lab.task_sources.TaskSource`.

The server uses the laboratory (`batuta.lab`) only in this way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from batuta.errors import BatutaError, ConfigError

GROUP = "batuta.plugins"
"""The group of entry points."""
_Result = TypeVar("_Result")


def plugin_names(kind: str) -> tuple[str, ...]:
    """Return the sorted names of the plugins of a kind; entry points have no stable order."""
    return tuple(sorted(_read_declarations().get(kind, {})))


def open_plugin(kind: str, name: str, use: Callable[[Any], _Result]) -> _Result:
    """Import a plugin, call `use` with the object that its entry point names, return the result.

    Raises:
        ConfigError: no such plugin is installed, two packages declare it differently, or the import
            or `use` raised an error that is not a BatutaError.
        BatutaError: the import or `use` raised it.
    """
    declared = _read_declarations().get(kind, {}).get(name)
    if not declared:
        raise ConfigError(
            f"no installed package has the {kind} {name!r}: check the name, or install its package"
        )
    if len({entry.value for entry in declared}) > 1:
        packages = ", ".join(sorted({entry.dist.name for entry in declared if entry.dist}))
        message = f"the {kind} {name!r} is declared by several packages ({packages})"
        raise ConfigError(f"{message}: uninstall all but one of them")
    entry = declared[0]
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
def _read_declarations() -> dict[str, dict[str, list[EntryPoint]]]:
    """Return the entry points of all installed packages, by kind, then by name; read once."""
    declared: dict[str, dict[str, list[EntryPoint]]] = {}
    for entry in entry_points(group=GROUP):
        kind, _, name = entry.name.partition(".")
        declared.setdefault(kind, {}).setdefault(name, []).append(entry)
    return declared
