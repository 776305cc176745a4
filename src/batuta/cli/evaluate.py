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

from batuta.cli.evaluated import (
    RECORDED,
    end_with_the_parent,
    folder_of,
    lead_to,
    say,
    scored,
    show,
)
from batuta.cli.report import print_json
from batuta.clients import Http
from batuta.config import data_folder, learned_from, open_ensemble
from batuta.core import WorkerId
from batuta.embedded.conductor import is_policy
from batuta.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from batuta.core import Client, Conductor
    from batuta.evals import Evaluation, Part, Subject, TaskSet
    from batuta.evals.evaluate import Equal
    from batuta.evals.marking import Marking

EXIT_UNSCORED = 1
EXIT_INTERRUPTED = 130
SYSTEMS = "best-single,ultra"
OUTCOMES = "outcomes.jsonl"
"""What each worker earned alone, where every one was asked: a history to learn from."""
EVERY = "all"
"""Stands for every recorded set whose files are here."""
LIMIT = 100
"""Questions where none are named; of a record, all."""
CALIBRATION = 1000
"""Questions on which simulated workers, which cost nothing, are compared with each other."""


class Split(StrEnum):
    """How a record is divided into what is learned from and what is measured."""

    RANDOM = "random"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the options of `batuta eval` say."""

    tasks: str
    systems: tuple[str, ...]
    limit: int | None
    seeds: tuple[int, ...]
    pool: str | None
    conductor: str | None
    pools: int | None
    concurrency: int
    equal: tuple[Equal, ...]
    files: tuple[Path, ...]
    split: Split
    simulate: bool
    judge: str | None
    sandbox: str
    plots: bool
    report: Path | None
    out: Path


def command(
    tasks: Annotated[
        str,
        typer.Option(
            help="rehearsal[:FAMILY][:held-out]; a benchmark (batuta tasks list); FILE.jsonl; "
            "recorded:SET/PART, or recorded:all."
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
        Split, typer.Option(help="Of a record: questions by lot, or whole unseen families.")
    ] = Split.RANDOM,
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
    recorded = tasks.startswith(RECORDED)
    named = (EVERY if recorded else SYSTEMS) if systems is None else systems
    names = tuple(name.strip() for name in named.split(",") if name.strip())
    if not names:
        raise ConfigError("name at least one system: --systems best-single,ultra")
    budgets: dict[Equal, bool] = {"calls": equal_calls, "cost": equal_cost}
    folder = out or _fresh_folder()
    equal: tuple[Equal, ...] = tuple(what for what in budgets if budgets[what])
    wishes = Wishes(
        tasks, names, limit, tuple(range(seed, seed + seeds)), pool, conductor, pools,
        concurrency, equal, tuple(from_file or ()), split, simulate, judge, sandbox, plots,
        report, folder,
    )  # fmt: skip
    found: list[dict[str, Any]] = []
    try:
        for one in _measured(_each(wishes), jobs):
            found.append(one)
            if not json:
                show(one)
    except KeyboardInterrupt:
        say(f"the results so far are kept; go on with --out {folder}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _close(found, wishes, json=json)


def _measured(wanted: tuple[Wishes, ...], jobs: int | None) -> Iterator[dict[str, Any]]:
    """The report of each, in order; several are measured at the same time."""
    if len(wanted) == 1:
        yield anyio.run(_evaluate, wanted[0])
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs or os.cpu_count(), mp_context=spawn, initializer=end_with_the_parent
    ) as pool:
        for wishes, found in zip(wanted, pool.map(_one_of_many, wanted), strict=True):
            if isinstance(found, str):
                say(f"{wishes.tasks} is left out: {found}")
            else:
                yield found


def _one_of_many(wishes: Wishes) -> dict[str, Any] | str:
    """The report, or why this set cannot be measured so."""
    try:
        return anyio.run(_evaluate, wishes)
    except SourceError as error:
        return str(error)


def _close(found: list[dict[str, Any]], wishes: Wishes, *, json: bool) -> None:
    """Say where everything is; several sets get a table of their own."""
    every = wishes.tasks == RECORDED + EVERY
    if every:
        lead_to(found, wishes.out, wishes.report)
    if json:
        print_json(found if every else found[0])
    say(f"results, report.json and report.md are in {wishes.out}")
    if wishes.report is not None:
        say(f"the report is {wishes.report / 'report.html'}")
    if not scored(found):
        say("no run could be scored; see the reasons in results.jsonl")
        raise typer.Exit(EXIT_UNSCORED)


def _fresh_folder() -> Path:
    """A folder of this evaluation's own."""
    return data_folder() / "evals" / datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")


def _each(wishes: Wishes) -> tuple[Wishes, ...]:
    """The same for each task set that is meant.

    Raises:
        ConfigError: no recorded set is here.
    """
    if wishes.tasks != RECORDED + EVERY:
        return (wishes,)
    from batuta.evals.recorded import here  # noqa: PLC0415 - loads numpy

    found = here()
    if not found:
        raise ConfigError("no recorded set is here: set BATUTA_DATA to a folder with them")
    return tuple(
        replace(
            wishes,
            tasks=RECORDED + name,
            out=wishes.out / folder_of(name),
            report=wishes.report and wishes.report / folder_of(name),
        )
        for name in found
    )


async def _evaluate(wishes: Wishes) -> dict[str, Any]:
    """The report, which is also written to the folders."""
    from batuta.embedded.blas import keep_to_one_thread  # noqa: PLC0415 - loads numpy
    from batuta.evals import Ledger, Terms, measure  # noqa: PLC0415 - same
    from batuta.evals.folder import keep, publish  # noqa: PLC0415 - same
    from batuta.evals.progress import bars  # noqa: PLC0415 - same
    from batuta.evals.report import report  # noqa: PLC0415 - same
    from batuta.solvers.history import write_history  # noqa: PLC0415 - same

    keep_to_one_thread()
    draw = _drawing() if wishes.plots or wishes.report else None
    async with AsyncExitStack() as stack:
        parts = await _parts(wishes, stack)
        terms = Terms(wishes.seeds, wishes.concurrency, wishes.pools, wishes.seeds[0])
        ledger = stack.enter_context(Ledger(wishes.out))
        bar = stack.enter_context(bars())
        evaluation = await measure(parts, wishes.systems, terms, ledger, bar, wishes.equal)
    found = report(evaluation, shlex.join(["batuta", *sys.argv[1:]]))
    keep(wishes.out, found)
    if evaluation.outcomes is not None:
        write_history(evaluation.outcomes, wishes.out / OUTCOMES)
    if draw is not None and wishes.plots:
        draw(evaluation, wishes.out)
    if draw is not None and wishes.report:
        publish(wishes.report, found, draw(evaluation, wishes.report))
    return found


def _drawing() -> Callable[[Evaluation, Path], tuple[Path, ...]]:
    """What draws the figures; asked for before anything is played.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    from batuta.evals.plots import draw  # noqa: PLC0415 - only when figures are wanted

    return draw


async def _parts(wishes: Wishes, stack: AsyncExitStack) -> tuple[Part, ...]:
    """Who is asked what.

    Raises:
        ConfigError: there is no such pool, conductor, judge or task set.
        SourceError: the questions' files are missing or cannot be used.
    """
    from batuta.evals import Part, open_tasks  # noqa: PLC0415 - loads numpy

    if wishes.tasks.startswith(RECORDED):
        return _recorded(wishes)
    http = await stack.enter_async_context(Http())
    subject = await _subject(wishes, http)
    limit = wishes.limit or LIMIT
    others = CALIBRATION if subject.simulated else limit
    tasks = open_tasks(wishes.tasks, limit, others, wishes.seeds[0], wishes.files)
    private = any(task.private for task in (*tasks.tasks, *tasks.calibration))
    if not subject.simulated and not private:
        subject = _journaled(subject, wishes.out, stack)
    if tasks.own_grader:
        tasks = replace(tasks, grade=await _grader(wishes, subject, tasks, stack))
    return (Part(subject, tasks, wishes.seeds),)


async def _grader(
    wishes: Wishes, subject: Subject, tasks: TaskSet, stack: AsyncExitStack
) -> Marking:
    from batuta.evals.marking import marking  # noqa: PLC0415 - loads the graders
    from batuta.tasks.sandbox import Tier  # noqa: PLC0415 - same

    if wishes.sandbox not in set(Tier):
        raise ConfigError(f"no sandbox {wishes.sandbox!r}; choose among: {', '.join(Tier)}")
    asked = (*tasks.tasks, *tasks.calibration)
    return await stack.enter_async_context(
        marking(asked, _judge(wishes.judge, subject), wishes.sandbox)
    )


def _recorded(wishes: Wishes) -> tuple[Part, ...]:
    from batuta.evals import recorded_parts  # noqa: PLC0415 - loads numpy

    models = [name.strip() for name in (wishes.pool or "").split(",") if name.strip()]
    parts = recorded_parts(
        wishes.tasks.removeprefix(RECORDED),
        wishes.split.value,
        wishes.seeds,
        models=models,
        limit=wishes.limit,
        simulate=wishes.simulate,
        conductor=_planner(wishes.conductor),
    )
    _enough(wishes, parts[0].subject)
    return parts


def _planner(folder: str | None) -> Conductor | None:
    """The conductor of a record: one that was trained into a folder, or none."""
    if folder is None:
        return None
    if not is_policy(Path(folder)):
        raise ConfigError(f"a record can be conducted by the folder of a policy, not by {folder!r}")
    return learned_from(Path(folder))


async def _subject(wishes: Wishes, http: Http) -> Subject:
    """The pool and its conductor."""
    from batuta.evals import Subject  # noqa: PLC0415 - loads numpy

    ensemble = await open_ensemble(
        http, pool=wishes.pool, conductor=wishes.conductor, time_scale=0.0
    )
    subject = Subject(
        ensemble.pool, ensemble.clients, ensemble.conductor, ensemble.limits, ensemble.simulated
    )
    _enough(wishes, subject)
    return subject


def _enough(wishes: Wishes, subject: Subject) -> None:
    if wishes.pools is not None and wishes.pools > len(subject.pool):
        raise ConfigError(f"--pools {wishes.pools} asks for more workers than {len(subject.pool)}")


def _journaled(subject: Subject, out: Path, stack: AsyncExitStack) -> Subject:
    """The same with a journal of its calls beside the results, so that none is paid twice."""
    from batuta.clients.journal import Journal  # noqa: PLC0415 - not for the rehearsal

    return subject.journaled(stack.enter_context(Journal(out / "calls.db")))


def _judge(name: str | None, subject: Subject) -> Client | None:
    if name is None:
        return None
    if name not in subject.pool:
        known = ", ".join(str(worker.id) for worker in subject.pool)
        raise ConfigError(f"there is no worker {name!r} to be the judge; choose among: {known}")
    return subject.clients[WorkerId(name)]
