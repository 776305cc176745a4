"""`batuta eval`: systems measured on tasks, with their cost and their uncertainty."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
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
from batuta.cli.json_output import print_json
from batuta.config.load import (
    REHEARSAL_POOL,
    WORLD2_POOL,
    data_folder,
    load_trained_conductor,
)
from batuta.embedded.policy import is_policy
from batuta.environment import read_variable
from batuta.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from batuta.core import Conductor
    from batuta.evals import EvalPart, Evaluation, Subject, TaskSet
    from batuta.evals.evaluation import EqualResource
    from batuta.evals.runner import TrialPlayer
    from batuta.evals.setup import SubjectSetup

EXIT_UNSCORED = 1
EXIT_INTERRUPTED = 130
DEFAULT_SYSTEMS = "best-single,ultra"
OUTCOMES_FILE = "outcomes.jsonl"
"""What each worker earned alone, where every one was asked: a history to learn from."""
ALL_SETS = "all"
"""Stands for every recorded set whose files are here."""
DEFAULT_LIMIT = 100
"""Questions where none are named; of a record, all."""
SIMULATED_CALIBRATION = 1000
"""Questions on which simulated workers, which cost nothing, are compared with each other."""


class RecordSplit(StrEnum):
    """How a record is divided into what is learned from and what is measured."""

    RANDOM = "random"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalCommandOptions:
    """What the options of `batuta eval` say."""

    tasks: str
    systems: tuple[str, ...]
    limit: int | None
    seeds: tuple[int, ...]
    pool: str | None
    conductor: str | None
    pools: int | None
    concurrency: int
    equal: tuple[EqualResource, ...]
    files: tuple[Path, ...]
    split: RecordSplit
    simulate: bool
    judge: str | None
    sandbox: str
    plots: bool
    report: Path | None
    out: Path
    executor: str
    workers: int | None
    journal: str | None


def eval_command(
    tasks: Annotated[
        str,
        typer.Option(
            help="rehearsal[:FAMILY][:held-out]; world2[:FAMILY][:held-out]; a benchmark (batuta "
            "tasks list); FILE.jsonl; recorded:SET/PART, or recorded:all."
        ),
    ] = "rehearsal",
    systems: Annotated[
        str | None, typer.Option(help="Names with commas between, or all; a wrong one lists them.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Questions at most: 100; of a record, all.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each question; of a record, splits.")
    ] = 1,
    *,
    seed: Annotated[
        int, typer.Option(min=0, help="The first seed: of questions, sampling, splits.")
    ] = 0,
    pool: Annotated[
        str | None,
        typer.Option(
            help="rehearsal, discover (keys and local servers), or a file; of a record, the "
            "models to keep, with commas between."
        ),
    ] = None,
    conductor: Annotated[
        str | None, typer.Option(help="Who conducts `ultra`, as for batuta ask.")
    ] = None,
    pools: Annotated[
        int | None, typer.Option(min=1, help="Each question gets so many workers, at random.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 64,
    equal_calls: Annotated[
        bool,
        typer.Option(
            "--equal-calls", help="Add self-consistency and best-of-N with as many calls as ultra."
        ),
    ] = False,
    equal_cost: Annotated[
        bool,
        typer.Option(
            "--equal-cost", help="Add them with as many dollars as ultra (unknown: tokens)."
        ),
    ] = False,
    from_file: Annotated[
        list[Path] | None, typer.Option("--from-file", help="Your own copy of the source's file.")
    ] = None,
    split: Annotated[
        RecordSplit, typer.Option(help="Of a record: questions by lot, or whole unseen families.")
    ] = RecordSplit.RANDOM,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Of a record: what it cannot know gets a recorded answer, and is marked.",
        ),
    ] = False,
    judge: Annotated[
        str | None, typer.Option(help="The worker that grades what no rule decides.")
    ] = None,
    sandbox: Annotated[
        str, typer.Option(help="Where programs run: auto, bubblewrap, landlock, or none.")
    ] = "auto",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Recorded sets at the same time: one a core.")
    ] = None,
    executor: Annotated[
        str, typer.Option(help="Where runs are played: local, ray, ray:local, ray:HOST:PORT.")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of Ray: one for each free core.")
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(help="PostgreSQL for finished calls, shared by machines: a file beside."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; what it has is not run again.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder of a report for people: HTML, figures, tables.")
    ] = None,
    plots: Annotated[bool, typer.Option("--plots", help="Draw figures (matplotlib).")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Measure systems on tasks: accuracy, tokens, dollars, calls, with 95% intervals.

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
    )  # fmt: skip
    found: list[dict[str, Any]] = []
    try:
        for one in _measure_sets(_expand_sets(wishes), jobs):
            found.append(one)
            if not json:
                print_table(one)
    except KeyboardInterrupt:
        print_message(f"the results so far are kept; go on with --out {folder}")
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
        parts, player = await _open_subject(options, stack)
        first = options.seeds[0]
        terms = EvalOptions(
            seeds=options.seeds,
            concurrency=options.concurrency,
            sub_pool=options.pools,
            pool_seed=first,
            player=player,
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
    """What draws the figures; asked for before anything is played.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    from batuta.evals.plots import draw_figures  # noqa: PLC0415 - only when figures are wanted

    return draw_figures


async def _open_subject(
    wishes: EvalCommandOptions, stack: AsyncExitStack
) -> tuple[tuple[EvalPart, ...], TrialPlayer | None]:
    """Who is asked what, and where that is played (None: here); refuses what is not there."""
    from batuta.evals import EvalPart, open_tasks  # noqa: PLC0415 - loads numpy
    from batuta.evals.setup import SubjectSetup  # noqa: PLC0415 - same

    if wishes.tasks.startswith(RECORDED_PREFIX):
        if wishes.executor != "local":
            raise ConfigError("recorded answers are played on this machine; see --jobs")
        return _open_record(wishes), None
    setup = SubjectSetup(
        pool=wishes.pool or (WORLD2_POOL if wishes.tasks.startswith(WORLD2_POOL) else None),
        rehearses=wishes.tasks.startswith(REHEARSAL_POOL),
        conductor=wishes.conductor,
        judge=wishes.judge,
        sandbox=wishes.sandbox,
    )
    subject = await setup.open_subject(stack)
    _check_pool_size(wishes, subject)
    limit = wishes.limit or DEFAULT_LIMIT
    others = SIMULATED_CALIBRATION if subject.simulated else limit
    tasks = open_tasks(wishes.tasks, limit, others, wishes.seeds[0], files=wishes.files)
    if not subject.simulated and not any(t.private for t in (*tasks.tasks, *tasks.calibration)):
        named = wishes.journal or read_variable(os.environ, "BATUTA_JOURNAL")
        journal = named or str((wishes.out / "calls.db").absolute())
        setup = replace(setup, journal=journal, scope=wishes.out.absolute().name)
        subject = await setup.open_journal(subject, stack)
    player = await _open_trial_player(wishes, setup, tasks, stack)
    if tasks.uses_task_graders:
        asked = (*tasks.tasks, *tasks.calibration)
        tasks = replace(tasks, grade=await setup.open_marking(asked, subject, stack))
    return (EvalPart(subject=subject, tasks=tasks, seeds=wishes.seeds),), player


async def _open_trial_player(
    wishes: EvalCommandOptions, setup: SubjectSetup, tasks: TaskSet, stack: AsyncExitStack
) -> TrialPlayer | None:
    """Where runs are played; None: in this process.

    Raises:
        ConfigError: there is no such executor, or its machines have no journal in common.
    """
    from batuta.evals.remote import RemoteTrials  # noqa: PLC0415 - loads numpy
    from batuta.evals.setup import is_shared  # noqa: PLC0415 - same
    from batuta.executor import LocalExecutor, open_executor  # noqa: PLC0415 - only when played

    executor = await stack.enter_async_context(open_executor(wishes.executor, wishes.workers))
    if isinstance(executor, LocalExecutor):
        return None
    if executor.machines > 1 and setup.journal is not None and not is_shared(setup.journal):
        raise ConfigError(
            "on several machines finished calls are kept in a database that all of them reach: "
            "--journal postgresql://user@host/database"
        )
    return RemoteTrials(executor, setup, None if tasks.uses_task_graders else tasks.grade)


def _open_record(options: EvalCommandOptions) -> tuple[EvalPart, ...]:
    from batuta.evals import open_recorded_parts  # noqa: PLC0415 - loads numpy

    models = [name.strip() for name in (options.pool or "").split(",") if name.strip()]
    parts = open_recorded_parts(
        options.tasks.removeprefix(RECORDED_PREFIX),
        options.split.value,
        options.seeds,
        models=models,
        limit=options.limit,
        simulate=options.simulate,
        conductor=_record_conductor(options.conductor),
    )
    _check_pool_size(options, parts[0].subject)
    return parts


def _record_conductor(folder: str | None) -> Conductor | None:
    """The conductor of a record: one that was trained into a folder, or none."""
    if folder is None:
        return None
    if not is_policy(Path(folder)):
        raise ConfigError(f"a record can be conducted by the folder of a policy, not by {folder!r}")
    return load_trained_conductor(Path(folder))


def _check_pool_size(options: EvalCommandOptions, subject: Subject) -> None:
    if options.pools is not None and options.pools > len(subject.pool):
        raise ConfigError(f"--pools {options.pools} asks for more workers than {len(subject.pool)}")
