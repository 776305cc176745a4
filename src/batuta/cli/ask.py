"""`batuta ask`: ask one question, show its workflow as it runs, print the answer."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import anyio
import typer
from rich.live import Live
from rich.markdown import Markdown

from batuta.cli import json_output
from batuta.cli.options import (
    LIMITS_PANEL,
    MOST_SECONDS,
    MOST_USD,
    OUTPUT_PANEL,
    POOL_PANEL,
    JsonOutput,
    PoolOptions,
    with_option_groups,
)
from batuta.cli.run_display import (
    RunDisplay,
    describe_access,
    describe_subtask,
    run_summary,
    workflow_table,
)
from batuta.clients import HttpTransport
from batuta.config.load import load_config, rounds_notes, store_target
from batuta.config.loaded import LoadedConfig
from batuta.config.served_systems import ServedSystem, choose_system
from batuta.core import (
    MAX_ROUNDS,
    MAX_STEPS,
    Limits,
    MalformedPlan,
    Outcome,
    Question,
    Run,
)
from batuta.core.formatting import format_cost, format_count
from batuta.engine import RunHooks
from batuta.errors import ConfigError, StoreError
from batuta.language.plan_rules import read_tag
from batuta.rendering.console import open_console
from batuta.rendering.terminal import write_error, write_output

EXIT_CODES = {
    Outcome.FAILED: 1,
    Outcome.REFUSED: 1,
    Outcome.DECLINED: 3,
    Outcome.CANCELLED: 130,
}
"""Exit codes by outcome; 0 for other outcomes, but `EXIT_LIMIT` if a limit left no answer."""
EXIT_LIMIT = 4
STORE_SECONDS = 5.0
"""Maximum number of seconds for storing an interrupted run."""
REFRESH_RATE = 12
"""Screen updates per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Limits of a run; None keeps the configured limit."""

    panel: ClassVar = LIMITS_PANEL

    max_cost: Annotated[
        float | None, typer.Option(min=0, max=MOST_USD, help="Maximum cost, in dollars.")
    ] = None
    max_seconds: Annotated[
        float | None, typer.Option(min=0, max=MOST_SECONDS, help="Maximum time, in seconds.")
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(min=0, help="Tokens after which no further call is made."),
    ] = None
    max_steps: Annotated[
        int | None, typer.Option(min=1, max=MAX_STEPS, help="Maximum number of steps.")
    ] = None
    rounds: Annotated[
        int | None, typer.Option(min=1, max=MAX_ROUNDS, help="Maximum number of rounds.")
    ] = None

    def change(self, limits: Limits) -> Limits:
        """Return `limits` changed by the given options, which may also raise a limit."""
        options = {
            "steps": self.max_steps,
            "rounds": self.rounds,
            "tokens": self.max_tokens,
            "usd": self.max_cost,
            "seconds": self.max_seconds,
        }
        return replace(limits, **{name: one for name, one in options.items() if one is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOutput:
    """Options for showing the answer and storing the run."""

    panel: ClassVar = OUTPUT_PANEL

    json: JsonOutput = False
    no_store: Annotated[bool, typer.Option("--no-store", help="Do not store the run.")] = False
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="On a terminal, print the Markdown of the answer instead of rendering it.",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCommandOptions:
    """The options of `batuta ask`."""

    model: Annotated[
        str | None,
        typer.Option(
            help="The model: batuta-ultra (default), batuta-mini, a \\[models.NAME] of the "
            "settings, or a pattern such as pattern/escalate.",
            rich_help_panel=POOL_PANEL,
        ),
    ] = None
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Plan and estimate, without calling a worker or storing the run; a conductor that "
            "is a model is called, which may cost money.",
        ),
    ] = False
    seed: Annotated[
        int | None, typer.Option(help="Seed of sampling, for workers that support seeds.")
    ] = None
    tag: Annotated[
        list[str] | None,
        typer.Option(help="A tag of the question, for plan rules; may be repeated."),
    ] = None
    output: AskOutput
    pool: PoolOptions
    limits: LimitOptions

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the question.

        Raises:
            ConfigError: a tag is invalid.
        """
        try:
            return tuple(map(read_tag, self.tag or ()))
        except ValueError as error:
            raise ConfigError(f"--tag: {error}") from None

    @property
    def stores(self) -> bool:
        """True if the run is to be stored."""
        return not (self.output.no_store or self.plan)


@with_option_groups
def ask_command(
    question: Annotated[
        str | None, typer.Argument(help="The question; if it is - or omitted, stdin is read.")
    ] = None,
    *,
    options: AskCommandOptions,
) -> None:
    """Answer one question and draw the workflow as it is run.

    Exit codes: 0 an answer, or with --plan a workflow; 1 neither; 2 wrong use or settings;
    3 outside what the worker can answer; 4 a limit was reached first; 130 interrupted.
    """
    text = _read_question(question)
    options.pool.pull_missing()
    code = anyio.run(_answer_question, text, options)
    if code:
        raise typer.Exit(code)


def _read_question(question: str | None) -> str:
    """Return the question from the argument or from stdin, without white space around it.

    Raises:
        ConfigError: the question is empty, or it was omitted and stdin is a terminal.
    """
    if question in (None, "-"):
        if question is None and sys.stdin.isatty():
            raise ConfigError('ask something: batuta ask "…", or send the question to stdin')
        question = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not question or not question.strip():
        raise ConfigError('the question is empty: batuta ask "…"')
    return question.strip()


async def _answer_question(text: str, options: AskCommandOptions) -> int:
    async with HttpTransport() as http:
        pool = options.pool
        config = await load_config(http, pool=pool.pool, conductor=pool.conductor)
        system = _choose_system(config, options)
        notes = list(config.notes)
        if options.limits.rounds is not None:
            notes += rounds_notes(system.conductor, system.limits.rounds, "--rounds")
        write_error("".join(f"{note}\n" for note in dict.fromkeys(notes)))
        asked = _AskedQuestion(text=text, options=options, config=config, system=system)
        if options.plan:
            return await _print_plan(asked)
        run = await _run_question(asked)
    _print_answer(options.output, run)
    if options.stores:
        await _store_run(run)
    if run.outcome is Outcome.LIMITED:
        return EXIT_LIMIT if run.reply is None else 0
    return EXIT_CODES.get(run.outcome, 0)


def _choose_system(config: LoadedConfig, options: AskCommandOptions) -> ServedSystem:
    """Return the system to ask, at its default effort and with the limits of the options.

    Raises:
        ConfigError: the system does not exist or only a server answers under its name, or both a
            model and a conductor were named.
    """
    if options.model and options.pool.conductor:
        raise ConfigError(
            "--conductor has no effect with --model, which chooses what answers: omit one"
        )
    system = choose_system(config, options.model)
    if system.effort is not None:
        from batuta.config.effort import narrow_system  # noqa: PLC0415 - few need it

        system = narrow_system(system)
    return replace(system, limits=options.limits.change(system.limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedQuestion:
    """A question and the system that answers it."""

    text: str
    options: AskCommandOptions
    config: LoadedConfig
    system: ServedSystem

    @property
    def headline(self) -> str:
        """The source of the pool, and the conductor's name."""
        return f"{self.config.source} · conductor {self.system.conductor.name}"

    async def conduct(self, display: RunDisplay) -> Run:
        """Run the question; if it is cancelled, store the run before the cancellation continues.

        The run is not stored if the options forbid it, if its end was not recorded, or if storing
        takes more than `STORE_SECONDS`.
        """
        question = self.system.with_effort(Question.of(self.text))
        try:
            return await self.system.answer(
                replace(question, tags=self.options.tags),
                self.config.clients,
                seed=self.options.seed,
                dry_run=self.options.plan,
                hooks=RunHooks(emit=display.emit),
            )
        except anyio.get_cancelled_exc_class():
            if self.options.stores and display.recorder.ended is not None:
                with anyio.move_on_after(STORE_SECONDS, shield=True):
                    await _store_run(display.recorder.run())
            raise


async def _run_question(asked: _AskedQuestion) -> Run:
    """Run the question; unless JSON is wanted, show the run on stderr, live on a terminal."""
    console = open_console(stderr=True)
    display = RunDisplay(asked.headline)
    if asked.options.output.json:
        return await asked.conduct(display)
    if console.is_terminal:
        with Live(display, console=console, refresh_per_second=REFRESH_RATE):
            run = await asked.conduct(display)
    else:
        run = await asked.conduct(display)
        console.print(display)
    console.print(run_summary(run))
    return run


def _print_answer(options: AskOutput, run: Run) -> None:
    """Print the answer, or the run as JSON, on stdout, and on stderr why there is no answer.

    Without JSON, an empty answer is reported on stderr too.
    """
    if options.json:
        json_output.print_json(json_output.run_json(run))
    elif run.answer:
        write_error("\n")
        text = run.answer.rstrip()
        if sys.stdout.isatty() and not options.raw:
            open_console().print(Markdown(text, hyperlinks=False))
        else:
            write_output(f"{text}\n")
    elif run.answer is not None:
        write_error("batuta: the worker answered with an empty text\n")
    if run.answer is None:
        write_error(f"batuta: {run.error}\n")


async def _store_run(run: Run) -> None:
    """Store the run; report a failure of the store on stderr instead of raising it."""
    from batuta.store import Store  # noqa: PLC0415 - loaded after the answer is shown

    try:
        async with Store.open(store_target()) as store:
            await store.append(run)
    except StoreError as error:
        write_error(f"batuta: the run was not stored: {error}\n")


async def _print_plan(asked: _AskedQuestion) -> int:
    """Print a dry run's workflow with its expected tokens and cost; return the exit code."""
    run = await asked.conduct(RunDisplay(asked.config.source))
    planned, expected = run.rounds[-1] if run.rounds else None, run.expected
    if planned is None or planned.workflow is None or expected is None:
        write_error(f"batuta: no workflow: {run.error}\n")
        return EXIT_LIMIT if run.outcome is Outcome.LIMITED else 1
    if asked.options.output.json:
        json_output.print_json(json_output.plan_json(run))
        return 0
    if isinstance(planned.decision, MalformedPlan):
        write_error(f"batuta: the best worker would answer alone: {planned.decision.reason}\n")
    flow = planned.workflow
    console = open_console()
    console.print(asked.headline, style="dim")
    table = workflow_table()
    for index, step in enumerate(flow.steps):
        reads, subtask = describe_access(flow, index), describe_subtask(flow, index)
        tokens = f"~{expected.steps[index].total:,}"
        table.add_row("·", str(index + 1), step.worker, reads, subtask, tokens, "", "")
    console.print(table)
    tokens, cost = f"~{format_count(expected.usage.total)} tokens", format_cost(expected.cost)
    if expected.cost.is_unknown:
        forecast = f"{tokens} expected, at an unknown cost: set `price` of the workers without one"
    else:
        forecast = f"{tokens}, about {cost} expected"
    console.print(f"{forecast}; no worker was called", style="dim")
    return 0
