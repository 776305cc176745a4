"""`batuta ask`: one question, its workflow while it is played, its answer."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.live import Live

from batuta.cli import report
from batuta.cli.show import Stand, dollars, reads, summary, task_of, workflow_table
from batuta.clients import Http
from batuta.config import Ensemble, open_ensemble, store_target
from batuta.core import MAX_STEPS, Limits, Malformed, Outcome, Question, Run
from batuta.engine import conduct
from batuta.errors import ConfigError, StoreError

EXIT = {Outcome.FAILED: 1, Outcome.CANCELLED: 130, Outcome.DECLINED: 3}
EXIT_LIMIT = 4
STORING = 5.0
"""Seconds that an interrupted run may take to be stored."""
REFRESH = 12
"""Pictures a second."""

Pool = Annotated[
    str | None,
    typer.Option(help="rehearsal, discover (keys and local servers), or a TOML file."),
]
Conductor = Annotated[
    str | None,
    typer.Option(help="A worker's id, best, vote, plan-solve-verify, or single/<id>."),
]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the options of `batuta ask` say."""

    question: str
    plan: bool
    json: bool
    pool: str | None
    conductor: str | None
    limits: Limits
    seed: int | None
    store: bool


def command(
    question: Annotated[str | None, typer.Argument(help="The question; - or none: stdin.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only plan and estimate; no worker.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    pool: Pool = None,
    conductor: Conductor = None,
    max_cost: Annotated[float | None, typer.Option(min=0, help="Dollars at most.")] = None,
    max_seconds: Annotated[float | None, typer.Option(min=0, help="Seconds at most.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=0, help="Tokens at most.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Steps at most.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds at most.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    no_store: Annotated[bool, typer.Option("--no-store", help="Keep no record.")] = False,
) -> None:
    """Answer one question and draw the workflow as it is played.

    Exit codes: 0 an answer; 1 no answer; 2 wrong use; 3 outside what the pool can answer;
    4 a limit was reached before there was an answer; 130 interrupted.
    """
    text = _question(question)
    limits = Limits(max_steps or MAX_STEPS, rounds or 1, max_tokens, max_cost, max_seconds)
    wishes = Wishes(text, plan, json, pool, conductor, limits, seed, not (no_store or plan))
    given = {"steps": max_steps, "rounds": rounds, "tokens": max_tokens, "usd": max_cost}
    code = anyio.run(_ask, wishes, {**given, "seconds": max_seconds})
    if code:
        raise typer.Exit(code)


def _question(question: str | None) -> str:
    """The question from the argument or from stdin.

    Raises:
        ConfigError: there is none.
    """
    if question in (None, "-"):
        if question is None and sys.stdin.isatty():
            raise ConfigError('ask something: batuta ask "…", or send the question to stdin')
        question = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not question or not question.strip():
        raise ConfigError('the question is empty: batuta ask "…"')
    return question.strip()


async def _ask(wishes: Wishes, given: dict[str, float | int | None]) -> int:
    async with Http() as http:
        ensemble = await open_ensemble(http, pool=wishes.pool, conductor=wishes.conductor)
        set_here = {name: value for name, value in given.items() if value is not None}
        limits = replace(ensemble.limits, **set_here)
        wishes = replace(wishes, limits=limits)
        if wishes.plan:
            return await _plan(wishes, ensemble)
        run = await _play(wishes, ensemble)
    _print(wishes, run)
    if wishes.store:
        await _keep(run)
    if run.outcome is Outcome.LIMITED:
        return EXIT_LIMIT if run.reply is None else 0
    return EXIT.get(run.outcome, 0)


async def _play(wishes: Wishes, ensemble: Ensemble) -> Run:
    """Conduct the question; on a terminal, with a picture that moves."""
    console = Console(stderr=True)
    stand = Stand(f"{ensemble.source} · conductor {ensemble.conductor.name}")
    if wishes.json:
        return await _conduct(wishes, ensemble, stand)
    if console.is_terminal:
        with Live(stand, console=console, refresh_per_second=REFRESH):
            run = await _conduct(wishes, ensemble, stand)
    else:
        run = await _conduct(wishes, ensemble, stand)
        console.print(stand)
    console.print(summary(run))
    return run


async def _conduct(wishes: Wishes, ensemble: Ensemble, stand: Stand) -> Run:
    """The run; one that is interrupted is stored before the interruption goes on."""
    try:
        return await conduct(
            Question.of(wishes.question),
            ensemble.conductor,
            ensemble.pool,
            ensemble.clients,
            limits=wishes.limits,
            seed=wishes.seed,
            emit=stand.emit,
            model="batuta-ultra",
            patience=ensemble.patience,
            policies=ensemble.policies,
            dry_run=wishes.plan,
        )
    except anyio.get_cancelled_exc_class():
        if wishes.store and stand.recorder.ended is not None:
            with anyio.move_on_after(STORING, shield=True):
                await _keep(stand.recorder.run())
        raise


def _print(wishes: Wishes, run: Run) -> None:
    """The answer on stdout, or why there is none on stderr."""
    if wishes.json:
        report.print_json(report.run_json(run))
    elif run.answer:
        sys.stderr.write("\n")
        sys.stderr.flush()
        sys.stdout.write(run.answer.rstrip() + "\n")
        sys.stdout.flush()
    elif run.answer is not None:
        sys.stderr.write("batuta: the worker answered with an empty text\n")
    if run.answer is None:
        sys.stderr.write(f"batuta: {run.error}\n")


async def _keep(run: Run) -> None:
    """Store the run; a full disk must not take the answer away."""
    from batuta.store import Store  # noqa: PLC0415 - the answer is out before this is loaded

    try:
        async with Store.open(store_target()) as store:
            await store.append(run)
    except StoreError as error:
        sys.stderr.write(f"batuta: the run was not stored: {error}\n")


async def _plan(wishes: Wishes, ensemble: Ensemble) -> int:
    """A dry run: what the conductor wrote, and what it is expected to take."""
    run = await _conduct(wishes, ensemble, Stand(ensemble.source))
    planned, expected = run.rounds[-1] if run.rounds else None, run.expected
    if planned is None or planned.workflow is None or expected is None:
        sys.stderr.write(f"batuta: no workflow: {run.error}\n")
        return EXIT_LIMIT if run.outcome is Outcome.LIMITED else 1
    if wishes.json:
        report.print_json(report.plan_json(run))
        return 0
    if isinstance(planned.decision, Malformed):
        sys.stderr.write(f"batuta: the best worker would answer alone: {planned.decision.reason}\n")
    flow = planned.workflow
    console = Console()
    console.print(f"[dim]{ensemble.source} · conductor {ensemble.conductor.name}[/dim]")
    table = workflow_table()
    for index, step in enumerate(flow.steps):
        tokens = f"~{expected.steps[index].total:,}"
        row = (str(index + 1), step.worker, reads(flow, index), task_of(flow, index), tokens)
        table.add_row("·", *row, "", "")
    console.print(table)
    cost = f"~{expected.usage.total:,} tokens, about {dollars(expected.cost)} expected"
    console.print(f"[dim]{cost}; no worker was called[/dim]")
    return 0
