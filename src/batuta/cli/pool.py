"""`batuta pool`: which workers there are, and whether they answer."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from batuta.cli import report
from batuta.clients import Check, Http, check
from batuta.config import Ensemble, open_ensemble
from batuta.core import Worker, WorkerId
from batuta.errors import ClientError

app = typer.Typer(help="The workers: list them, check that they answer.", no_args_is_help=True)

Named = Annotated[
    str | None,
    typer.Option("--pool", help="rehearsal, discover (keys and local servers), or a TOML file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@app.command("list")
def list_workers(pool: Named = None, json: Json = False) -> None:
    """The pool that would play: numbers, models, prices, tags."""
    anyio.run(_list, pool, json)


@app.command("check")
def check_workers(pool: Named = None, json: Json = False) -> None:
    """Ask every worker for one word; exit code 1 if one does not answer."""
    if not anyio.run(_check, pool, json):
        raise typer.Exit(1)


async def _list(pool: str | None, json: bool) -> None:
    async with Http() as http:
        orchestra = await open_ensemble(http, pool=pool)
    if json:
        report.print_json({"source": orchestra.source, "workers": report.pool_json(orchestra.pool)})
        return
    console = Console()
    console.print(f"[dim]{orchestra.source} · conductor {orchestra.conductor.name}[/dim]")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "worker", "model", "$/M in", "$/M out", "about"):
        table.add_column(name, justify="right" if name.startswith("$") else "left")
    for number, worker in enumerate(orchestra.pool):
        about = worker.description or ", ".join(worker.tags)
        table.add_row(
            str(number), f"[cyan]{worker.id}[/cyan]", worker.model, *_price(worker), about
        )
    console.print(table)


def _price(worker: Worker) -> tuple[str, str]:
    if worker.price is None:
        return "unknown", "unknown"
    return f"{worker.price.input:f}", f"{worker.price.output:f}"


async def _check(pool: str | None, json: bool) -> bool:
    results: dict[WorkerId, Check] = {}
    async with Http() as http:
        orchestra = await open_ensemble(http, pool=pool, time_scale=0)
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=json) as progress:
            bar = progress.add_task("checking", total=len(orchestra.pool))

            async def ask(worker: Worker) -> None:
                results[worker.id] = await check(orchestra.clients[worker.id])
                progress.advance(bar)

            async with anyio.create_task_group() as group:
                for worker in orchestra.pool:
                    group.start_soon(ask, worker)
    if json:
        report.print_json(_checks_json(orchestra, results))
    else:
        _print_checks(orchestra, results)
    return all(result.error is None for result in results.values())


def _print_checks(orchestra: Ensemble, results: dict[WorkerId, Check]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "worker", "time", "says"):
        table.add_column(name)
    for worker in orchestra.pool:
        result = results[worker.id]
        mark = "[red]✗[/red]" if result.error else "[green]✓[/green]"
        says = _told(result.error) if result.error else "it answers"
        table.add_row(mark, f"[cyan]{worker.id}[/cyan]", f"{result.seconds:.2f} s", says)
    Console().print(table)


def _told(error: ClientError) -> str:
    """The error, with the address that was called: who checks a pool is its operator."""
    return f"{error.host}: {error}" if error.host else str(error)


def _checks_json(orchestra: Ensemble, results: dict[WorkerId, Check]) -> list[dict[str, object]]:
    return [
        {
            "id": worker.id,
            "ok": results[worker.id].error is None,
            "seconds": round(results[worker.id].seconds, 3),
            "error": _told(error) if (error := results[worker.id].error) else None,
        }
        for worker in orchestra.pool
    ]
