"""The command line. An error that a user can act on is one sentence on stderr.

The modules of commands are imported on first use: `--version` loads no database.
"""

from __future__ import annotations

import errno
import gc
import inspect
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TextIO, final

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_group

from batuta.cli.options import format_example
from batuta.core.suggestions import find_similar
from batuta.errors import BatutaError
from batuta.plugins import open_plugin, plugin_names
from batuta.rendering.terminal import escape_logs, write_error, write_output

if TYPE_CHECKING:
    from typer._click import Command, Context

_LINE_END = re.compile(r"(?<!\n)\n(?!\n)")
_HINT = re.compile(r"^Invalid value for (.+?): ")


def explain_usage_error(error: TyperException) -> str:
    """Return a usage error as one sentence; empty if typer has already shown the help instead."""
    shown = " ".join(error.format_message().split()).rstrip(".")
    if not shown:
        return ""
    known: Sequence[str] | None = getattr(error, "possibilities", None)
    option: str = getattr(error, "option_name", "")
    if option and hasattr(error, "possibilities"):  # otherwise it exists, and its value is missing
        near = find_similar(option, known or ())
        shown = f"there is no option {option}" + (f"; did you mean {near}?" if near else "")
    elif (hint := _HINT.match(shown)) and error.__cause__ is not None:
        shown = _explain_value(hint[1].replace("'", ""), error.__cause__).rstrip(".") or shown
    link = " See" if shown.endswith("?") else "; see"
    return f"{shown}{link}: {_command_path(error)} --help"


def _explain_value(name: str, cause: BaseException) -> str:
    """Return what pydantic found wrong with an option's value; empty for any other cause."""
    from pydantic import ValidationError  # noqa: PLC0415 - only when a value is wrong

    from batuta.config.settings_file import describe_value_error  # noqa: PLC0415 - same

    return describe_value_error(name, cause) if isinstance(cause, ValidationError) else ""


def _command_path(error: TyperException) -> str:
    """Return the command that failed, as it is typed."""
    path: str = getattr(getattr(error, "ctx", None), "command_path", "")
    return path or " ".join((PROGRAM, *_typed_commands()))


def _typed_commands() -> Iterator[str]:
    """Yield the typed words that name commands, for an error without a context."""
    command: Any = get_command(app)
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return
        yield word


@final
@dataclass(frozen=True, slots=True)
class CommandSource:
    """A built-in command, whose module is imported by `load`."""

    module: str
    """A module of `batuta.cli`."""
    panel: str = ""
    """The panel of the help that lists the command."""
    attribute: str = "app"
    """The name of the function, or of a group's `typer.Typer`."""
    _: KW_ONLY
    example: str = ""
    """An example call, shown below the help of a function."""

    def load(self, name: str) -> Command:
        """Import the module and return its command under that name."""
        return _in_panel(self._load(name), self.panel)

    def _load(self, name: str) -> Command:
        found = getattr(import_module(f"batuta.cli.{self.module}"), self.attribute)
        if isinstance(found, typer.Typer):
            command = get_group(found)
            command.name = name
            return command
        alone = typer.Typer(add_completion=False)
        alone.command(name, epilog=format_example(self.example))(found)
        return get_command(alone)


@final
@dataclass(frozen=True, slots=True)
class PluginCommand:
    """A command that is a plugin: a `typer.Typer` with one or more commands."""

    panel: str = ""
    """The panel of the help that lists the command."""

    def load(self, name: str) -> Command:
        """Import the plugin; if that fails, return a command that raises the error."""
        try:
            command = open_plugin("command", name, get_command)
        except BatutaError as error:
            command = _broken_command(error)
        command.name = name
        return _in_panel(command, self.panel)


def _in_panel(command: Command, panel: str) -> Command:
    """Set the panel in which rich lists the command, and prepare its help for rich."""
    command.rich_help_panel = panel or None  # pyright: ignore[reportAttributeAccessIssue]
    _prepare_help(command)
    return command


def _prepare_help(command: Command) -> None:
    """Hide the types of flags and join the lines of a paragraph, also for subcommands.

    Rich would keep the line ends of a docstring, in a terminal of any width.
    """
    _hide_types(command.get_params(typer.Context(command)))
    command.help = command.help and _LINE_END.sub(" ", inspect.cleandoc(command.help))
    for below in getattr(command, "commands", {}).values():
        _prepare_help(below)


def _hide_types(options: Iterable[Any]) -> None:
    """Remove the `<bool>` that the help would show after each flag."""
    for option in options:
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""


def _broken_command(error: BatutaError) -> Command:
    """Return a command that raises the error, or shows it as its help."""
    alone = typer.Typer(add_completion=False)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}

    @alone.command(help=f"{error}.", context_settings=anything)
    def _(_context: typer.Context) -> None:
        raise error

    return get_command(alone)


@final
class LazyCommands(MutableMapping[str, "Command"]):
    """Commands by name, each imported on first access."""

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


PROGRAM = "batuta"
"""The name of the command, however it was started."""
_ASKING = "Ask and serve"
_LOOKING = "Stored runs"
_WORKERS = "Workers"
_RECORDS = "Keys and records"
_LABORATORY = "Measure, tune and train"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
_STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
"""Errors of a full, failing or read-only disk."""
INTERRUPTED = "interrupted; every call was cancelled"


@final
class BatutaCommands(TyperGroup):
    """All commands and groups of commands: those listed here, and those of plugins."""

    sources: ClassVar[dict[str, CommandSource]] = {
        "init": CommandSource("init", _ASKING, "command", example="batuta init --out batuta.toml"),
        "ask": CommandSource(
            "ask",
            _ASKING,
            "ask_command",
            example='batuta ask "What is 17 % of 2,340?" --max-cost 0.05',
        ),
        "serve": CommandSource(
            "serve", _ASKING, "serve_command", example="batuta serve --pool batuta.toml --port 8765"
        ),
        "connect": CommandSource(
            "connect",
            _ASKING,
            "connect_command",
            example="batuta connect claude --model batuta-ultra",
        ),
        "mcp": CommandSource(
            "mcp_server", _ASKING, "mcp_command", example="batuta mcp --pool batuta.toml"
        ),
        "runs": CommandSource("runs", _LOOKING),
        "open": CommandSource("open_page", _LOOKING, "open_command", example="batuta open run_5f"),
        "pool": CommandSource("pool", _WORKERS),
        "local": CommandSource("local", _WORKERS),
        "keys": CommandSource("keys", _RECORDS),
        "store": CommandSource("store", _RECORDS),
        "audit": CommandSource("audit", _RECORDS),
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        plugins = dict.fromkeys(plugin_names("command"), PluginCommand(_LABORATORY))
        self.commands = LazyCommands({**self.sources, **plugins})

    def list_commands(self, ctx: Context) -> list[str]:
        """Return the names, without importing anything."""
        return list(self.commands)

    def get_params(self, ctx: Context) -> list[Any]:
        """Return the options of `batuta` itself."""
        options = super().get_params(ctx)
        _hide_types(options)
        return options


app = typer.Typer(
    cls=BatutaCommands,
    name="batuta",
    help="A conductor of language models, which answers a question by a workflow over a pool.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        from batuta.distribution import package_version  # noqa: PLC0415 - rarely needed

        write_output(f"batuta {package_version()}\n")
        raise typer.Exit


@app.callback()
def _accept_options(
    show: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Declare the options of `batuta` itself."""


def _prepare_streams() -> None:
    """Make stdin, stdout and stderr usable, and able to write every character.

    A closed stream is replaced by the null device; otherwise the next opened file would get its
    descriptor. Characters that the terminal's encoding lacks are written as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@final
class _Termination:
    """Handles SIGTERM like Ctrl-C: calls are cancelled, and finished work is kept.

    A server handles the signal itself, and a forked process exits immediately. A shell script
    starts its background commands with SIGINT ignored: Ctrl-C still does nothing there, but SIGTERM
    works.
    """

    def __init__(self) -> None:
        self.received = False
        self._process = os.getpid()
        signal.signal(signal.SIGTERM, self._interrupt)
        self._holds_interrupts = (
            sys.platform != "win32" and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        )
        if self._holds_interrupts:  # blocked, since event loops replace only Python's own handler
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, *_: object) -> None:
        if os.getpid() != self._process:
            os._exit(EXIT_TERMINATED)
        self.received = True
        if self._holds_interrupts:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.raise_signal(signal.SIGINT)

    def code_of(self, code: int) -> int:
        """Return the exit code, replaced by that of SIGTERM if SIGTERM interrupted the command."""
        return EXIT_TERMINATED if self.received and code == EXIT_INTERRUPTED else code


def main() -> None:
    """Run the command line and exit with its code; an error that no user can act on is raised."""
    _prepare_streams()
    escape_logs()
    termination = _Termination()
    try:
        code = int(app(prog_name=PROGRAM, standalone_mode=False) or 0)
        sentence = INTERRUPTED if code == EXIT_INTERRUPTED else ""
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        first = _first_error(error)
        if isinstance(first, OSError):
            _discard_buffered(sys.stdout)
        message = _explain_error(first)
        if message is None:
            raise
        code, sentence = message
    if sentence:
        write_error(f"batuta: {sentence}\n")
    try:
        sys.stderr.flush()
    except OSError:
        _discard_buffered(sys.stderr)
    gc.freeze()  # skips the last garbage collection, which takes seconds with torch loaded
    sys.exit(termination.code_of(code))


def _discard_buffered(stream: TextIO) -> None:
    """Redirect the stream to the null device; its buffered text would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _explain_error(error: BaseException) -> tuple[int, str] | None:
    """Return the exit code and message of an error that a user can act on; None for any other."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return EXIT_INTERRUPTED, INTERRUPTED
    if isinstance(error, BatutaError):
        return EXIT_USAGE, str(error)
    if isinstance(error, TyperException):
        return EXIT_USAGE, explain_usage_error(error)
    if isinstance(error, BrokenPipeError):  # the process reading stdout has exited
        return EXIT_FAILED, ""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return EXIT_USAGE, f"{error.filename} is too long for the name of a file"
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRORS:
        target = error.filename or "the output"
        return EXIT_FAILED, f"{target} cannot be written: {error.strerror}"
    return None


def _first_error(error: BaseException) -> BaseException:
    """Return the error itself, or the first error in a group, which may contain groups."""
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return _first_error(inner[0]) if inner else error
