"""The options of `batuta eval`, grouped by the panels of its help."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from batuta.cli.options import (
    EXECUTION_PANEL,
    LIMITS_PANEL,
    MOST_USD,
    OUTPUT_PANEL,
    POOL_PANEL,
    QUESTIONS_PANEL,
    SYSTEMS_PANEL,
    ConcurrentRuns,
    ExecutorName,
    GradingOptions,
    JsonOutput,
    RayProcesses,
    SimulatedQuestions,
)
from batuta.environment import data_folder
from batuta.errors import ConfigError
from batuta.lab.tasks import RECORDED_PREFIX

if TYPE_CHECKING:
    from batuta.lab.evals.matched_budget import EqualResource

DEFAULT_SYSTEMS = "best-single,ultra"
ALL_SYSTEMS = "all"


class RecordSplit(StrEnum):
    """How a record is split into questions to learn from and questions to measure on."""

    RANDOM = "random"
    UNSEEN = "unseen"
    """Measures on families of questions that nothing was learned from."""
    ALL = "all"
    """Measures on all questions and learns nothing."""


def _new_folder() -> Path:
    """Return the path of a folder for this evaluation, named by the time to the second."""
    return data_folder() / "evals" / datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalQuestions:
    """Options for the questions to ask."""

    panel: ClassVar = QUESTIONS_PANEL

    tasks: Annotated[
        str,
        typer.Option(
            help="rehearsal or world2, to which :FAMILY, :held-out or both may be added; a "
            "benchmark (batuta tasks list); FILE.jsonl or FILE.yaml; recorded:SET/PART, or "
            "recorded:all; inspect:FILE.py@TASK."
        ),
    ] = "rehearsal"
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of questions; default 100, for a record or inspect: all."
        ),
    ] = None
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each question; for a record, number of splits.")
    ] = 1
    seed: Annotated[
        int, typer.Option(min=0, help="The first seed, for questions, sampling and splits.")
    ] = 0
    simulated_questions: SimulatedQuestions = False
    from_file: Annotated[
        list[Path] | None,
        typer.Option("--from-file", help="Your own copy of the benchmark's file; may be repeated."),
    ] = None
    split: Annotated[
        RecordSplit,
        typer.Option(
            help="For a record: measure on random questions, unseen families or all (no learning)."
        ),
    ] = RecordSplit.RANDOM

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seed of each run of a question, or of each split of a record."""
        return tuple(range(self.seed, self.seed + self.seeds))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSystems:
    """Options for the systems to measure."""

    panel: ClassVar = SYSTEMS_PANEL

    systems: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated names, or all; the error about an unknown name lists them. "
            "Default: best-single and ultra; for a record all."
        ),
    ] = None
    equal_calls: Annotated[
        bool,
        typer.Option(
            "--equal-calls",
            help="Add self-consistency and best-of-N with as many calls as ultra.",
        ),
    ] = False
    equal_cost: Annotated[
        bool,
        typer.Option(
            "--equal-cost",
            help="Add self-consistency and best-of-N with as many dollars as ultra (tokens if "
            "prices are unknown).",
        ),
    ] = False

    @property
    def equal(self) -> tuple[EqualResource, ...]:
        """The resources in which the added systems are matched to ultra."""
        wanted: dict[EqualResource, bool] = {"calls": self.equal_calls, "cost": self.equal_cost}
        return tuple(what for what in wanted if wanted[what])


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPool:
    """Options for the pool, and for how a record's pool changes."""

    panel: ClassVar = POOL_PANEL

    pool: Annotated[
        str | None,
        typer.Option(
            help="As for batuta ask; default for tasks of world2: world2. Tasks of the rehearsal "
            "use the rehearsal if no model is found. For a record: the models to keep, "
            "comma-separated; default: all."
        ),
    ] = None
    conductor: Annotated[
        str | None,
        typer.Option(
            help="The conductor of `ultra`, as for batuta ask; for a record, the path of a trained "
            "conductor."
        ),
    ] = None
    pools: Annotated[
        int | None,
        typer.Option(min=1, help="Give each question this many workers, chosen at random."),
    ] = None
    leaves: Annotated[
        str | None,
        typer.Option(
            help="For a record: comma-separated workers that leave after learning, before the "
            "measurement."
        ),
    ] = None
    joins: Annotated[
        str | None,
        typer.Option(
            help="For a record: comma-separated workers known from few questions: NAME[:COUNT], "
            "default 40."
        ),
    ] = None
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="For a record: if it lacks the answer to a prompt, replay another answer to the "
            "same question; such runs are marked as simulated.",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalLimits:
    """Options for the budget and its estimate."""

    panel: ClassVar = LIMITS_PANEL

    budget: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MOST_USD,
            help="Maximum dollars, over all commands with --budget and this --out.",
        ),
    ] = None
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Estimate the number of calls and their cost; call no worker."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalExecution:
    """Options for where runs are executed, and how many concurrently."""

    panel: ClassVar = EXECUTION_PANEL

    concurrency: ConcurrentRuns = 64
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="For recorded:all: sets measured in parallel; default: one per core."
        ),
    ] = None
    executor: ExecutorName = "local"
    workers: RayProcesses = None
    journal: Annotated[
        str | None,
        typer.Option(
            help="File of finished calls, or a PostgreSQL URL that machines share; default: "
            "BATUTA_JOURNAL, else a file in --out."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOutput:
    """Options for the results."""

    panel: ClassVar = OUTPUT_PANEL

    out: Annotated[
        Path,
        typer.Option(
            file_okay=False,
            help="Folder of the results; finished runs in it are not repeated. Default: a new "
            "folder in the data folder.",
            default_factory=_new_folder,
            show_default=False,
        ),
    ]
    report: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for a report: HTML, figures, tables."),
    ] = None
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="File for a confidence model, fitted to the graded runs: \\[confidence]."
        ),
    ] = None
    plots: Annotated[bool, typer.Option("--plots", help="Draw figures (matplotlib).")] = False
    json: JsonOutput = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalCommandOptions:
    """The options of `batuta eval`."""

    questions: EvalQuestions
    systems: EvalSystems
    pool: EvalPool
    limits: EvalLimits
    execution: EvalExecution
    grading: GradingOptions
    output: EvalOutput

    def __post_init__(self) -> None:
        """Refuse a command that names no system."""
        if not self.system_names:
            raise ConfigError("name at least one system: --systems best-single,ultra")

    @property
    def system_names(self) -> tuple[str, ...]:
        """The names of the systems as they were given, which may be `all`.

        The default is `DEFAULT_SYSTEMS`, for a record `all`.
        """
        recorded = self.questions.tasks.startswith(RECORDED_PREFIX)
        named = self.systems.systems
        if named is None:
            named = ALL_SYSTEMS if recorded else DEFAULT_SYSTEMS
        return tuple(name.strip() for name in named.split(",") if name.strip())
