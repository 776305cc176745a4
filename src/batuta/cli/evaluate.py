"""`batuta eval`: systems measured on tasks, with their cost and their uncertainty."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from batuta.cli.eval_output import (
    RECORDED_PREFIX,
    exit_with_parent,
    has_scores,
    print_message,
    print_table,
    set_folder,
    write_set_index,
)
from batuta.cli.eval_subject import (
    INSPECT_PREFIX,
    EvalCommandOptions,
    RecordSplit,
    open_eval_subject,
    run_inspect,
)
from batuta.cli.help_text import (
    EXECUTION_PANEL,
    OUTPUT_PANEL,
    POOL_PANEL,
    QUESTIONS_PANEL,
    SYSTEMS_PANEL,
)
from batuta.cli.json_output import print_json
from batuta.cli.options import (
    ConcurrentRuns,
    ExecutorName,
    JsonOutput,
    Judge,
    RayProcesses,
    Sandbox,
)
from batuta.environment import data_folder
from batuta.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from batuta.evals import Evaluation
    from batuta.evals.matched_budget import EqualResource

EXIT_UNSCORED = 1
EXIT_INTERRUPTED = 130
DEFAULT_SYSTEMS = "best-single,ultra"
OUTCOMES_FILE = "outcomes.jsonl"
"""What each worker earned alone, where every one was asked: a history to learn from."""
ALL_SETS = "all"
"""Stands for every recorded set whose files are here."""


def eval_command(
    tasks: Annotated[
        str,
        typer.Option(
            help="rehearsal[:FAMILY][:held-out]; world2[:FAMILY][:held-out]; a benchmark (batuta "
            "tasks list); FILE.jsonl; recorded:SET/PART, or recorded:all; inspect:FILE.py@TASK.",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = "rehearsal",
    systems: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated names, or all; an unknown name lists them.",
            rich_help_panel=SYSTEMS_PANEL,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Questions at most; default 100, of a record all.",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            help="Runs of each question; of a record, splits.",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = 1,
    *,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            help="The first seed: of questions, sampling, splits.",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = 0,
    pool: Annotated[
        str | None,
        typer.Option(
            help="rehearsal, discover (keys and local servers), or a file; of a record, the "
            "models to keep, comma-separated.",
            rich_help_panel=POOL_PANEL,
        ),
    ] = None,
    conductor: Annotated[
        str | None,
        typer.Option(help="Who conducts `ultra`, as for batuta ask.", rich_help_panel=POOL_PANEL),
    ] = None,
    pools: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Give each question this many workers, chosen at random.",
            rich_help_panel=POOL_PANEL,
        ),
    ] = None,
    concurrency: ConcurrentRuns = 64,
    equal_calls: Annotated[
        bool,
        typer.Option(
            "--equal-calls",
            help="Add self-consistency and best-of-N with as many calls as ultra.",
            rich_help_panel=SYSTEMS_PANEL,
        ),
    ] = False,
    equal_cost: Annotated[
        bool,
        typer.Option(
            "--equal-cost",
            help="Add them with as many dollars as ultra (unknown: tokens).",
            rich_help_panel=SYSTEMS_PANEL,
        ),
    ] = False,
    from_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--from-file",
            help="Your own copy of the source's file.",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    split: Annotated[
        RecordSplit,
        typer.Option(
            help="Of a record: random questions, whole unseen families, or all and learn nothing.",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = RecordSplit.RANDOM,
    leaves: Annotated[
        str | None,
        typer.Option(
            help="Of a record: workers that leave after the rest was learned from.",
            rich_help_panel=POOL_PANEL,
        ),
    ] = None,
    joins: Annotated[
        str | None,
        typer.Option(
            help="Of a record: workers known on few questions: NAME[:COUNT], 40 unless said.",
            rich_help_panel=POOL_PANEL,
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Of a record: where none fits, another recorded answer stands in, marked.",
            rich_help_panel=POOL_PANEL,
        ),
    ] = False,
    judge: Judge = None,
    sandbox: Sandbox = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Recorded sets at the same time; default one per core.",
            rich_help_panel=EXECUTION_PANEL,
        ),
    ] = None,
    executor: ExecutorName = "local",
    workers: RayProcesses = None,
    journal: Annotated[
        str | None,
        typer.Option(
            help="PostgreSQL URL for finished calls, shared by machines; default a file in --out.",
            rich_help_panel=EXECUTION_PANEL,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the results; what is there is not run again.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Folder for a report: HTML, figures, tables.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    plots: Annotated[
        bool,
        typer.Option("--plots", help="Draw figures (matplotlib).", rich_help_panel=OUTPUT_PANEL),
    ] = False,
    json: JsonOutput = False,
) -> None:
    """Measure systems on tasks: accuracy, tokens, dollars and calls, with 95% intervals.

    Exit codes: 0 measured; 1 nothing could be scored; 2 wrong use; 130 interrupted, the results
    so far are kept.
    """
    recorded = tasks.startswith(RECORDED_PREFIX)
    named = (ALL_SETS if recorded else DEFAULT_SYSTEMS) if systems is None else systems
    names = tuple(name.strip() for name in named.split(",") if name.strip())
    if not names:
        raise ConfigError("name at least one system: --systems best-single,ultra")
    budgets: dict[EqualResource, bool] = {"calls": equal_calls, "cost": equal_cost}
    folder = out or _new_folder()
    equal: tuple[EqualResource, ...] = tuple(what for what in budgets if budgets[what])
    wishes = EvalCommandOptions(
        tasks=tasks, systems=names, limit=limit, seeds=tuple(range(seed, seed + seeds)), pool=pool,
        conductor=conductor, pools=pools, concurrency=concurrency, equal=equal,
        files=tuple(from_file or ()), split=split, simulate=simulate, judge=judge, sandbox=sandbox,
        plots=plots, report=report, out=folder, executor=executor, workers=workers, journal=journal,
        leaves=leaves, joins=joins,
    )  # fmt: skip
    if tasks.startswith(INSPECT_PREFIX):
        wishes = run_inspect(wishes)
    found: list[dict[str, Any]] = []
    try:
        for one in _measure_sets(_expand_sets(wishes), jobs):
            found.append(one)
            if not json:
                print_table(one)
    except KeyboardInterrupt:
        print_message(f"the results so far are kept; resume with --out {folder}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _print_outcome(found, wishes, json=json)


def _measure_sets(
    wanted: tuple[EvalCommandOptions, ...], jobs: int | None
) -> Iterator[dict[str, Any]]:
    """The report of each, in order; several are measured at the same time."""
    if len(wanted) == 1:
        yield anyio.run(_evaluate_set, wanted[0])
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs or os.cpu_count(), mp_context=spawn, initializer=exit_with_parent
    ) as pool:
        for wishes, found in zip(wanted, pool.map(_measure_one_set, wanted), strict=True):
            if isinstance(found, str):
                print_message(f"{wishes.tasks} is left out: {found}")
            else:
                yield found


def _measure_one_set(options: EvalCommandOptions) -> dict[str, Any] | str:
    """The report, or why this set cannot be measured so."""
    try:
        return anyio.run(_evaluate_set, options)
    except SourceError as error:
        return str(error)


def _print_outcome(found: list[dict[str, Any]], options: EvalCommandOptions, *, json: bool) -> None:
    """Say where everything is; several sets get a table of their own."""
    every = options.tasks == RECORDED_PREFIX + ALL_SETS
    if every:
        write_set_index(found, options.out, options.report)
    if json:
        print_json(found if every else found[0])
    print_message(f"results, report.json and report.md are in {options.out}")
    if options.report is not None:
        print_message(f"the report is {options.report / 'report.html'}")
    if not has_scores(found):
        print_message("no run could be scored; see the reasons in results.jsonl")
        raise typer.Exit(EXIT_UNSCORED)


def _new_folder() -> Path:
    """A folder of this evaluation's own."""
    return data_folder() / "evals" / datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")


def _expand_sets(options: EvalCommandOptions) -> tuple[EvalCommandOptions, ...]:
    """The same for each task set that is meant.

    Raises:
        ConfigError: no recorded set is here.
    """
    if options.tasks != RECORDED_PREFIX + ALL_SETS:
        return (options,)
    from batuta.evals.recorded_sets import available_sets  # noqa: PLC0415 - loads numpy

    found = available_sets()
    if not found:
        raise ConfigError("no recorded set is here: set BATUTA_DATA to a folder with them")
    return tuple(
        replace(
            options,
            tasks=RECORDED_PREFIX + name,
            out=options.out / set_folder(name),
            report=options.report and options.report / set_folder(name),
        )
        for name in found
    )


async def _evaluate_set(options: EvalCommandOptions) -> dict[str, Any]:
    """The report, which is also written to the folders."""
    from batuta.embedded.blas import limit_blas_to_one_thread  # noqa: PLC0415 - loads numpy
    from batuta.evals import EvalOptions, ResultLog, evaluate_parts  # noqa: PLC0415 - same
    from batuta.evals.progress import open_progress  # noqa: PLC0415 - same
    from batuta.evals.report import build_report  # noqa: PLC0415 - same
    from batuta.evals.report_files import publish_report, write_report  # noqa: PLC0415 - same
    from batuta.solvers.history import write_history  # noqa: PLC0415 - same

    limit_blas_to_one_thread()
    draw = _load_drawing() if options.plots or options.report else None
    async with AsyncExitStack() as stack:
        parts, trial_runner = await open_eval_subject(options, stack)
        first = options.seeds[0]
        terms = EvalOptions(
            seeds=options.seeds,
            concurrency=options.concurrency,
            sub_pool=options.pools,
            pool_seed=first,
            trial_runner=trial_runner,
        )
        ledger = stack.enter_context(ResultLog(options.out))
        bar = stack.enter_context(open_progress())
        evaluation = await evaluate_parts(
            parts, options.systems, options=terms, result_log=ledger, bar=bar, equal=options.equal
        )
    found = build_report(evaluation, shlex.join(["batuta", *sys.argv[1:]]))
    write_report(options.out, found)
    if evaluation.outcomes is not None:
        write_history(evaluation.outcomes, options.out / OUTCOMES_FILE)
    if draw is not None and options.plots:
        draw(evaluation, options.out)
    if draw is not None and options.report:
        publish_report(options.report, found, draw(evaluation, options.report))
    return found


def _load_drawing() -> Callable[[Evaluation, Path], tuple[Path, ...]]:
    """What draws the figures; asked for before anything is run.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    from batuta.evals.plots import draw_figures  # noqa: PLC0415 - only when figures are wanted

    return draw_figures
