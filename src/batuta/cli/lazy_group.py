"""A command line that imports a command when it is used: `--version` needs no database."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, final

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from batuta.errors import ConfigError
from batuta.plugins import open_plugin

if TYPE_CHECKING:
    from typer._click import Command, Context


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSource:
    """The place of a command in the code."""

    module: str
    """A module of `batuta.cli`."""
    attribute: str = "app"
    """The function's name, or that of the `typer.Typer` of a group."""
    example: str = ""
    """The line under the help of a function that shows its use."""
    panel: str = ""
    """The group of commands in which the help names it."""

    def load(self, name: str) -> Command:
        """The command of that name; imports its module."""
        return _in_panel(self._load(name), self.panel)

    def _load(self, name: str) -> Command:
        found = getattr(import_module(f"batuta.cli.{self.module}"), self.attribute)
        if isinstance(found, typer.Typer):
            command = get_group(found)
            command.name = name
            return command
        alone = typer.Typer(add_completion=False)
        alone.command(name, epilog=self.example)(found)
        return get_command(alone)


@final
@dataclass(frozen=True, slots=True)
class PluginCommand:
    """A command that another package brings: a `typer.Typer` of one command or of several."""

    panel: str = ""
    """The group of commands in which the help names it."""

    def load(self, name: str) -> Command:
        """Import the plugin; one that cannot be loaded says so when it is called."""
        try:
            command = open_plugin("command", name, get_command)
        except ConfigError as error:
            command = _broken_command(error)
        command.name = name
        return _in_panel(command, self.panel)


def _in_panel(command: Command, panel: str) -> Command:
    """Give the command the panel under which rich shows it."""
    command.rich_help_panel = panel or None  # pyright: ignore[reportAttributeAccessIssue]
    return command


def _broken_command(error: ConfigError) -> Command:
    """Return a command that raises the error, whatever it is called with."""
    alone = typer.Typer(add_completion=False)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}

    @alone.command(help=f"{error}.", context_settings=anything)
    def _(_context: typer.Context) -> None:
        raise error

    return get_command(alone)


@final
class LazyCommands(MutableMapping[str, "Command"]):
    """Commands by name; each is imported when it is first asked for."""

    def __init__(self, sources: dict[str, CommandSource | PluginCommand]) -> None:
        self._sources = sources
        self._loaded: dict[str, Command] = {}

    def __getitem__(self, name: str) -> Command:
        if name not in self._loaded:
            self._loaded[name] = self._sources[name].load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._sources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


class LazyGroup(TyperGroup):
    """A group of `sources`, in their order, and of the plugins after them."""

    sources: ClassVar[dict[str, CommandSource]] = {}

    def find_plugins(self) -> dict[str, PluginCommand]:
        """Find the commands that plugins add to this group; by default none."""
        return {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = LazyCommands({**self.sources, **self.find_plugins()})

    def list_commands(self, ctx: Context) -> list[str]:
        """The names; nothing is imported for them."""
        return list(self.commands)
