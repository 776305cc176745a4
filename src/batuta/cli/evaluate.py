"""`batuta eval`: systems measured on tasks, with their cost and their uncertainty."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.console import Console
from rich.table import Table

from batuta.cli.report import print_json
from batuta.clients import Http
from batuta.config import data_folder, open_ensemble
from batuta.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from batuta.evals import Evaluation, Subject

EXIT_UNSCORED = 1
EXIT_INTERRUPTED = 130
SYSTEMS = "best-single,ultra"
CALIBRATION = 1000
"""Questions on which simulated workers, which cost nothing, are compared with each other."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the options of `batuta eval` say."""

    tasks: str
    systems: tuple[str, ...]
    limit: int
    seeds: int
    seed: int
    pool: str | None
    conductor: str | None
    pools: int | None
    concurrency: int
    equal_calls: bool
    plots: bool
    out: Path


def command(
    tasks: Annotated[
        str, typer.Option(help="rehearsal[:FAMILY][:held-out], or a JSONL file of your own.")
    ] = "rehearsal",
    systems: Annotated[
        str, typer.Option(help="Names with commas between; a wrong one lists them all.")
    ] = SYSTEMS,
    limit: Annotated[int, typer.Option(min=1, help="Questions at most.")] = 100,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each question.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of questions, sampling and pools.")] = 0,
    pool: Annotated[
        str | None, typer.Option(help="rehearsal, discover (keys and local servers), or a file.")
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
            "--equal-calls",
            help="Add self-consistency and best-of-N with as many calls as ultra makes.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; what it has is not run again.")
    ] = None,
    plots: Annotated[bool, typer.Option("--plots", help="Draw figures (matplotlib).")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Measure systems on tasks: accuracy, tokens, dollars, calls, with 95% intervals.

    Exit codes: 0 measured; 1 nothing could be scored; 2 wrong use; 130 interrupted, the results
    so far are kept.
    """
    names = tuple(name.strip() for name in systems.split(",") if name.strip())
    if not names:
        raise ConfigError("name at least one system: --systems best-single,ultra")
    folder = out or _fresh_folder()
    wishes = Wishes(
        tasks, names, limit, seeds, seed, pool, conductor, pools,
        concurrency, equal_calls, plots, folder,
    )  # fmt: skip
    try:
        report = anyio.run(_evaluate, wishes)
    except KeyboardInterrupt:
        _say(f"the results so far are kept; go on with --out {folder}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _print(report, folder, json=json)
    if not any(figures["n"] for figures in report["systems"].values()):
        _say("no run could be scored; see the reasons in results.jsonl")
        raise typer.Exit(EXIT_UNSCORED)


def _fresh_folder() -> Path:
    """A folder of this evaluation's own."""
    return data_folder() / "evals" / datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")


async def _evaluate(wishes: Wishes) -> dict[str, Any]:
    """The report, which is also written to the folder."""
    from batuta.evals import Ledger, Terms, evaluate, open_tasks  # noqa: PLC0415 - loads numpy
    from batuta.evals.progress import bars  # noqa: PLC0415 - same
    from batuta.evals.report import report  # noqa: PLC0415 - same

    draw = _drawing() if wishes.plots else None
    async with Http() as http:
        subject = await _subject(wishes, http)
        calibration = CALIBRATION if subject.simulated else wishes.limit
        tasks = open_tasks(wishes.tasks, wishes.limit, calibration, wishes.seed)
        run_seeds = tuple(range(wishes.seed, wishes.seed + wishes.seeds))
        terms = Terms(run_seeds, wishes.concurrency, wishes.pools, wishes.seed)
        with Ledger(wishes.out) as ledger, bars() as bar:
            evaluation = await evaluate(
                subject, tasks, wishes.systems, terms, ledger, bar, equal_calls=wishes.equal_calls
            )
    found = report(evaluation, shlex.join(["batuta", *sys.argv[1:]]))
    _keep(wishes.out, found)
    if draw is not None:
        draw(evaluation, wishes.out)
    return found


def _drawing() -> Callable[[Evaluation, Path], object]:
    """What draws the figures; asked for before anything is played.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    from batuta.evals.plots import draw  # noqa: PLC0415 - only when figures are wanted

    return draw


async def _subject(wishes: Wishes, http: Http) -> Subject:
    """The pool and its conductor.

    Raises:
        ConfigError: there is no such pool or conductor, or the pool is smaller than `--pools`.
    """
    from batuta.evals import Subject  # noqa: PLC0415 - loads numpy

    ensemble = await open_ensemble(
        http, pool=wishes.pool, conductor=wishes.conductor, time_scale=0.0
    )
    if wishes.pools is not None and wishes.pools > len(ensemble.pool):
        raise ConfigError(f"--pools {wishes.pools} asks for more workers than {len(ensemble.pool)}")
    return Subject(
        ensemble.pool, ensemble.clients, ensemble.conductor, ensemble.limits, ensemble.simulated
    )


def _keep(folder: Path, found: dict[str, Any]) -> None:
    """Write the report beside the results.

    Raises:
        StoreError: the folder cannot be written.
    """
    import orjson  # noqa: PLC0415 - with the rest of the evaluation

    from batuta.evals.markdown import markdown  # noqa: PLC0415 - same

    try:
        (folder / "report.json").write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        (folder / "report.md").write_text(markdown(found), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"the report cannot be written: {error.strerror}") from None


def _print(report: dict[str, Any], folder: Path, *, json: bool) -> None:
    """The table or the JSON on stdout; where everything lies on stderr."""
    if json:
        print_json(report)
        return
    from batuta.evals.markdown import HEADS, notes, rows  # noqa: PLC0415 - with the evaluation

    console = Console()
    title = f"{report['tasks']}: {report['questions']} questions"
    shown = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for number, head in enumerate(HEADS[:-1]):
        shown.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in rows(report):
        shown.add_row(*row[:-1])
    console.print(shown)
    for line in notes(report):
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
    _say(f"results, report.json and report.md are in {folder}")


def _say(sentence: str) -> None:
    sys.stderr.write(f"batuta: {sentence}\n")
