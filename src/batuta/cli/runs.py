"""`batuta runs`: stored runs, shown and replayed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from batuta.cli import json_output
from batuta.cli.options import Json, format_example
from batuta.cli.run_display import print_run
from batuta.clients import HttpTransport, RunReplayClient
from batuta.conductors.replay_conductor import ReplayConductor
from batuta.config.load import find_plugged_pool, load_config, store_target
from batuta.config.served_systems import LOCAL_TENANT
from batuta.core import Client, Failure, Outcome, Run, StepRun, WorkerId
from batuta.core.formatting import format_cost, format_seconds
from batuta.engine import RunHooks, RunSettings, conduct
from batuta.errors import ConfigError
from batuta.language.plan_rules import NO_RULES
from batuta.rendering.console import open_console
from batuta.rendering.terminal import write_error, write_json, write_output
from batuta.store import RunSummary, Store, encode_run

app = typer.Typer(help="The stored runs: list, show, replay.", no_args_is_help=True)

_ID_SHOWN = 12
"""Characters of an id in a list, including `run_`; `runs show` accepts an id cut to them."""
_PADDING = 2
_LEAST_QUESTION = 8
"""Characters of a question that are always shown."""
RUNS_FILE = "runs.db"
NO_RUNS = 'no runs yet; start one: batuta ask "…"'
AMBIGUOUS_SHOWN = 5
"""Ids that are shown where the beginning of one is not enough."""
RunArgument = Annotated[str, typer.Argument(help="The run's id, or a unique beginning of it.")]


StoreOption = Annotated[
    str | None,
    typer.Option(help="A store, such as runs.db of an evaluation; default the one used here."),
]


def find_run_store(named: str | None) -> str:
    """Return the database of the store of that name, or of the one that is used here.

    Raises:
        ConfigError: there is no such file.
    """
    if named is None:
        return store_target()
    if "://" in named:
        return named
    path = Path(named)
    found = path / RUNS_FILE if path.is_dir() else path
    if not found.is_file():
        raise ConfigError(f"there is no store {found}")
    return str(found)


@app.command("list", epilog=format_example("batuta runs list --limit 5"))
def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    session: Annotated[str | None, typer.Option(help="Only those of this session.")] = None,
    store: StoreOption = None,
    json: Json = False,
) -> None:
    """The latest runs, newest first."""
    summaries = anyio.run(_list_summaries, limit, session, find_run_store(store))
    if json:
        json_output.print_json([_summary_json(summary) for summary in summaries])
        return
    console = open_console()
    if not summaries:
        none = f"no runs of the session {escape(session)}" if session else NO_RUNS
        console.print(f"[dim]{none}[/dim]")
        return
    table = Table(box=None, pad_edge=False, padding=(0, _PADDING, 0, 0), header_style="dim")
    length = _id_length(summaries)
    rows = [_summary_row(summary, length) for summary in summaries]
    names = ("run", "when", "outcome", "steps", "tokens", "cost", "time")
    widths = [max(len(name), *(len(row[at]) for row in rows)) for at, name in enumerate(names)]
    for name, width in zip(names, widths, strict=True):
        table.add_column(name, no_wrap=True, width=width)
    # One line per run: the question gets the remaining width, else rich would cut every column.
    room = max(_LEAST_QUESTION, console.width - sum(widths) - _PADDING * len(widths))
    table.add_column("question", no_wrap=True, overflow="ellipsis", width=room)
    for row in rows:
        table.add_row(*row)
    console.print(table)


@app.command("show", epilog=format_example("batuta runs show run_5f --step 2"))
def show_stored_run(
    run_id: RunArgument,
    step: Annotated[
        int | None, typer.Option(min=1, help="Show this step's prompt and reply.")
    ] = None,
    store: StoreOption = None,
    json: Json = False,
) -> None:
    """A run: its workflow, its answer, and with --step the exact prompt of a step."""
    run = anyio.run(_load_run, run_id, find_run_store(store))
    if json:
        write_json(encode_run(run).decode())
        return
    console = open_console()
    if step is not None:
        _show_step(console, run, step)
        return
    console.print(f"[bold]{escape(run.header.question.text)}[/bold]\n")
    print_run(console, run, f"conductor {run.header.conductor}")
    answer = run.answer or f"[red]{escape(run.error or 'no answer')}[/red]"
    console.print(f"\n{escape(answer) if run.answer else answer}")
    _show_summary(console, anyio.run(_load_summary, run.header.id, find_run_store(store)))


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
        write_output(f"{run.answer}\n" if run.answer else "")
    if run.answer is None:
        write_error(f"batuta: {run.error}\n")
    if run.outcome is Outcome.FAILED:
        raise typer.Exit(1)


def _show_summary(console: Console, summary: RunSummary | None) -> None:
    """Print the run's session, and the score and the comment that it was given, if it was."""
    if summary is None:
        return
    if summary.session is not None:
        console.print(f"\n[dim]session {escape(summary.session)}[/dim]")
    if summary.score is None and not summary.score_comment:
        return
    score = "not scored" if summary.score is None else f"score {summary.score:g}"
    console.print(f"\n[dim]{score}\n{escape(summary.score_comment or '')}[/dim]")


async def _load_summary(run_id: str, target: str) -> RunSummary | None:
    async with Store.open(target) as store:
        return await store.summary(run_id)


async def _list_summaries(limit: int, session: str | None, target: str) -> list[RunSummary]:
    async with Store.open(target) as store:
        return await store.list(limit=limit, session=session)


async def _load_run(run_id: str, target: str) -> Run:
    """The stored run of that id, or of the only id that begins so.

    Raises:
        ConfigError: there is none, or there are several.
    """
    async with Store.open(target) as store:
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
    old = await _load_run(run_id, store_target())
    step_runs = ReplayConductor(old)
    header, rules = old.header, NO_RULES
    async with HttpTransport() as http:
        clients: dict[WorkerId, Client]
        if recorded:
            clients = {worker.id: RunReplayClient.of([old], worker.id) for worker in header.pool}
        else:
            loaded = await load_config(http, pool=pool or find_plugged_pool(header.pool))
            missing = [w for w in step_runs.workers if w not in loaded.clients]
            if missing:
                raise ConfigError(
                    f"{loaded.source} has no worker {missing[0]}; name a pool with --pool, or "
                    "replay from the stored replies with --recorded"
                )
            clients = dict(loaded.clients)
            shared = header.pool.subset(clients)
            header = replace(header, pool=shared)
            rules = loaded.plan_rules.of_tenant(LOCAL_TENANT)
        run = await conduct(
            header.question,
            step_runs,
            header.pool,
            clients,
            limits=header.limits,
            seed=old.header.seed,
            settings=RunSettings(plan_rules=rules),
            hooks=RunHooks(model=old.header.model, parent=old.id),
        )
    async with Store.open(store_target()) as store:
        await store.append(run)
    return run


def _id_length(summaries: list[RunSummary]) -> int:
    """Characters of an id that tell these runs apart."""
    for length in range(_ID_SHOWN, max(len(each.id) for each in summaries)):
        if len({each.id[:length] for each in summaries}) == len(summaries):
            return length
    return max(len(each.id) for each in summaries)


def _summary_row(summary: RunSummary, id_length: int) -> tuple[str, ...]:
    when = time.strftime("%m-%d %H:%M", time.localtime(summary.created))
    tokens = f"{summary.input_tokens + summary.output_tokens:,}"
    question = escape(" ".join(summary.question_preview.split()))
    outcome = summary.outcome.value
    return (
        summary.id[:id_length],
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
        "session": summary.session,
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
