"""`batuta tune`: find the best way to conduct a pool, within a budget."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import typer
from rich.console import Console

from batuta.cli import EXIT_INTERRUPTED
from batuta.cli.json_output import print_json
from batuta.cli.options import format_example, with_option_groups
from batuta.cli.progress import open_progress_bars
from batuta.clients import HttpTransport, WorkerSpec
from batuta.config.conductors import PATTERN_PREFIX
from batuta.config.load import DEFAULT_FILE, load_config
from batuta.config.loaded import LoadedConfig
from batuta.config.pool_file import describe_workers
from batuta.core import WorkerId
from batuta.core.suggestions import suggest_names
from batuta.embedded.policy import is_policy
from batuta.errors import ConfigError
from batuta.lab.commands.eval_output import print_message
from batuta.lab.commands.tune_options import TuneOptions, TuneQuestionOptions
from batuta.lab.task_sources import check_simulated_questions
from batuta.lab.tasks import RECORDED_PREFIX
from batuta.rendering.console import open_console

if TYPE_CHECKING:
    from batuta.lab.tasks.recorded import RecordedOutcomes
    from batuta.lab.tune.context import TuneContext, TuneSettings
    from batuta.lab.tune.opening import TuneQuestions
    from batuta.lab.tune.parts import QuestionParts
    from batuta.lab.tune.record_tuning import RecordParts
    from batuta.lab.tune.result import TuneResult
    from batuta.lab.tune.stages import TuneStage

CONFIDENCE_FILE = "confidence.json"
"""The file of the fitted confidence model, beside the selectors."""
RECORD_CALL_WEIGHT = 0.005
"""Default accuracy that one more call must gain on a record. Real workers agree more often than
simulated workers, so that further calls gain less and fewer are made; dollars count separately."""


def show_forecast(loaded: LoadedConfig, questions: TuneQuestions, forecast: dict[str, Any]) -> None:
    """Print what the tuning would do, and how much it may cost at most."""
    console = open_console(highlight=False)
    many, parts = len(questions.tasks), forecast["questions"]
    console.print(
        f"{loaded.source}: {len(loaded.pool)} workers; {questions.name}: {many} questions"
    )
    shares = ", ".join(f"{count} {name}" for name, count in parts.items())
    console.print(f"parts: {shares}")
    how = "by their tags" if forecast["labelled"] else "by their words"
    console.print(f"up to {forecast['groups']} groups, {how}; no worker was called")
    for stage, most in forecast["stages_at_most"].items():
        calls = "as time allows" if most["calls"] is None else f"up to {most['calls']:,} calls"
        usd = "" if most["usd"] is None else f", about ${most['usd']:.4f}"
        console.print(f"  {stage:10} {calls}{usd}")
    if (most := forecast["mean_calls"]) is not None:
        console.print(f"the nominee for ultra may make {most:g} calls per question on average")
    worst = max(forecast["call_at_most_usd"].values(), default=0.0)
    console.print(
        f"the most expensive single call may cost ${worst:.4f}; it is reserved before it is made"
    )
    if forecast["unpriced"]:
        console.print(f"workers without a price, estimated high: {', '.join(forecast['unpriced'])}")


def show_result(found: dict[str, Any], out: Path, *, pool: str | None, counted: Decimal) -> None:
    """Print the result; `pool` is the name of a simulated pool, None for real workers.

    `counted` are the dollars that count against the budget, which may be more than the calls cost,
    or less if other commands paid for some of them.
    """
    console = open_console(highlight=False, soft_wrap=True)
    for line in found["recommendation"]["why"]:
        console.print(line, soft_wrap=False)
    for line in found["confidence"]:
        console.print(f"confidence: {line}", soft_wrap=False)
    spent = found["spent"]
    console.print(f"spent: {spent['calls']:,} calls, ${spent['usd']:.4f}")
    if float(counted) > spent["usd"] + 0.00005:
        console.print(
            f"${counted:.4f} count against the budget, because calls that failed, or whose tokens "
            "are not reported, count at their worst case",
            soft_wrap=False,
        )
    if float(counted) < spent["usd"] - 0.00005:
        console.print(
            f"${counted:.4f} of that were paid for by this tuning; its other calls were in the "
            "journal",
            soft_wrap=False,
        )
    console.print(f"report: {out / 'report.html'}")
    if pool is not None:
        ultra = found["recommendation"]["ultra"] or ""
        pattern = ultra.removeprefix(PATTERN_PREFIX) if ultra.startswith(PATTERN_PREFIX) else ""
        conductor = pattern or out / "selector"
        if pattern or (out / "selector").is_dir():  # the search writes it
            console.print(f"try it: batuta ask --pool {pool} --conductor {conductor} QUESTION")
    else:
        console.print(f"use it: batuta serve --pool {out / 'batuta.toml'}")


@with_option_groups
def command(options: TuneOptions) -> None:
    """Find the best way to conduct the pool, and test it on held-out questions.

    The command calibrates the workers, searches for workflows, chooses a selector, and compares it
    with the best single worker. Every call is reserved before it is made and recorded after it, so
    a restart pays for nothing twice.

    Exit codes: 0 done; 2 wrong use or settings, too small a budget, or a worker that stopped
    answering; 130 interrupted, the same command resumes.
    """
    if options.questions.from_sessions is not None:
        from batuta.lab.commands.tune_sessions import tune_sessions  # noqa: PLC0415 - loads numpy

        tune_sessions(options)
        return
    try:
        found = (
            tune_record(options)
            if (options.questions.tasks or "").startswith(RECORDED_PREFIX)
            else anyio.run(_tune_workflows, options)
        )
    except KeyboardInterrupt:
        folder = options.output.out
        print_message(f"finished calls are kept; the same command with --out {folder} resumes")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if options.output.json:
        print_json(found)


async def _tune_workflows(options: TuneOptions) -> dict[str, Any]:
    from batuta.embedded.blas import limit_blas_to_one_thread  # noqa: PLC0415 - loads numpy
    from batuta.lab.tune.opening import forecast_tuning  # noqa: PLC0415 - same
    from batuta.lab.tune.parts import split_questions  # noqa: PLC0415 - same
    from batuta.lab.tune.stages import TuneStage  # noqa: PLC0415 - same

    limit_blas_to_one_thread()
    options = replace(options, pool=options.pool or os.environ.get("BATUTA_CONFIG"))
    async with HttpTransport() as http:
        loaded = await load_config(http, pool=options.pool, time_scale=0.0)
        check_simulated_questions(
            filter(None, [options.questions.tasks]),
            loaded.source,
            simulated=loaded.simulated,
            allowed=options.questions.simulated_questions,
        )
        for name, role in ((options.grading.judge, "judge"), (options.search.rewriter, "rewriter")):
            if name is not None and name not in loaded.pool:
                known = suggest_names(name, (worker.id for worker in loaded.pool))
                raise ConfigError(f"there is no worker {name!r} for the {role}; {known}")
        # Simulated workers can answer only questions of their own world.
        world = (options.pool or "").partition(":")[0] if loaded.simulated else None
        questions = await _open_all_questions(options.questions, world)
        parts = split_questions(questions.tasks, questions.family, options.questions.seed)
        settings = _tune_settings(options, loaded, questions)
        if settings.last is not TuneStage.JUDGE:
            parts = parts.unjudged()
        if options.execution.check:
            forecast = forecast_tuning(loaded.pool, questions, parts, settings)
            if not options.output.json:
                show_forecast(loaded, questions, forecast)
            return forecast
        return await _run_tuning(
            options, loaded, questions=questions, parts=parts, settings=settings
        )


async def _open_all_questions(wanted: TuneQuestionOptions, otherwise: str | None) -> TuneQuestions:
    """Return the questions of --tasks and of served runs, as far as these are named.

    If neither is named, `otherwise` names the questions; None means a general mix.
    """
    from batuta.lab.evals.judged_runs import read_judged_runs  # noqa: PLC0415 - loads numpy
    from batuta.lab.tune.opening import add_served_questions, open_questions  # noqa: PLC0415 - same

    if wanted.from_runs is None:
        return open_questions(wanted.tasks or otherwise, wanted.limit, wanted.seed)
    found = await read_judged_runs(wanted.from_runs)
    print_message(str(found))
    named = wanted.tasks is not None
    known = open_questions(wanted.tasks, wanted.limit, wanted.seed) if named else None
    return add_served_questions(known, found)


def _tune_settings(
    options: TuneOptions, loaded: LoadedConfig, questions: TuneQuestions
) -> TuneSettings:
    from batuta.lab.tune.context import TuneSettings  # noqa: PLC0415 - loads numpy
    from batuta.lab.tune.opening import is_labelled  # noqa: PLC0415 - same
    from batuta.lab.tune.rewriting import is_rewriting_installed  # noqa: PLC0415 - same
    from batuta.lab.tune.spending import Allowance, bound_pool_costs  # noqa: PLC0415 - same
    from batuta.lab.tune.stages import TuneStage  # noqa: PLC0415 - same

    limits, goals, search = options.limits, options.goals, options.search
    stages = options.execution.stages
    if limits.budget is None and limits.calls is None and limits.minutes is None:
        raise ConfigError("set a limit: --budget DOLLARS, --calls N or --minutes M")
    unknown = loaded.limits.unknown
    bounds = bound_pool_costs(loaded.pool, questions.tasks, unknown)
    if limits.calls is None and limits.minutes is None and not any(bounds.values()):
        raise ConfigError(
            "calls of these workers cost nothing, so --budget limits nothing: set --calls N or "
            "--minutes M too"
        )
    return TuneSettings(
        allowance=Allowance(
            usd=None if limits.budget is None else Decimal(str(limits.budget)),
            calls=limits.calls,
            minutes=limits.minutes,
            unknown=unknown,
        ),
        labelled=is_labelled(questions) if search.labels is None else search.labels,
        call_weight=goals.needed_gain,
        mean_calls=goals.mean_calls,
        worth=goals.worth,
        most_workers=search.most_workers,
        patterns=search.patterns,
        only_proven=goals.only_proven,
        rewrites=search.rewrite and is_rewriting_installed(),
        lacks_rewriting=search.rewrite and not is_rewriting_installed(),
        rewriter=None if search.rewriter is None else WorkerId(search.rewriter),
        max_steps=loaded.limits.steps,
        seed=options.questions.seed,
        last=TuneStage.JUDGE if stages is None else _last_stage(stages),
        samples=loaded.confidence and loaded.confidence.samples,
    )


def _last_stage(stages: str) -> TuneStage:
    """Return the last of the comma-separated stages, which must be the first ones in order."""
    from batuta.lab.tune.stages import TuneStage  # noqa: PLC0415 - loads numpy

    order = list(TuneStage)
    names = [name.strip() for name in stages.split(",") if name.strip()]
    if not names or names != [str(stage) for stage in order[: len(names)]]:
        known = ",".join(order)
        raise ConfigError(f"the stages are {known}: name the first ones, in this order")
    return order[len(names) - 1]


async def _run_tuning(
    options: TuneOptions,
    loaded: LoadedConfig,
    questions: TuneQuestions,
    parts: QuestionParts,
    *,
    settings: TuneSettings,
) -> dict[str, Any]:
    from batuta.lab.tune.context import TuneContext  # noqa: PLC0415 - loads numpy
    from batuta.lab.tune.opening import open_runner, start_clock  # noqa: PLC0415 - same
    from batuta.lab.tune.tuning import run_tuning  # noqa: PLC0415 - same

    where, grading = options.execution, options.grading
    async with open_runner(
        loaded.pool, loaded.clients, questions=questions, settings=settings,
        folder=options.output.out, sandbox=grading.sandbox,
        judge=None if grading.judge is None else WorkerId(grading.judge),
        concurrency=where.concurrency, executor=where.executor, processes=where.workers,
        journal=where.journal,
    ) as (runner, budget):  # fmt: skip

        def spent() -> str:
            return f"{runner.meter.calls:,} calls, ${budget.usd:.4f}"

        def report(stage: str, found: str) -> None:
            bars.console.print(f"{stage:9}  {found}  [{spent()}]", highlight=False)

        context = TuneContext(
            parts=parts,
            family=questions.family,
            runner=runner,
            settings=settings,
            used_minutes=start_clock(),
            report=report,
        )
        with open_progress_bars() as bars:
            task = bars.add_task("% of the budget", total=100, status="")
            runner.meter.after_call = lambda: bars.update(
                task, completed=min(int(100 * context.spent_share()), 100), status=spent()
            )
            result = await run_tuning(context)
            found = await _write_results(options, loaded, context, result)
    if not options.output.json:
        pool = options.pool if loaded.simulated else None
        show_result(found, options.output.out, pool=pool, counted=budget.usd)
    return found


def read_original(
    pool: str | None, environ: Mapping[str, str], folder: Path, specs: Sequence[WorkerSpec]
) -> str:
    """Return the text of the pool's settings file, with `specs` as its workers if it names none.

    `pool` is the value of --pool; None: the default file, as `load_config` finds it. Paths that are
    relative to the file's folder are rewritten for settings in `folder`.
    """
    from batuta.lab.tune.recommend import move_paths  # noqa: PLC0415 - loads numpy

    source = Path(pool or environ.get("BATUTA_CONFIG") or DEFAULT_FILE)

    def moved(value: str) -> str:
        found = source.parent / value
        is_path = found.is_file() or is_policy(found)  # not the name of a worker
        if Path(value).is_absolute() or not is_path:
            return value
        return Path(os.path.relpath(found.resolve(), folder.resolve())).as_posix()

    text = source.read_text(encoding="utf-8-sig") if source.is_file() else ""
    if not tomllib.loads(text).get(
        "workers"
    ):  # they were found here, and their measurements need a place
        text += describe_workers(specs, environ)
    return move_paths(text, moved)


async def _write_results(
    options: TuneOptions, loaded: LoadedConfig, context: TuneContext, result: TuneResult
) -> dict[str, Any]:
    """Make the last calls, fit confidence, and write the results and, unless simulated, settings.

    Returns:
        The report.
    """
    from batuta.lab.evals.report_files import write_files  # noqa: PLC0415 - loads numpy
    from batuta.lab.tune.fitted_confidence import (  # noqa: PLC0415 - same
        fit_tuned_confidence,
        pay_samples,
    )
    from batuta.lab.tune.report import (  # noqa: PLC0415 - same
        describe_tuning,
        saved_systems,
        selectors_of,
        write_results,
    )

    out, parts, settings = options.output.out, context.parts, context.settings
    await pay_samples(context, saved_systems(result).values())
    found = describe_tuning(result, parts, settings, context.runner.meter)
    served = {selector.name: system for system, selector in selectors_of(found, result).values()}
    confidence = await fit_tuned_confidence(context, served)
    found |= {"confidence": confidence.describe()}
    names_fit = confidence.can_serve(settings.samples)
    original = read_original(options.pool, os.environ, out, loaded.specs)
    text = None
    if not loaded.simulated:
        text = _settings_text(original, found, result, names_fit=names_fit)
    write_results(out, found, result=result, tasks=parts.search, settings_text=text)
    if confidence.stored.conductors:
        write_files(out, {CONFIDENCE_FILE: confidence.text})
    return found


def _settings_text(
    original: str, found: dict[str, Any], result: TuneResult, *, names_fit: bool
) -> str:
    """Return the original settings with the recommended systems and the measurements.

    With `names_fit` they name the file of the fitted confidence model.
    """
    from batuta.lab.tune.recommend import with_confidence, write_settings  # noqa: PLC0415 - loads numpy
    from batuta.lab.tune.stages import ULTRA  # noqa: PLC0415 - same

    system = (result.nominees or {}).get(ULTRA)
    selector_rounds = 1 if system is None else system.selector.needed_rounds
    text = write_settings(
        original,
        found["recommendation"],
        result.cards,
        groups=result.grouping.names,
        rounds=result.pattern.rounds if result.pattern else selector_rounds,
        pool=result.settings_pool,
    )
    return with_confidence(text, CONFIDENCE_FILE) if names_fit else text


def tune_record(options: TuneOptions) -> dict[str, Any]:
    """Tune on a record; return the report, or with `--check` how the record is split.

    Raises:
        ConfigError: an option does not apply to a record.
        SourceError: the record is missing, too small, or lacks the costs that are needed.
        StoreError: the results cannot be written.
    """
    _refuse_with_record(options)
    from batuta.embedded.blas import limit_blas_to_one_thread  # noqa: PLC0415 - loads numpy
    from batuta.lab.tasks.recorded import load_recorded  # noqa: PLC0415 - same
    from batuta.lab.tune.record_options import RecordSettings  # noqa: PLC0415 - same
    from batuta.lab.tune.record_tuning import (  # noqa: PLC0415 - same
        describe_record_tuning,
        limit_record,
        nominate_options,
        split_record,
        write_record_results,
    )

    limit_blas_to_one_thread()
    questions, goals, out = options.questions, options.goals, options.output.out
    labels = options.search.labels
    name = str(questions.tasks).removeprefix(RECORDED_PREFIX)
    record = limit_record(load_recorded(name, with_texts=False), questions.limit, questions.seed)
    parts = split_record(record, questions.seed)
    settings = RecordSettings(
        call_weight=RECORD_CALL_WEIGHT if goals.call_weight is None else goals.call_weight,
        worth=goals.worth,
        only_proven=goals.only_proven,
        seed=questions.seed,
    )
    console = open_console(highlight=False, soft_wrap=True, quiet=options.output.json)
    if options.execution.check:
        return _show_division(record, parts, console)
    whole = len(set(record.families)) > 1 if labels is None else labels
    nominees = nominate_options(record, parts.known, settings, labelled=whole)
    found = describe_record_tuning(record, parts, nominees, settings)
    write_record_results(out, found, nominees)
    for line in found["recommendation"]["why"]:
        console.print(line)
    console.print("spent: 0 calls; every answer was read from the record")
    console.print(f"report: {out / 'report.html'}")
    return found


def _show_division(
    record: RecordedOutcomes, parts: RecordParts, console: Console
) -> dict[str, Any]:
    """Print and return how many questions there are to learn from and to judge on."""
    known, judged = parts.known_families(record), parts.judged_families(record)
    held_out = "of held-out families" if parts.has_new_families else "held out at random"
    console.print(
        f"{record.name}: {len(record.models)} workers, {len(parts.known)} questions of "
        f"{len(known)} families to learn from, {len(parts.judged)} {held_out}; "
        "no worker is called, nothing is paid"
    )
    return {
        "record": record.name,
        "workers": len(record.models),
        "incomplete": record.incomplete,
        "questions": {"search": len(parts.known), "judgement": len(parts.judged)},
        "families": {"search": len(known), "judgement": len(judged)},
        "new_families": parts.has_new_families,
    }


def _refuse_with_record(options: TuneOptions) -> None:
    """Raise `ConfigError` for an option that does not apply to a record."""
    given = {
        "--pool": options.pool,
        "--from-runs": options.questions.from_runs,
        "--stages": options.execution.stages,
        "--judge": options.grading.judge,
        "--rewriter": options.search.rewriter,
        "--workers": options.execution.workers,
        "--mean-calls": options.goals.mean_calls,
        "--most-workers": options.search.most_workers,
        "--patterns": options.search.patterns,
    }
    for option, value in given.items():
        if value:
            raise ConfigError(
                f"{option} does not apply to a record: its answers exist already, and no worker is "
                "called"
            )


app = typer.Typer(add_completion=False)
app.command("tune", epilog=format_example("batuta tune --tasks mine.jsonl --budget 5 --check"))(
    command
)
