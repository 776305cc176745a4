"""`batuta pool`: list the workers, and check that they answer."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer
from rich.progress import Progress
from rich.text import Text

from batuta.cli import json_output
from batuta.cli.options import POOL_HELP, Json, format_example
from batuta.clients import HttpTransport, WorkerCheck, check_worker
from batuta.config.load import load_config
from batuta.config.loaded import LoadedConfig
from batuta.core import Worker, WorkerId
from batuta.core.formatting import format_seconds
from batuta.errors import ClientError
from batuta.rendering.console import new_table, open_console, print_table

app = typer.Typer(help="The workers: list them, check that they answer.", no_args_is_help=True)

PoolOption = Annotated[str | None, typer.Option("--pool", help=POOL_HELP)]


@app.command("list", epilog=format_example("batuta pool list --pool discover"))
def list_workers(pool: PoolOption = None, json: Json = False) -> None:
    """Show the pool that would be used: numbers, models, prices, and descriptions or tags."""
    anyio.run(_print_workers, pool, json)


@app.command("check", epilog=format_example("batuta pool check --pool batuta.toml"))
def check_workers(pool: PoolOption = None, json: Json = False) -> None:
    """Ask every worker for one word; the exit code is 1 if any worker does not answer."""
    if not anyio.run(_ask_workers, pool, json):
        raise typer.Exit(1)


async def _print_workers(pool: str | None, json: bool) -> None:
    async with HttpTransport() as http:
        loaded = await load_config(http, pool=pool)
    if json:
        json_output.print_json(
            {"source": loaded.source, "workers": json_output.pool_json(loaded.pool)}
        )
        return
    console = open_console()
    console.print(f"{loaded.source} · conductor {loaded.conductor.name}", style="dim")
    for note in loaded.notes:
        console.print(note)
    table = new_table(expand=True)
    ids = max((len(worker.id) for worker in loaded.pool), default=0)
    models = max((len(worker.model) for worker in loaded.pool), default=0)
    for name, width in zip(
        ("", "worker", "model", "$/M in", "$/M out"), (1, ids, models, 6, 7), strict=True
    ):
        right = "right" if name.startswith("$") else "left"
        table.add_column(name, justify=right, no_wrap=True, min_width=width)
    # This column takes the remaining width; otherwise rich would truncate all columns alike.
    table.add_column("about", ratio=1, no_wrap=True, overflow="ellipsis")
    for number, worker in enumerate(loaded.pool):
        about = worker.description or ", ".join(worker.tags)
        table.add_row(
            str(number), Text(worker.id, "cyan"), worker.model, *_format_price(worker), about
        )
    console.print(table)


def _format_price(worker: Worker) -> tuple[str, str]:
    if worker.price is None:
        return "unknown", "unknown"
    if worker.price.call:
        return "–", f"{worker.price.call:f} a call"
    return f"{worker.price.input:f}", f"{worker.price.output:f}"


async def _ask_workers(pool: str | None, json: bool) -> bool:
    results: dict[WorkerId, WorkerCheck] = {}
    async with HttpTransport() as http:
        loaded = await load_config(http, pool=pool, time_scale=0)
        console = open_console(stderr=True)
        with Progress(
            console=console, transient=True, disable=json or not console.is_terminal
        ) as progress:
            bar = progress.add_task("checking", total=len(loaded.pool))

            async def ask(worker: Worker) -> None:
                results[worker.id] = await check_worker(loaded.clients[worker.id], worker)
                progress.advance(bar)

            async with anyio.create_task_group() as group:
                for worker in loaded.pool:
                    group.start_soon(ask, worker)
    if json:
        json_output.print_json(_checks_json(loaded, results))
    else:
        _print_checks(loaded, results)
    return all(result.error is None for result in results.values())


def _print_checks(config: LoadedConfig, results: dict[WorkerId, WorkerCheck]) -> None:
    table = new_table("", "worker", "time", "result")
    for worker in config.pool:
        result = results[worker.id]
        mark = Text("✗", "red") if result.error else Text("✓", "green")
        text = _error_text(result.error) if result.error else "it answers"
        table.add_row(mark, Text(worker.id, "cyan"), format_seconds(result.seconds), text)
    print_table(open_console(), table)


def _error_text(error: ClientError) -> str:
    """Return the error with the host that was called, which only the operator may see."""
    return f"{error.host}: {error}" if error.host else str(error)


def _checks_json(
    config: LoadedConfig, results: dict[WorkerId, WorkerCheck]
) -> list[dict[str, object]]:
    return [
        {
            "id": worker.id,
            "ok": results[worker.id].error is None,
            "seconds": round(results[worker.id].seconds, 3),
            "error": _error_text(error) if (error := results[worker.id].error) else None,
        }
        for worker in config.pool
    ]
