"""`batuta runs`: list, show and replay stored runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

import anyio
import typer
from rich.console import Console

from batuta.cli import json_output
from batuta.cli.options import Json, format_example, with_option_groups
from batuta.cli.run_approvals import add_approval_commands
from batuta.cli.run_display import print_run
from batuta.clients import HttpTransport, RunReplayClient
from batuta.conductors.replay_conductor import ReplayConductor
from batuta.config.load import find_plugged_pool, load_config, store_target
from batuta.config.served_systems import ultra_of
from batuta.core import Client, Failure, Outcome, Run, WorkerId
from batuta.core.formatting import format_cost, format_count, format_seconds, format_usd
from batuta.engine import Recorder, RunHooks, RunSettings, conduct
from batuta.errors import ConfigError
from batuta.rendering.console import new_table, open_console, print_nothing, print_table
from batuta.rendering.terminal import write_error, write_json, write_output
from batuta.store import RunSummary, Store, encode_run
from batuta.store.run_filter import EVERY_RUN, RunFilter, RunFilterError, parse_run_filter
from batuta.store.run_list import RunPage, RunTotals
from batuta.store.savings import Saving, list_savings, saving_json, sum_savings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """Options for the order of a list."""

    panel: ClassVar = "Order"

    sort: Annotated[
        str | None, typer.Option(help="created, cost, seconds, tokens or score; default created.")
    ] = None
    order: Annotated[
        str | None,
        typer.Option(help="desc: the largest or newest first; asc: the reverse; default desc."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWords:
    """Options that select runs by text, system, outcome, worker, caller and tags."""

    panel: ClassVar = "Which runs"

    search: Annotated[
        str | None,
        typer.Option(
            help="Text in the question's or answer's first 200 characters, or the start of an id."
        ),
    ] = None
    model: Annotated[str | None, typer.Option(help="The system that was asked.")] = None
    outcome: Annotated[str | None, typer.Option(help="The outcome; several as failed,limited.")] = (
        None
    )
    worker: Annotated[str | None, typer.Option(help="A worker that was planned or asked.")] = None
    error: Annotated[str | None, typer.Option(help="The error's code, such as timed_out.")] = None
    session: Annotated[str | None, typer.Option(help="Only runs of this session.")] = None
    user: Annotated[str | None, typer.Option(help="The end user that the request named.")] = None
    tag: Annotated[
        list[str] | None,
        typer.Option(help="A tag, or name=value of metadata; if repeated, all must match."),
    ] = None
    tenant: Annotated[str | None, typer.Option(help="Only runs of this tenant.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRanges:
    """Options that select runs by time, cost and duration."""

    panel: ClassVar = "Ranges"

    since: Annotated[
        str | None, typer.Option(help="24h, 7d, today, yesterday, a day, or a time.")
    ] = None
    until: Annotated[
        str | None, typer.Option(help="A time as for --since; a day counts to its end.")
    ] = None
    min_cost: Annotated[
        str | None, typer.Option(help="Minimum cost, in dollars; an unknown price counts as 0.")
    ] = None
    max_cost: Annotated[
        str | None, typer.Option(help="Maximum cost, in dollars; an unknown price counts as 0.")
    ] = None
    min_seconds: Annotated[str | None, typer.Option(help="Minimum duration, in seconds.")] = None
    max_seconds: Annotated[str | None, typer.Option(help="Maximum duration, in seconds.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Options that select runs by tokens and score."""

    panel: ClassVar = "Tokens and scores"

    min_tokens: Annotated[str | None, typer.Option(help="Minimum number of tokens.")] = None
    max_tokens: Annotated[str | None, typer.Option(help="Maximum number of tokens.")] = None
    min_score: Annotated[str | None, typer.Option(help="Minimum score.")] = None
    max_score: Annotated[str | None, typer.Option(help="Maximum score.")] = None
    judged: Annotated[
        str | None, typer.Option(help="yes: runs with a score; no: runs without a score.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilterOptions:
    """All options that select and sort runs."""

    words: RunWords
    ranges: RunRanges
    figures: RunFigures
    order: RunOrder

    def read(self) -> RunFilter:
        """Return the filter.

        Raises:
            ConfigError: a value cannot be used.
        """
        try:
            return parse_run_filter(self.given())
        except RunFilterError as error:
            option = "search" if error.name == "q" else error.name.replace("_", "-")
            raise ConfigError(f"--{option}: {str(error).removesuffix('.')}") from None

    def given(self) -> Iterator[tuple[str, str]]:
        """Yield the options that were given, under their names in the API."""
        for group in (self.words, self.ranges, self.figures, self.order):
            for name in (field.name for field in fields(group)):
                value: str | list[str] | None = getattr(group, name)
                texts = [value] if isinstance(value, str) else value or []
                yield from (("q" if name == "search" else name, each) for each in texts)


app = typer.Typer(help="The stored runs: list, show, replay.", no_args_is_help=True)
add_approval_commands(app)

_T = TypeVar("_T")
_ID_SHOWN = 12
"""Minimum number of an id's characters in a list; `runs show` accepts the shortened id."""
_PADDING = 2
_LEAST_QUESTION = 8
"""Minimum width of the column of questions, unless the ids are the only other column."""
_LONGEST_SYSTEM = 20
RUNS_FILE = "runs.db"
NO_RUNS = 'no runs yet; start one: batuta ask "…"'
AMBIGUOUS_SHOWN = 5
"""Maximum number of ids that the error about an ambiguous prefix lists."""
RunArgument = Annotated[str, typer.Argument(help="The run's id, or a unique prefix of it.")]


StoreOption = Annotated[
    str | None,
    typer.Option(
        help="A store: a runs.db, such as an evaluation's, its folder, or a URL; default: the "
        "configured one."
    ),
]


def find_run_store(named: str | None) -> str:
    """Return the path or URL of the named store, or of the configured one.

    A name may be a file, a folder with a `runs.db`, or a URL, which is not checked here.

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
        raise ConfigError(
            f"there is no store at {found}; name a runs.db, its folder, or a URL with --store"
        )
    return str(found)


@app.command(
    "list", epilog=format_example("batuta runs list --since 24h --outcome failed --sort seconds")
)
@with_option_groups
def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of runs.")] = 20,
    store: StoreOption = None,
    json: Json = False,
    *,
    filters: RunFilterOptions,
) -> None:
    """List stored runs and their totals, newest first or by --sort."""
    run_filter = filters.read()
    page, totals = anyio.run(_find_runs, limit, run_filter, find_run_store(store))
    if json:
        json_output.print_json([_summary_json(summary) for summary in page.rows])
        return
    console = open_console()
    if page.rows:
        _print_table(console, page.rows)
        console.print(f"\n{_describe_totals(totals)}", style="dim", soft_wrap=True)
    else:
        none = NO_RUNS if run_filter == EVERY_RUN else "no runs match; see: batuta runs list"
        console.print(none, style="dim")
    if totals.searched_to is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(totals.searched_to))
        console.print(
            f"Looked back to {when}; name a time with --since and --until to find older runs.",
            style="dim",
            soft_wrap=True,
        )


def _print_table(console: Console, summaries: list[RunSummary]) -> None:
    """Print one line per run; the question gets the width that the other columns leave.

    A narrow terminal shows fewer columns. Ids are shortened only as far as they stay distinct
    within the list, because `runs show` accepts them.
    """
    columns = [c for c in _COLUMNS if console.width >= c.least_width]
    length = _id_length(summaries)
    rows = [[column.show(summary, length) for column in columns] for summary in summaries]
    widths = [max(len(c.name), *(len(row[at]) for row in rows)) for at, c in enumerate(columns)]
    table = new_table(padding=(0, _PADDING, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column.name, no_wrap=True, width=width, justify=column.justify)
    least = _LEAST_QUESTION if len(columns) > 1 else 1
    room = max(least, console.width - sum(widths) - _PADDING * len(widths))
    table.add_column("question", no_wrap=True, overflow="ellipsis", width=room)
    for row, summary in zip(rows, summaries, strict=True):
        table.add_row(*row, " ".join(summary.question_preview.split()))
    console.print(table)


def _describe_totals(totals: RunTotals) -> str:
    tokens = format_count(totals.input_tokens + totals.output_tokens)
    parts = [f"{format_count(totals.runs)} run{'s' if totals.runs != 1 else ''}"]
    parts += [f"{format_count(totals.unanswered)} without an answer"] if totals.unanswered else []
    parts += [format_cost(totals.cost), f"{tokens} tokens"]
    if totals.median_seconds is not None and totals.p95_seconds is not None:
        parts.append(f"median {format_seconds(totals.median_seconds)}")
        parts.append(f"95th percentile {format_seconds(totals.p95_seconds)}")
    if totals.mean_score is not None:
        parts.append(f"mean score {totals.mean_score:.2f} of {format_count(totals.judged)} judged")
    return " · ".join(parts)


@app.command("sessions", epilog=format_example("batuta runs sessions --since 7d"))
def list_sessions(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of sessions.")] = 20,
    since: Annotated[
        str | None, typer.Option(help="24h, 7d, today, yesterday, a day, or a time.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only runs of this tenant.")] = None,
    store: StoreOption = None,
    json: Json = False,
) -> None:
    """List sessions with their estimated savings compared with the best single worker.

    Only the newest 200,000 runs are read.
    """
    ranges, words = RunRanges(since=since), RunWords(tenant=tenant)
    filters = RunFilterOptions(words=words, ranges=ranges, figures=RunFigures(), order=RunOrder())
    run_filter = filters.read()
    found, total = anyio.run(_read_savings, limit, run_filter, find_run_store(store))
    if json:
        summary = [saving_json(one) for one in found]
        json_output.print_json({"sessions": summary, "total": saving_json(total)})
        return
    console = open_console()
    if not found:
        print_nothing("no sessions")
        return
    table = new_table(padding=(0, _PADDING, 0, 0))
    for name in ("session", "latest", "runs", "cost", "best single, est.", "saved, est."):
        table.add_column(name, overflow="fold", justify="left" if name == "session" else "right")
    for one in found:
        usd = [format_usd(one.usd), format_usd(one.alone_usd), format_usd(one.saved_usd)]
        figures = usd if one.runs else ["–"] * 3
        table.add_row(one.session or "", _format_when(one.latest), str(one.runs), *figures)
    print_table(console, table)
    summary = " · ".join(filter(None, (total.sentence, total.verdicts)))
    console.print(f"\n{summary}", style="dim", soft_wrap=True)


async def _read_savings(
    limit: int, run_filter: RunFilter, target: str
) -> tuple[list[Saving], Saving]:
    async with Store(target) as store:
        database, tenant, since = store.database, run_filter.tenant, run_filter.since
        found = await list_savings(database, limit, tenant=tenant, since=since)
        return found, await sum_savings(database, tenant=tenant, since=since)


@app.command("show", epilog=format_example("batuta runs show run_5f --step 2"))
def show_stored_run(
    run_id: RunArgument,
    step: Annotated[
        int | None, typer.Option(min=1, help="Show this step's prompt and reply; not with --json.")
    ] = None,
    store: StoreOption = None,
    json: Json = False,
) -> None:
    """Show a run's workflow and answer, or with --step the exact prompt and reply of a step."""
    run = anyio.run(_load_run, run_id, find_run_store(store))
    if json:
        write_json(encode_run(run).decode())
        return
    console = open_console()
    if step is not None:
        _show_step(console, run, step)
        return
    console.print(f"{run.header.question.text}\n", style="bold")
    print_run(console, run, f"conductor {run.header.conductor}")
    style = "" if run.answer else "red"
    console.print(f"\n{run.answer or run.error or 'no answer'}", style=style)
    _show_summary(console, anyio.run(_find_summary, run.header.id, find_run_store(store)))


@app.command("replay", epilog=format_example("batuta runs replay run_5f --recorded"))
def replay_stored_run(
    run_id: RunArgument,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Use the stored replies, at no cost.")
    ] = False,
    pool: Annotated[
        str | None,
        typer.Option(
            help="Without --recorded: the pool whose workers answer; default: the run's simulated "
            "pool, else as for batuta ask."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Execute the workflows of a stored run again; the new run is stored as well.

    Exit codes: 0 replayed; 1 the new run failed; 2 the run or a worker does not exist.
    """
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
    """Print the run's session, score and comment, if it has any."""
    if summary is None:
        return
    if summary.session is not None:
        console.print(f"\nsession {summary.session}", style="dim")
    if summary.score is None and not summary.score_comment:
        return
    score = "not scored" if summary.score is None else f"score {summary.score:g}"
    console.print(f"\n{score}\n{summary.score_comment or ''}", style="dim")


async def _find_summary(run_id: str, target: str) -> RunSummary | None:
    async with Store.open(target) as store:
        return await store.summary(run_id)


async def load_summary(run_id: str, target: str) -> RunSummary:
    """Return the summary of the run with that id or unique id prefix.

    Raises:
        ConfigError: no run matches, or several do.
    """
    async with Store.open(target) as store:
        found = await store.summary(run_id)
        if found is None and (whole := await _whole_id(store, run_id)):
            found = await store.summary(whole)
    return _require_run(found, run_id)


async def _find_runs(limit: int, run_filter: RunFilter, target: str) -> tuple[RunPage, RunTotals]:
    async with Store.open(target) as store:
        return await store.find(run_filter, limit), await store.totals(run_filter)


async def _load_run(run_id: str, target: str) -> Run:
    """Return the stored run with that id or unique id prefix."""
    async with Store.open(target) as store:
        run = await store.get(run_id)
        if run is None and (whole := await _whole_id(store, run_id)):
            run = await store.get(whole)
    return _require_run(run, run_id)


async def _whole_id(store: Store, prefix: str) -> str | None:
    """Return the only id with that prefix; None if there is none.

    Raises:
        ConfigError: several ids have the prefix.
    """
    found = await store.find_ids(prefix, AMBIGUOUS_SHOWN)
    if len(found) > 1:
        raise ConfigError(f"{prefix} matches several runs: {', '.join(found)}")
    return found[0] if found else None


def _require_run(found: _T | None, run_id: str) -> _T:
    if found is None:
        raise ConfigError(f"there is no run {run_id}; see: batuta runs list")
    return found


async def _replay_run(run_id: str, recorded: bool, pool: str | None) -> Run:
    """Execute the run's workflows again; store the new run, even if it is cancelled."""
    old = await _load_run(run_id, store_target())
    step_runs = ReplayConductor(old)
    header, settings, recorder = old.header, RunSettings(), Recorder()
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
            header = replace(header, pool=header.pool.subset(clients))
            settings = ultra_of(loaded).settings
        try:
            return await conduct(
                header.question,
                step_runs,
                header.pool,
                clients,
                limits=header.limits,
                seed=header.seed,
                settings=settings,
                hooks=RunHooks(model=header.model, parent=old.id, recorder=recorder),
            )
        finally:
            if recorder.ended is not None:
                with anyio.CancelScope(shield=True):
                    async with Store.open(store_target()) as store:
                        await store.append(recorder.run())


def _id_length(summaries: list[RunSummary]) -> int:
    """Return how many leading characters distinguish the ids of these runs, at least 12.

    If all ids are shorter, it is the length of the longest.
    """
    for length in range(_ID_SHOWN, max(len(each.id) for each in summaries)):
        if len({each.id[:length] for each in summaries}) == len(summaries):
            return length
    return max(len(each.id) for each in summaries)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    name: str
    show: Callable[[RunSummary, int], str]
    """Returns a cell, given a run and the number of characters to show of its id."""
    least_width: int = 0
    """Terminal width from which the column is shown."""
    justify: Literal["left", "right"] = "left"


_COLUMNS = (
    _Column(name="run", show=lambda run, length: run.id[:length]),
    _Column(name="when", show=lambda run, _: _format_when(run.created), least_width=55),
    _Column(name="outcome", show=lambda run, _: run.outcome.value, least_width=40),
    _Column(
        name="system",
        show=lambda run, _: (run.model or run.conductor)[:_LONGEST_SYSTEM],
        least_width=110,
    ),
    _Column(
        name="steps",
        # Steps of a plan that was not executed are not stored.
        show=lambda run, _: "–" if run.outcome is Outcome.PLANNED else str(run.steps),
        least_width=100,
        justify="right",
    ),
    _Column(
        name="tokens",
        show=lambda run, _: format_count(run.input_tokens + run.output_tokens),
        least_width=100,
        justify="right",
    ),
    _Column(
        name="cost", show=lambda run, _: format_cost(run.cost), least_width=65, justify="right"
    ),
    _Column(
        name="time",
        show=lambda run, _: format_seconds(run.seconds),
        least_width=75,
        justify="right",
    ),
)


def _format_when(moment: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(moment))


def _summary_json(summary: RunSummary) -> dict[str, object]:
    return {
        "id": summary.id,
        "created": summary.created,
        "model": summary.model,
        "session": summary.session,
        "acting": summary.acted.acting,
        "took_over_from": summary.acted.took_over_from,
        "reason": summary.acted.reason,
        "user": summary.user,
        "tags": summary.tags,
        "workers": summary.workers,
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
    """Print the prompt and the reply of the step in every round that has one of that number.

    Raises:
        ConfigError: no round has such a step.
    """
    step_runs = [step for step in run.steps if step.index == number - 1]
    if not step_runs:
        raise ConfigError(f"run {run.id} has no step {number} that was executed")
    for step in step_runs:
        console.rule(f"step {number} · {step.worker}")
        for message in step.request.messages if step.request else ():
            console.print(message.role.value, style="dim")
            console.print(message.text)
        console.rule("reply")
        failed = isinstance(step.result, Failure)
        text = step.result.message if isinstance(step.result, Failure) else step.result.text
        console.print(text, style="red" if failed else "")
