"""`batuta runs`: stored runs, shown and replayed."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from batuta.cli import json_output
from batuta.cli.console import open_console
from batuta.cli.help_text import format_example
from batuta.cli.options import Json
from batuta.cli.run_display import print_run
from batuta.clients import HttpTransport, RunReplayClient
from batuta.config.load import load_config, store_target
from batuta.core import Client, Failure, Outcome, Run, StepRun, WorkerId
from batuta.core.formatting import format_cost, format_seconds
from batuta.engine import conduct
from batuta.errors import ConfigError
from batuta.rehearsal.pools import WORLD_PROFILES
from batuta.solvers.replay_conductor import ReplayConductor
from batuta.store import RunSummary, Store, encode_run

app = typer.Typer(help="The stored runs: list, show, replay.", no_args_is_help=True)

AMBIGUOUS_SHOWN = 5
"""Ids that are shown where the beginning of one is not enough."""
RunArgument = Annotated[str, typer.Argument(help="The run's id, or a unique beginning of it.")]


@app.command("list", epilog=format_example("batuta runs list --limit 5"))
def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    json: Json = False,
) -> None:
    """The latest runs, newest first."""
    summaries = anyio.run(_list_summaries, limit)
    if json:
        json_output.print_json([_summary_json(summary) for summary in summaries])
        return
    console = open_console()
    if not summaries:
        console.print('[dim]no runs yet; start one: batuta ask "…"[/dim]')
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("run", "when", "outcome", "steps", "tokens", "cost", "time", "question"):
        table.add_column(name, no_wrap=name != "question", overflow="ellipsis")
    for summary in summaries:
        table.add_row(*_summary_row(summary))
    console.print(table)


@app.command("show", epilog=format_example("batuta runs show run_5f --step 2"))
def show_stored_run(
    run_id: RunArgument,
    step: Annotated[
        int | None, typer.Option(min=1, help="Show this step's prompt and reply.")
    ] = None,
    json: Json = False,
) -> None:
    """A run: its workflow, its answer, and with --step the exact prompt of a step."""
    run = anyio.run(_load_run, run_id)
    if json:
        sys.stdout.write(encode_run(run).decode() + "\n")
        return
    console = open_console()
    if step is not None:
        _show_step(console, run, step)
        return
    console.print(f"[bold]{escape(run.header.question.text)}[/bold]\n")
    print_run(console, run, f"conductor {run.header.conductor}")
    answer = run.answer or f"[red]{escape(run.error or 'no answer')}[/red]"
    console.print(f"\n{escape(answer) if run.answer else answer}")


@app.command("replay", epilog=format_example("batuta runs replay run_5f --recorded"))
def replay_stored_run(
    run_id: RunArgument,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="From the stored replies, at no cost.")
    ] = False,
    pool: Annotated[str | None, typer.Option(help="The pool whose workers answer.")] = None,
    json: Json = False,
) -> None:
    """Execute the workflow of a stored run again; the new run is stored as well."""
    run = anyio.run(_replay_run, run_id, recorded, pool)
    if json:
        json_output.print_json(json_output.run_json(run))
    else:
        print_run(open_console(stderr=True), run, f"replay of {run_id}")
        sys.stdout.write(f"{run.answer}\n" if run.answer else "")
    if run.answer is None:
        sys.stderr.write(f"batuta: {run.error}\n")
    if run.outcome is Outcome.FAILED:
        raise typer.Exit(1)


async def _list_summaries(limit: int) -> list[RunSummary]:
    async with Store.open(store_target()) as store:
        return await store.list(limit=limit)


async def _load_run(run_id: str) -> Run:
    """The stored run of that id, or of the only id that begins so.

    Raises:
        ConfigError: there is none, or there are several.
    """
    async with Store.open(store_target()) as store:
        run = await store.get(run_id)
        if run is None:
            begun = await store.find_ids(run_id, AMBIGUOUS_SHOWN)
            if len(begun) > 1:
                raise ConfigError(f"{run_id} begins several runs: {', '.join(begun)}")
            run = await store.get(begun[0]) if begun else None
    if run is None:
        raise ConfigError(f"there is no run {run_id}; see: batuta runs list")
    return run


async def _replay_run(run_id: str, recorded: bool, pool: str | None) -> Run:
    old = await _load_run(run_id)
    step_runs = ReplayConductor(old)
    header = old.header
    async with HttpTransport() as http:
        clients: dict[WorkerId, Client]
        if recorded:
            clients = {worker.id: RunReplayClient.of([old], worker.id) for worker in header.pool}
        else:
            loaded = await load_config(http, pool=pool or _rehearsal_source(old))
            missing = [w for w in step_runs.workers if w not in loaded.clients]
            if missing:
                raise ConfigError(
                    f"{loaded.source} has no worker {missing[0]}; name a pool with --pool, or "
                    "replay from the stored replies with --recorded"
                )
            clients = dict(loaded.clients)
            shared = header.pool.subset(clients)
            header = replace(header, pool=shared)
        run = await conduct(
            header.question,
            step_runs,
            header.pool,
            clients,
            limits=header.limits,
            seed=old.header.seed,
            model=old.header.model,
            parent=old.id,
        )
    async with Store.open(store_target()) as store:
        await store.append(run)
    return run


def _rehearsal_source(run: Run) -> str | None:
    """The rehearsal, if its workers answered; else whatever there is now."""
    if not any("rehearsal" in worker.tags for worker in run.header.pool):
        return None
    names = {str(worker.id) for worker in run.header.pool}
    worlds = (world for world, known in WORLD_PROFILES.items() if names <= {p.name for p in known})
    return ":".join(("rehearsal", next(worlds, ""))).rstrip(":")


def _summary_row(summary: RunSummary) -> tuple[str, ...]:
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(summary.created))
    tokens = f"{summary.input_tokens + summary.output_tokens:,}"
    question = escape(" ".join(summary.question_preview.split()))
    outcome = summary.outcome.value
    return (
        summary.id,
        when,
        outcome,
        str(summary.steps),
        tokens,
        format_cost(summary.cost),
        format_seconds(summary.seconds),
        question,
    )


def _summary_json(summary: RunSummary) -> dict[str, object]:
    return {
        "id": summary.id,
        "created": summary.created,
        "model": summary.model,
        "conductor": summary.conductor,
        "outcome": summary.outcome.value,
        "question": summary.question_preview,
        "answer": summary.answer_preview,
        "steps": summary.steps,
        "rounds": summary.rounds,
        "calls": summary.calls,
        "tokens": summary.input_tokens + summary.output_tokens,
        "cost": json_output.cost_json(summary.cost),
        "seconds": summary.seconds,
        "score": summary.score,
    }


def _show_step(console: Console, run: Run, number: int) -> None:
    """Every time that step was run: what it was sent, what it sent back."""
    step_runs = [step for step in run.steps if step.index == number - 1]
    if not step_runs:
        raise ConfigError(f"run {run.id} has no step {number}")
    for step in step_runs:
        console.rule(f"step {number} · {step.worker}")
        _show_prompt(console, step)
        console.rule("reply")
        failed = isinstance(step.result, Failure)
        text = step.result.message if isinstance(step.result, Failure) else step.result.text
        console.print(escape(text), style="red" if failed else "")


def _show_prompt(console: Console, step: StepRun) -> None:
    for message in step.request.messages if step.request else ():
        console.print(f"[dim]{message.role.value}[/dim]")
        console.print(escape(message.text))
