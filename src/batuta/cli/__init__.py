"""The command line: ask, serve, runs, pool. Every error is one sentence on stderr."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from batuta.cli import ask, pool, runs, serve
from batuta.errors import BatutaError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="batuta",
    help="A conductor of language models: a question becomes a workflow played by a pool.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("ask")(ask.command)
app.command("serve")(serve.command)
app.add_typer(runs.app, name="runs")
app.add_typer(pool.app, name="pool")


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version  # noqa: PLC0415 - rarely needed

        typer.echo(f"batuta {version('batuta')}")
        raise typer.Exit


@app.callback()
def _root(
    show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Nothing; it carries the options of the whole."""


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        code = app(standalone_mode=False) or 0
    except typer.Exit as stop:
        code = stop.exit_code
    except TyperException as error:
        shown = getattr(error, "format_message", error.__str__)()
        _say(f"{' '.join(str(shown).split())}; see: batuta --help")
        code = EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted; every call was cancelled")
        code = EXIT_INTERRUPTED
    except BatutaError as error:
        _say(str(error))
        code = EXIT_USAGE
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_FAILED
    except BaseExceptionGroup as group:
        first = _first(group)
        if not isinstance(first, BatutaError):
            raise
        _say(str(first))
        code = EXIT_USAGE
    sys.exit(code)


def _first(error: BaseException) -> BaseException:
    """The first error inside groups of groups."""
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return _first(inner[0]) if inner else error


def _say(sentence: str) -> None:
    sys.stderr.write(f"batuta: {sentence}\n")
