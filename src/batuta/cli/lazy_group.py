"""A command line that imports a command when it is used: `--version` needs no database."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, final

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

if TYPE_CHECKING:
    from typer._click import Command, Context


@final
@dataclass(frozen=True, slots=True)
class CommandSource:
    """Where a command is found."""

    module: str
    """Of `batuta.cli`."""
    attribute: str = "app"
    """Its function, or the `typer.Typer` of a group."""
    example: str = ""
    """What stands under the help of a function: a line that shows its use."""

    def load(self, name: str) -> Command:
        """The command of that name; imports its module."""
        found = getattr(import_module(f"batuta.cli.{self.module}"), self.attribute)
        if isinstance(found, typer.Typer):
            command = get_group(found)
            command.name = name
            return command
        alone = typer.Typer(add_completion=False)
        alone.command(name, epilog=self.example)(found)
        return get_command(alone)


@final
class LazyCommands(MutableMapping[str, "Command"]):
    """Commands by name; each is imported when it is first asked for."""

    def __init__(self, sources: dict[str, CommandSource]) -> None:
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
    """A group of `sources`, in their order."""

    sources: ClassVar[dict[str, CommandSource]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = LazyCommands(dict(self.sources))

    def list_commands(self, ctx: Context) -> list[str]:
        """The names; nothing is imported for them."""
        return list(self.commands)
