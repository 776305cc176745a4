"""`batuta ask`: one question, its workflow while it is run, its answer."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

from batuta.cli import json_output
from batuta.cli.help_text import LIMITS_PANEL, OUTPUT_PANEL, POOL_PANEL
from batuta.cli.options import JsonOutput
from batuta.cli.run_display import (
    RunDisplay,
    describe_access,
    describe_subtask,
    run_summary,
    workflow_table,
)
from batuta.clients import HttpTransport
from batuta.config.load import LoadedConfig, load_config, store_target
from batuta.core import MAX_ROUNDS, MAX_STEPS, Limits, MalformedPlan, Outcome, Question, Run
from batuta.core.formatting import format_cost, format_count
from batuta.engine import conduct
from batuta.errors import ConfigError, StoreError

EXIT_CODES = {Outcome.FAILED: 1, Outcome.CANCELLED: 130, Outcome.DECLINED: 3}
EXIT_LIMIT = 4
STORE_SECONDS = 5.0
"""Seconds that an interrupted run may take to be stored."""
REFRESH_RATE = 12
"""Pictures a second."""

PoolOption = Annotated[
    str | None,
    typer.Option(
        help="rehearsal, discover (keys and local servers), or a TOML file.",
        rich_help_panel=POOL_PANEL,
    ),
]
ConductorOption = Annotated[
    str | None,
    typer.Option(
        help="A worker's id, best, vote, plan-solve-verify, single/<id>, or chain/<id>><id>.",
        rich_help_panel=POOL_PANEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCommandOptions:
    """What the options of `batuta ask` say."""

    question: str
    plan: bool
    json: bool
    pool: str | None
    conductor: str | None
    limits: Limits
    seed: int | None
    store: bool
    raw: bool


def ask_command(
    question: Annotated[
        str | None, typer.Argument(help="The question; - or nothing: stdin.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only plan and estimate; call no worker.")
    ] = False,
    json: JsonOutput = False,
    pool: PoolOption = None,
    *,
    conductor: ConductorOption = None,
    max_cost: Annotated[
        float | None, typer.Option(min=0, help="Dollars at most.", rich_help_panel=LIMITS_PANEL)
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=0, help="Seconds at most.", rich_help_panel=LIMITS_PANEL)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=0, help="Tokens at most.", rich_help_panel=LIMITS_PANEL)
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_STEPS, help="Steps at most.", rich_help_panel=LIMITS_PANEL),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_ROUNDS, help="Rounds at most.", rich_help_panel=LIMITS_PANEL),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Do not store the run.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Print the answer as it was written; on a terminal its Markdown is rendered.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
) -> None:
    """Answer one question and draw the workflow as it is run.

    Exit codes: 0 an answer; 1 no answer; 2 wrong use; 3 outside what the pool can answer;
    4 a limit was reached before there was an answer; 130 interrupted.
    """
    text = _read_question(question)
    limits = Limits(
        steps=max_steps or MAX_STEPS,
        rounds=rounds or 1,
        tokens=max_tokens,
        usd=max_cost,
        seconds=max_seconds,
    )
    wanted = AskCommandOptions(
        question=text,
        plan=plan,
        json=json,
        pool=pool,
        conductor=conductor,
        limits=limits,
        seed=seed,
        store=not (no_store or plan),
        raw=raw,
    )
    given = {"steps": max_steps, "rounds": rounds, "tokens": max_tokens, "usd": max_cost}
    code = anyio.run(_answer_question, wanted, {**given, "seconds": max_seconds})
    if code:
        raise typer.Exit(code)


def _read_question(question: str | None) -> str:
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


async def _answer_question(
    options: AskCommandOptions, given_limits: dict[str, float | int | None]
) -> int:
    async with HttpTransport() as http:
        loaded = await load_config(http, pool=options.pool, conductor=options.conductor)
        set_here = {name: value for name, value in given_limits.items() if value is not None}
        limits = replace(loaded.limits, **set_here)
        options = replace(options, limits=limits)
        sys.stderr.writelines(f"{note}\n" for note in loaded.notes)
        if options.plan:
            return await _print_plan(options, loaded)
        run = await _run_question(options, loaded)
    _print_answer(options, run)
    if options.store:
        await _store_run(run)
    if run.outcome is Outcome.LIMITED:
        return EXIT_LIMIT if run.reply is None else 0
    return EXIT_CODES.get(run.outcome, 0)


async def _run_question(options: AskCommandOptions, config: LoadedConfig) -> Run:
    """Conduct the question; on a terminal, with a picture that moves."""
    console = Console(stderr=True)
    stand = RunDisplay(f"{config.source} · conductor {config.conductor.name}")
    if options.json:
        return await _conduct_question(options, config, stand)
    if console.is_terminal:
        with Live(stand, console=console, refresh_per_second=REFRESH_RATE):
            run = await _conduct_question(options, config, stand)
    else:
        run = await _conduct_question(options, config, stand)
        console.print(stand)
    console.print(run_summary(run))
    return run


async def _conduct_question(
    options: AskCommandOptions, config: LoadedConfig, display: RunDisplay
) -> Run:
    """The run; one that is interrupted is stored before the interruption goes on."""
    try:
        return await conduct(
            Question.of(options.question),
            config.conductor,
            config.pool,
            config.clients,
            limits=options.limits,
            seed=options.seed,
            emit=display.emit,
            model="batuta-ultra",
            timeouts=config.timeouts,
            guardrails=config.guardrails,
            dry_run=options.plan,
        )
    except anyio.get_cancelled_exc_class():
        if options.store and display.recorder.ended is not None:
            with anyio.move_on_after(STORE_SECONDS, shield=True):
                await _store_run(display.recorder.run())
        raise


def _print_answer(options: AskCommandOptions, run: Run) -> None:
    """The answer on stdout, or why there is none on stderr."""
    if options.json:
        json_output.print_json(json_output.run_json(run))
    elif run.answer:
        sys.stderr.write("\n")
        sys.stderr.flush()
        _print_text(run.answer.rstrip(), rendered=sys.stdout.isatty() and not options.raw)
    elif run.answer is not None:
        sys.stderr.write("batuta: the worker answered with an empty text\n")
    if run.answer is None:
        sys.stderr.write(f"batuta: {run.error}\n")


def _print_text(text: str, *, rendered: bool) -> None:
    """The text on stdout; on a terminal its Markdown is rendered."""
    if rendered:
        Console().print(Markdown(text))
    else:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


async def _store_run(run: Run) -> None:
    """Store the run; a full disk must not take the answer away."""
    from batuta.store import Store  # noqa: PLC0415 - the answer is out before this is loaded

    try:
        async with Store.open(store_target()) as store:
            await store.append(run)
    except StoreError as error:
        sys.stderr.write(f"batuta: the run was not stored: {error}\n")


async def _print_plan(options: AskCommandOptions, config: LoadedConfig) -> int:
    """A dry run: what the conductor wrote, and what it is expected to take."""
    run = await _conduct_question(options, config, RunDisplay(config.source))
    planned, expected = run.rounds[-1] if run.rounds else None, run.expected
    if planned is None or planned.workflow is None or expected is None:
        sys.stderr.write(f"batuta: no workflow: {run.error}\n")
        return EXIT_LIMIT if run.outcome is Outcome.LIMITED else 1
    if options.json:
        json_output.print_json(json_output.plan_json(run))
        return 0
    if isinstance(planned.decision, MalformedPlan):
        sys.stderr.write(f"batuta: the best worker would answer alone: {planned.decision.reason}\n")
    flow = planned.workflow
    console = Console()
    console.print(f"[dim]{config.source} · conductor {config.conductor.name}[/dim]")
    table = workflow_table()
    for index, step in enumerate(flow.steps):
        tokens = f"~{expected.steps[index].total:,}"
        row = (
            str(index + 1),
            step.worker,
            describe_access(flow, index),
            describe_subtask(flow, index),
            tokens,
        )
        table.add_row("·", *row, "", "")
    console.print(table)
    cost = (
        f"~{format_count(expected.usage.total)} tokens, about {format_cost(expected.cost)} expected"
    )
    console.print(f"[dim]{cost}; no worker was called[/dim]")
    return 0
