"""The command line. Every error is one sentence on stderr."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, ClassVar, final

import typer
from typer.exceptions import TyperException

from batuta.cli.lazy_group import CommandSource, LazyGroup, PluginCommand
from batuta.cli.options import format_example
from batuta.cli.usage_errors import explain_usage_error
from batuta.errors import BatutaError
from batuta.plugins import plugin_names
from batuta.rendering.terminal import escape_logs, write_error, write_output

PROGRAM = "batuta"
"""The name of the command, however it was started."""
_ASKING = "Ask and serve"
_LOOKING = "What was run"
_WORKERS = "Workers"
_RECORDS = "Keys and records"
_LABORATORY = "Measure, tune and train"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
INTERRUPTED = "interrupted; every call was cancelled"


@final
class BatutaCommands(LazyGroup):
    """Every command and every group of them: those below, and those that plugins bring."""

    sources: ClassVar = {
        "init": CommandSource(
            module="init",
            attribute="command",
            example=format_example("batuta init --out batuta.toml"),
            panel=_ASKING,
        ),
        "ask": CommandSource(
            module="ask",
            attribute="ask_command",
            example=format_example('batuta ask "What is 17 % of 2,340?" --max-cost 0.05'),
            panel=_ASKING,
        ),
        "serve": CommandSource(
            module="serve",
            attribute="serve_command",
            example=format_example("batuta serve --pool batuta.toml --port 8765"),
            panel=_ASKING,
        ),
        "connect": CommandSource(
            module="connect",
            attribute="connect_command",
            example=format_example("batuta connect claude --model batuta-ultra"),
            panel=_ASKING,
        ),
        "mcp": CommandSource(
            module="mcp_server",
            attribute="mcp_command",
            example=format_example("batuta mcp --pool batuta.toml"),
            panel=_ASKING,
        ),
        "runs": CommandSource(module="runs", panel=_LOOKING),
        "open": CommandSource(
            module="open_page",
            attribute="open_command",
            example=format_example("batuta open run_5f"),
            panel=_LOOKING,
        ),
        "pool": CommandSource(module="pool", panel=_WORKERS),
        "local": CommandSource(module="local", panel=_WORKERS),
        "keys": CommandSource(module="keys", panel=_RECORDS),
        "store": CommandSource(module="store", panel=_RECORDS),
        "audit": CommandSource(module="audit", panel=_RECORDS),
    }

    def find_plugins(self) -> dict[str, PluginCommand]:
        """Find the commands of the laboratory and of other packages."""
        return dict.fromkeys(plugin_names("command"), PluginCommand(_LABORATORY))


app = typer.Typer(
    cls=BatutaCommands,
    name="batuta",
    help="A conductor of language models: a question becomes a workflow run by a pool.",
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
    """Read the options of the whole command."""


def main() -> None:
    """Run the command line and exit with its code."""
    escape_logs()
    try:
        code = int(app(prog_name=PROGRAM, standalone_mode=False) or 0)
        sentence = INTERRUPTED if code == EXIT_INTERRUPTED else ""
    except BrokenPipeError:  # the reader of our output has gone; nobody is there to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code, sentence = EXIT_FAILED, ""
    except (Exception, KeyboardInterrupt) as error:
        told = _explain_error(_first_error(error))
        if told is None:
            raise
        code, sentence = told
    if sentence:
        write_error(f"batuta: {sentence}\n")
    sys.exit(code)


def _explain_error(error: BaseException) -> tuple[int, str] | None:
    """Exit code and sentence of an error that a user can do something about; else None."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return EXIT_INTERRUPTED, INTERRUPTED
    if isinstance(error, BatutaError):
        return EXIT_USAGE, str(error)
    if isinstance(error, TyperException):
        return EXIT_USAGE, explain_usage_error(error)
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return EXIT_USAGE, f"{error.filename} is too long for the name of a file"
    return None


def _first_error(error: BaseException) -> BaseException:
    """The first error inside groups of groups."""
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return _first_error(inner[0]) if inner else error
