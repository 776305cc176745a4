"""`batuta tune`: the pool learns how it is best conducted, for a stated budget."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from batuta.cli.console import open_console
from batuta.cli.eval_output import RECORDED_PREFIX
from batuta.cli.help_text import (
    EXECUTION_PANEL,
    LIMITS_PANEL,
    OUTPUT_PANEL,
    POOL_PANEL,
    QUESTIONS_PANEL,
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
from batuta.cli.tune_output import show_forecast, show_result
from batuta.clients import HttpTransport
from batuta.config.load import LoadedConfig, load_config
from batuta.core import WorkerId
from batuta.core.suggestions import suggest_names
from batuta.errors import ConfigError

if TYPE_CHECKING:
    from batuta.tune.context import TuneSettings
    from batuta.tune.opening import TuneQuestions
    from batuta.tune.parts import QuestionParts

EXIT_INTERRUPTED = 130
CALL_WEIGHT = 0.037
"""Accuracy that one more call must gain where nothing else is said."""
QUESTIONS = 3000
"""Questions that are read at most where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What the options of `batuta tune` say."""

    pool: str | None
    tasks: str | None
    from_runs: str | None
    limit: int
    budget: float | None
    calls: int | None
    minutes: float | None
    labels: bool | None
    worth: float | None
    call_weight: float | None
    mean_calls: float | None
    stages: str | None
    judge: str | None
    rewrite: bool
    rewriter: str | None
    sandbox: str
    concurrency: int
    executor: str
    workers: int | None
    seed: int
    out: Path
    check: bool
    json: bool


def command(
    pool: Annotated[
        str | None,
        typer.Option(
            help="rehearsal, discover (keys and local servers), or a file.",
            rich_help_panel=POOL_PANEL,
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="FILE.jsonl of your own, a benchmark (batuta tasks list), rehearsal, or a record "
            "(recorded:SET/PART, recorded:FILE), which costs nothing; without it a general mix of "
            "reasoning-gym.",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    from_runs: Annotated[
        str | None,
        typer.Option(
            "--from-runs",
            help="A store of served runs: those with feedback are asked too (batuta runs).",
            rich_help_panel=QUESTIONS_PANEL,
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0, help="Total dollars at most; never exceeded.", rich_help_panel=LIMITS_PANEL
        ),
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(min=1, help="Calls of workers at most.", rich_help_panel=LIMITS_PANEL),
    ] = None,
    *,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Minutes at most.", rich_help_panel=LIMITS_PANEL)
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder of the results; the same command resumes there.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = Path("runs/tuned"),
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Say what it would do and cost; call no worker.",
            rich_help_panel=EXECUTION_PANEL,
        ),
    ] = False,
    stages: Annotated[
        str | None,
        typer.Option(
            help="calibrate,search,select,rewrite,judge, or only the first of them.",
            rich_help_panel=EXECUTION_PANEL,
        ),
    ] = None,
    labels: Annotated[
        bool | None,
        typer.Option(
            "--labels/--no-labels",
            help="Group questions by their first tag, or by their words; by default by the tags "
            "if there are enough.",
        ),
    ] = None,
    worth: Annotated[
        float | None,
        typer.Option(min=1e-9, help="Dollars that a right answer is worth to you."),
    ] = None,
    call_weight: Annotated[
        float | None,
        typer.Option(
            min=0, help="Accuracy that one more call must gain; 0.037, and of a record 0.005."
        ),
    ] = None,
    mean_calls: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Calls of a question on average at most: a call then counts for as much as that "
            "takes, not for less than --call-weight if it is given.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Questions at most.", rich_help_panel=QUESTIONS_PANEL)
    ] = QUESTIONS,
    judge: Judge = None,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite/--no-rewrite",
            help="Rewrite the best workflow's subtasks with gepa (extra tune), if it is installed.",
        ),
    ] = True,
    rewriter: Annotated[
        str | None,
        typer.Option(help="The worker that rewrites subtasks; by default the strongest."),
    ] = None,
    sandbox: Sandbox = "auto",
    concurrency: ConcurrentRuns = 32,
    executor: ExecutorName = "local",
    workers: RayProcesses = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Of the split, the search and the calls.", rich_help_panel=QUESTIONS_PANEL
        ),
    ] = 0,
    json: JsonOutput = False,
) -> None:
    """Find the best way to conduct the pool, and test it on held-out questions.

    Calibrates the workers, searches for workflows, chooses a selector, and compares it with the
    best single worker. Every call is reserved before it is made and recorded after it, so a
    restart pays for nothing twice.

    Exit codes: 0 done; 2 wrong use or a budget that is too small; 130 interrupted, run it again.
    """
    options = TuneOptions(
        pool=pool, tasks=tasks, from_runs=from_runs, limit=limit,
        budget=budget, calls=calls, minutes=minutes,
        labels=labels, worth=worth, call_weight=call_weight, mean_calls=mean_calls,
        stages=stages, judge=judge, rewrite=rewrite, rewriter=rewriter, sandbox=sandbox,
        concurrency=concurrency, executor=executor, workers=workers,
        seed=seed, out=out, check=check, json=json,
    )  # fmt: skip
    try:
        found = (
            _tune_record(options)
            if (tasks or "").startswith(RECORDED_PREFIX)
            else anyio.run(_tune_workflows, options)
        )
    except KeyboardInterrupt:
        _write_notice(f"what was paid is kept; the same command with --out {out} resumes")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if json:
        print_json(found)


def _tune_record(options: TuneOptions) -> dict[str, Any]:
    """The tuning of recorded answers."""
    from batuta.cli.tune_record import refuse_with_record, tune_record  # noqa: PLC0415 - rarely used
    from batuta.embedded.blas import limit_blas_to_one_thread  # noqa: PLC0415 - loads numpy

    refuse_with_record(
        {"--pool": options.pool, "--from-runs": options.from_runs, "--stages": options.stages,
         "--judge": options.judge, "--rewriter": options.rewriter, "--workers": options.workers,
         "--mean-calls": options.mean_calls}
    )  # fmt: skip
    limit_blas_to_one_thread()
    return tune_record(
        str(options.tasks).removeprefix(RECORDED_PREFIX),
        limit=options.limit,
        labels=options.labels,
        call_weight=options.call_weight,
        worth=options.worth,
        seed=options.seed,
        out=options.out,
        check=options.check,
        is_quiet=options.json,
    )


async def _tune_workflows(options: TuneOptions) -> dict[str, Any]:
    from batuta.embedded.blas import limit_blas_to_one_thread  # noqa: PLC0415 - loads numpy
    from batuta.tune.opening import forecast_tuning  # noqa: PLC0415 - same
    from batuta.tune.parts import split_questions  # noqa: PLC0415 - same

    limit_blas_to_one_thread()
    async with HttpTransport() as http:
        loaded = await load_config(http, pool=options.pool, time_scale=0.0)
        for name, role in ((options.judge, "judge"), (options.rewriter, "rewriter")):
            if name is not None and name not in loaded.pool:
                known = suggest_names(name, (worker.id for worker in loaded.pool))
                raise ConfigError(f"there is no worker {name!r} to be the {role}; {known}")
        questions = await _open_all_questions(options)
        parts = split_questions(questions.tasks, questions.family, options.seed)
        settings = _tune_settings(options, loaded, questions)
        if options.check:
            forecast = forecast_tuning(loaded.pool, questions, parts, settings)
            if not options.json:
                show_forecast(loaded, questions, forecast)
            return forecast
        return await _run_tuning(
            options, loaded, questions=questions, parts=parts, settings=settings
        )


async def _open_all_questions(options: TuneOptions) -> TuneQuestions:
    """The questions that are named, and those of served runs; without names these alone."""
    from batuta.evals.judged_runs import read_judged_runs  # noqa: PLC0415 - loads numpy
    from batuta.tune.opening import add_served_questions, open_questions  # noqa: PLC0415 - same

    if options.from_runs is None:
        return open_questions(options.tasks, options.limit, options.seed)
    found = await read_judged_runs(options.from_runs)
    _write_notice(str(found))
    named = options.tasks is not None
    known = open_questions(options.tasks, options.limit, options.seed) if named else None
    return add_served_questions(known, found)


def _tune_settings(
    options: TuneOptions, loaded: LoadedConfig, questions: TuneQuestions
) -> TuneSettings:
    """The settings that the options mean.

    Raises:
        ConfigError: there is no budget, or no such stage.
    """
    from batuta.tune.context import TuneSettings  # noqa: PLC0415 - same
    from batuta.tune.opening import is_labelled  # noqa: PLC0415 - loads numpy
    from batuta.tune.rewriting import is_rewriting_installed  # noqa: PLC0415 - same
    from batuta.tune.spending import Allowance  # noqa: PLC0415 - same
    from batuta.tune.stages import TuneStage  # noqa: PLC0415 - same

    if options.budget is None and options.calls is None and options.minutes is None:
        raise ConfigError("say what it may cost: --budget DOLLARS, --calls N or --minutes M")
    order = list(TuneStage)
    named = order if options.stages is None else _named_stages(options.stages, order)
    labelled = is_labelled(questions) if options.labels is None else options.labels
    return TuneSettings(
        allowance=Allowance(
            usd=None if options.budget is None else Decimal(str(options.budget)),
            calls=options.calls,
            minutes=options.minutes,
            unknown=loaded.limits.unknown,
        ),
        labelled=labelled,
        call_weight=_choose_call_weight(options),
        mean_calls=options.mean_calls,
        worth=options.worth,
        rewrites=options.rewrite and is_rewriting_installed(),
        rewriter=None if options.rewriter is None else WorkerId(options.rewriter),
        max_steps=loaded.limits.steps,
        seed=options.seed,
        last=named[-1],
    )


def _choose_call_weight(options: TuneOptions) -> float:
    """What a call must gain at least; where only a limit is given, nothing."""
    if options.call_weight is not None:
        return options.call_weight
    return CALL_WEIGHT if options.mean_calls is None else 0.0


def _named_stages(said: str, order: list[Any]) -> list[Any]:
    names = [name.strip() for name in said.split(",") if name.strip()]
    if not names or names != [str(stage) for stage in order[: len(names)]]:
        known = ",".join(order)
        raise ConfigError(f"the stages are {known}: name them from the first to the last wanted")
    return order[: len(names)]


async def _run_tuning(
    options: TuneOptions,
    loaded: LoadedConfig,
    questions: TuneQuestions,
    parts: QuestionParts,
    *,
    settings: TuneSettings,
) -> dict[str, Any]:
    from batuta.tune.context import TuneContext  # noqa: PLC0415 - same
    from batuta.tune.opening import open_runner, start_clock  # noqa: PLC0415 - loads numpy
    from batuta.tune.recommend import write_settings  # noqa: PLC0415 - same
    from batuta.tune.report import describe_tuning, write_results  # noqa: PLC0415 - same
    from batuta.tune.stages import ULTRA  # noqa: PLC0415 - same
    from batuta.tune.tuning import run_tuning  # noqa: PLC0415 - same

    judge = None if options.judge is None else WorkerId(options.judge)
    async with open_runner(
        loaded.pool, loaded.clients, questions=questions, settings=settings, folder=options.out,
        judge=judge, sandbox=options.sandbox, concurrency=options.concurrency,
        executor=options.executor, processes=options.workers,
    ) as (runner, budget):  # fmt: skip
        console = open_console(stderr=True)

        def report(stage: str, found: str) -> None:
            spent = f"{runner.meter.calls:,} calls, ${budget.usd:.4f}"
            console.print(f"{stage:9}  {found}  [{spent}]", markup=False, highlight=False)

        context = TuneContext(
            parts=parts,
            family=questions.family,
            runner=runner,
            settings=settings,
            used_minutes=start_clock(),
            report=report,
        )
        result = await run_tuning(context)
    found = describe_tuning(result, parts, settings, runner.meter)
    source = Path(options.pool) if options.pool else Path("batuta.toml")
    original = source.read_text(encoding="utf-8") if source.is_file() else ""
    system = (result.nominees or {}).get(ULTRA)
    text = write_settings(
        original,
        found["recommendation"],
        result.cards,
        groups=result.grouping.names,
        rounds=1 if system is None else system.selector.rounds,
    )
    write_results(
        options.out,
        found,
        result=result,
        tasks=parts.search,
        settings_text=None if loaded.simulated else text,
    )
    if not options.json:
        show_result(found, options.out, simulated=loaded.simulated)
    return found


def _write_notice(sentence: str) -> None:
    sys.stderr.write(f"batuta: {sentence}\n")
