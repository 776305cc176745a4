"""`batuta eval`: measure systems on tasks, with their cost and uncertainty."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
import typer

from batuta.cli import EXIT_INTERRUPTED
from batuta.cli.json_output import print_json
from batuta.cli.options import format_example, hide_passwords, with_option_groups
from batuta.errors import ConfigError, SourceError
from batuta.lab.commands.eval_options import EvalCommandOptions
from batuta.lab.commands.eval_output import (
    exit_with_parent,
    has_scores,
    open_progress,
    print_message,
    print_table,
    recorded_set_folder,
    write_set_index,
)
from batuta.lab.commands.eval_subject import INSPECT_PREFIX, open_eval_subject, run_inspect
from batuta.lab.tasks import RECORDED_PREFIX
from batuta.rendering.terminal import write_output

if TYPE_CHECKING:
    from collections.abc import Callable

    from batuta.lab.evals import EvalOptions, EvalPart, Evaluation, ResultLog
    from batuta.lab.evals.forecast import EvalForecast
    from batuta.lab.evals.run_archive import RunArchive

RUNS_FILE = "runs.db"
PAGE = "questions.html"
EXIT_UNSCORED = 1
EXIT_BUDGET = 4
OUTCOMES_FILE = "outcomes.jsonl"
"""The file of each worker's outcomes on the calibration questions: a history to learn from."""
ALL_SETS = "all"
"""The name for every recorded set with files on this machine."""


async def estimate_calls(options: EvalCommandOptions) -> None:
    """Print the estimated calls and cost; no worker is called and nothing is written.

    Raises:
        ConfigError: the questions are recorded, or an option cannot be used.
        SourceError: there are no such questions, or they cannot be read.
        StoreError: earlier results in the folder cannot be used.
    """
    from batuta.lab.evals import EvalOptions, ResultLog  # noqa: PLC0415 - loads numpy
    from batuta.lab.evals.result_log import RESULTS_FILE  # noqa: PLC0415 - same

    async with AsyncExitStack() as stack:
        parts, _ = await open_eval_subject(options, stack)
        folder = Path(stack.enter_context(TemporaryDirectory()))
        if (known := options.output.out / RESULTS_FILE).is_file():
            shutil.copyfile(known, folder / RESULTS_FILE)
        terms = EvalOptions(
            seeds=options.questions.all_seeds,
            sub_pool=options.pool.pools,
            pool_seed=options.questions.seed,
        )
        log = stack.enter_context(ResultLog(folder))
        forecast = await _forecast_calls(options, parts, terms, log)
    if options.output.json:
        every = {**forecast.systems, "total": forecast.total}
        print_json({name: asdict(calls) for name, calls in every.items()})
        return
    for name, calls in forecast.systems.items():
        write_output(f"{name:24} {calls}\n")
    over = compare_budget(forecast, options.limits.budget)
    write_output(f"{forecast}{over}; no worker was called\n")


async def _forecast_calls(
    options: EvalCommandOptions, parts: Sequence[EvalPart], terms: EvalOptions, log: ResultLog
) -> EvalForecast:
    """Return the expected calls and cost; print the notes on them."""
    from batuta.lab.evals import forecast_parts  # noqa: PLC0415 - loads numpy

    forecast = await forecast_parts(
        parts, options.system_names, options=terms, result_log=log, equal=options.systems.equal
    )
    for note in forecast.notes:
        print_message(note)
    return forecast


def compare_budget(expected: EvalForecast, budget: float | None) -> str:
    """Return a clause that warns if the expected cost exceeds the budget; else an empty string."""
    if budget is None or expected.total.usd <= Decimal(str(budget)):
        return ""
    return f", more than the budget of ${budget:g}"


@with_option_groups
def eval_command(options: EvalCommandOptions) -> None:
    """Measure systems on tasks: accuracy, tokens, dollars and calls, with 95% intervals.

    Exit codes: 0 measured, or estimated with --check; 1 nothing could be scored; 2 wrong use or
    settings; 4 the budget was spent before all questions were asked; 130 interrupted. The results
    so far are kept.
    """
    if options.questions.tasks.startswith(INSPECT_PREFIX):
        options = run_inspect(options)
    if options.limits.check:
        anyio.run(estimate_calls, options)
        return
    reports: list[dict[str, Any]] = []
    try:
        for one in _measure_sets(_expand_sets(options), options.execution.jobs):
            reports.append(one)
            if not options.output.json:
                print_table(one)
    except KeyboardInterrupt:
        print_message(f"the results so far are kept; resume with --out {options.output.out}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _print_outcome(reports, options)


def _measure_sets(
    sets: tuple[EvalCommandOptions, ...], jobs: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the report of each set, in order.

    Several sets are measured in parallel, and a set whose record cannot be read is left out with a
    message.
    """
    if len(sets) == 1:
        yield anyio.run(_evaluate_set, sets[0])
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs or os.cpu_count(), mp_context=spawn, initializer=exit_with_parent
    ) as pool:
        for options, report in zip(sets, pool.map(_measure_one_set, sets), strict=True):
            if isinstance(report, str):
                print_message(f"{options.questions.tasks} is left out: {report}")
            else:
                yield report


def _measure_one_set(options: EvalCommandOptions) -> dict[str, Any] | str:
    """Return the report, or the reason why the record of this set cannot be read."""
    try:
        return anyio.run(_evaluate_set, options)
    except SourceError as error:
        return str(error)


def _print_outcome(reports: list[dict[str, Any]], options: EvalCommandOptions) -> None:
    """Print where the results are; fit a confidence model with --calibrate.

    For `recorded:all` an index of the sets is written.

    Raises:
        typer.Exit: the budget was spent before all questions were asked, or no run has a score.
    """
    every = options.questions.tasks == RECORDED_PREFIX + ALL_SETS
    if every:
        write_set_index(reports, options.output.out, options.output.report)
    if options.output.json:
        print_json(reports if every else reports[0])
    print_message(f"results, report.json and report.md are in {options.output.out}")
    if (options.output.out / RUNS_FILE).is_file():
        print_message(f"read its questions: batuta runs list --store {options.output.out}")
    if options.output.calibrate is not None:
        _fit_confidence(options.output.out, options.output.calibrate)
    if options.output.report is not None:
        _print_pages(options.output.report)
    if missing := sum(one["unasked"] for one in reports):
        more = f"raise --budget with --out {options.output.out}, and only these are run"
        print_message(f"the budget was spent: {missing} runs are missing; {more}")
        raise typer.Exit(EXIT_BUDGET)
    if not has_scores(reports):
        print_message("no run could be scored; see the reasons in results.jsonl")
        raise typer.Exit(EXIT_UNSCORED)


def _print_pages(report: Path) -> None:
    print_message(f"the report is {report / 'report.html'}")
    if (report / PAGE).is_file():
        print_message(f"question by question: {report / PAGE}")


def _fit_confidence(folder: Path, out: Path) -> None:
    """Fit a confidence model to the graded runs in the folder.

    Raises:
        ConfigError: the folder has no stored runs.
    """
    from batuta.lab.evals.confidence import calibrate_confidence  # noqa: PLC0415 - loads numpy

    if not (folder / RUNS_FILE).is_file():
        raise ConfigError(
            "--calibrate needs stored runs, which private and recorded sets do not have"
        )
    for line in anyio.run(calibrate_confidence, folder / RUNS_FILE, out).describe():
        print_message(line)
    print_message(f'use it: [confidence] file = "{out.absolute()}"')


def _expand_sets(options: EvalCommandOptions) -> tuple[EvalCommandOptions, ...]:
    """Return the options of each task set; more than one only for `recorded:all`.

    Raises:
        ConfigError: no recorded set was found.
    """
    if options.questions.tasks != RECORDED_PREFIX + ALL_SETS:
        return (options,)
    from batuta.lab.evals.recorded_sets import available_sets  # noqa: PLC0415 - loads numpy

    found = available_sets()
    if not found:
        raise ConfigError(
            "no recorded set was found: set BATUTA_DATA to a folder with recorded sets"
        )
    return tuple(_choose_set(options, name) for name in found)


def _choose_set(options: EvalCommandOptions, name: str) -> EvalCommandOptions:
    """Return the options of one recorded set, with its own folders."""
    output, folder = options.output, recorded_set_folder(name)
    report = None if output.report is None else output.report / folder
    return replace(
        options,
        questions=replace(options.questions, tasks=RECORDED_PREFIX + name),
        output=replace(output, out=output.out / folder, report=report),
    )


async def _evaluate_set(options: EvalCommandOptions) -> dict[str, Any]:
    """Measure one task set, write its files, and return the report."""
    from batuta.embedded.blas import limit_blas_to_one_thread  # noqa: PLC0415 - loads numpy
    from batuta.lab.evals import EvalOptions, ResultLog, evaluate_parts  # noqa: PLC0415 - same
    from batuta.lab.evals.question_page import write_question_page  # noqa: PLC0415 - same
    from batuta.lab.evals.report import build_report  # noqa: PLC0415 - same
    from batuta.lab.evals.report_files import make_report_folder, publish_report, write_report  # noqa: PLC0415 - same
    from batuta.lab.learners.history import write_history  # noqa: PLC0415 - same

    limit_blas_to_one_thread()
    draw = _load_drawing() if options.output.plots or options.output.report else None
    if options.output.report is not None:
        make_report_folder(options.output.report)
    async with AsyncExitStack() as stack:
        parts, trial_runner = await open_eval_subject(options, stack)
        terms = EvalOptions(
            seeds=options.questions.all_seeds,
            concurrency=options.execution.concurrency,
            sub_pool=options.pool.pools,
            pool_seed=options.questions.seed,
            trial_runner=trial_runner,
            archive=await _open_archive(parts, options.output.out, stack),
        )
        result_log = stack.enter_context(ResultLog(options.output.out))
        expected = await _forecast_calls(options, parts, terms, result_log)
        if parts[0].subject.has_prices and expected.total.calls:
            print_message(f"{expected}{compare_budget(expected, options.limits.budget)}")
        bar = stack.enter_context(open_progress())
        evaluation = await evaluate_parts(
            parts,
            options.system_names,
            options=terms,
            result_log=result_log,
            bar=bar,
            equal=options.systems.equal,
        )
        _report_other_runs(options.output.out, result_log.count_others(evaluation.results))
    report = build_report(evaluation, shlex.join(["batuta", *hide_passwords(sys.argv[1:])]))
    write_report(options.output.out, report)
    if evaluation.outcomes is not None:
        write_history(evaluation.outcomes, options.output.out / OUTCOMES_FILE)
    if draw is not None and options.output.plots:
        draw(evaluation, options.output.out)
    if draw is not None and options.output.report:
        publish_report(options.output.report, report, draw(evaluation, options.output.report))
        await write_question_page(options.output.report, evaluation, options.output.out / RUNS_FILE)
    return report


def _report_other_runs(folder: Path, others: int) -> None:
    """Print how many results in the folder belong to other evaluations."""
    if others:
        print_message(
            f"{folder} also has {others:,} runs of these systems with other questions, seeds, "
            "workers or settings, which are not counted here"
        )


async def _open_archive(
    parts: Sequence[EvalPart], folder: Path, stack: AsyncExitStack
) -> RunArchive | None:
    """Open the archive of runs; return None for replays of a record, which are not kept."""
    from batuta.lab.evals.run_archive import RunArchive  # noqa: PLC0415 - loads the store

    if parts[0].subject.replay_pool is not None:
        return None
    return await stack.enter_async_context(RunArchive.open(folder))


def _load_drawing() -> Callable[[Evaluation, Path], tuple[Path, ...]]:
    """Return the function that draws the figures, so that a missing library is reported early.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    from batuta.lab.evals.plots import draw_figures  # noqa: PLC0415 - only when figures are wanted

    return draw_figures


app = typer.Typer(add_completion=False)
app.command(
    "eval",
    epilog=format_example("batuta eval --tasks mine.jsonl --systems moa,ultra --report out"),
)(eval_command)
