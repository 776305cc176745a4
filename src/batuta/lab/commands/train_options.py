"""The options of `batuta train`; `train conductor` has its options grouped by help panel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from batuta.cli.options import EXECUTION_PANEL, OUTPUT_PANEL, RUNS_PANEL, SimulatedQuestions
from batuta.errors import ConfigError
from batuta.lab.commands.automatic_training import CHOOSING_PANEL
from batuta.lab.commands.train_settings import with_executor

_MAX_CALLS = 200
"""Maximum number of real calls of a check; more would amount to a part of a training."""

Config = Annotated[Path, typer.Option("--config", help="The training's TOML file.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Overrides the file's seed.")]
Out = Annotated[
    Path | None, typer.Option(file_okay=False, help="Overrides the file's output folder.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Overrides one setting: optimiser.steps=50; may be repeated.",
    ),
]
ResumeStage = Annotated[
    bool, typer.Option("--resume", help="Resume where the same stage was interrupted.")
]
RunsOn = Annotated[
    str | None,
    typer.Option(
        "--executor", help="Where runs are executed: local, ray, ray:local, ray:HOST:PORT."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStart:
    """Options for the start of the training."""

    panel: ClassVar = EXECUTION_PANEL

    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint.")] = (
        False
    )
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="With --resume: checkpoint-20, its folder, 20, or best; later data are deleted."
        ),
    ] = None
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Estimate cost and time, list what is missing; without --calls nothing is spent.",
        ),
    ] = False
    calls: Annotated[
        int,
        typer.Option(
            min=0,
            max=_MAX_CALLS,
            help="With --check: make this many real calls and estimate the cost from them.",
        ),
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutput:
    """Options for the output of the policy and of the estimate."""

    panel: ClassVar = OUTPUT_PANEL

    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Upload the policy to the Hugging Face hub (hub.repo); needs HF_TOKEN.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="With --check: print JSON.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRuns:
    """Options for learning from stored runs, or from the workflows that `batuta tune` found."""

    panel: ClassVar = RUNS_PANEL

    from_runs: Annotated[
        bool, typer.Option("--from-runs", help="Train on the server's judged runs too.")
    ] = False
    store: Annotated[
        str | None,
        typer.Option(
            help="Train on the judged runs of this store too, a database file or URL; default of "
            "--from-runs: the configured one."
        ),
    ] = None
    runs_share: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=1,
            help="With --from-runs or --store: share of the questions that come from runs.",
        ),
    ] = 0.5
    tuned: Annotated[
        Path | None,
        typer.Option(
            "--from",
            file_okay=False,
            help="A folder of batuta tune: its workflows are learned first.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomaticOptions:
    """Options that replace a settings file."""

    panel: ClassVar = CHOOSING_PANEL

    pool: Annotated[str | None, typer.Option(help="Without --config: the pool to conduct.")] = None
    tasks: Annotated[
        str | None,
        typer.Option(help="Without --config: the questions, a JSONL file or a world's name."),
    ] = None
    minutes: Annotated[
        float | None, typer.Option(min=0.2, help="Without --config: maximum minutes to take.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorTrainingOptions:
    """The options of `batuta train conductor`."""

    config: Annotated[Path | None, typer.Option("--config", help="The training's TOML file.")] = (
        None
    )
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Overrides the file's seed; default without --config: 1."),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Overrides the file's output folder; default without --config: runs/conductor.",
        ),
    ] = None
    changes: Set = None
    executor: RunsOn = None
    start: TrainStart
    output: TrainOutput
    runs: ServedRuns
    simulated_questions: SimulatedQuestions = False
    automatic: AutomaticOptions

    def all_changes(self) -> list[str]:
        """Return the `KEY=VALUE` settings that override the file's or the chosen ones."""
        named = [] if self.output.push is None else [f"hub.repo={self.output.push}"]
        return [*with_executor(self.changes, self.executor), *named]

    def refuse_without_file(self) -> None:
        """Refuse options that need a settings file.

        Raises:
            ConfigError: such an option was given.
        """
        start, runs, output = self.start, self.runs, self.output
        given = {
            "--check": start.check,
            "--resume": start.resume,
            "--from-runs": runs.from_runs,
            "--store": runs.store,
            "--from": runs.tuned,
            "--json": output.as_json,
            "--calls": start.calls,
            "--checkpoint": start.checkpoint,
            "--push": output.push,
        }
        _refuse_mistakes(
            {
                f"{name} needs --config: without it the settings are chosen automatically": value
                for name, value in given.items()
            }
        )

    def refuse_with_file(self) -> None:
        """Refuse options that exclude a settings file, and options that lack another option.

        Raises:
            ConfigError: such an option was given.
        """
        start, chosen = self.start, self.automatic
        _refuse_mistakes(
            {
                "--pool, --tasks and --minutes cannot be used with --config: give one or "
                "the other": chosen.pool or chosen.tasks or chosen.minutes,
                "--calls needs --check": start.calls and not start.check,
                "--json needs --check": self.output.as_json and not start.check,
                "--checkpoint needs --resume": start.checkpoint and not start.resume,
            }
        )


def _refuse_mistakes(mistakes: Mapping[str, object]) -> None:
    for sentence, made in mistakes.items():
        if made:
            raise ConfigError(sentence)
