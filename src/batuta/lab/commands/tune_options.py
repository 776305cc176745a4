"""The options of `batuta tune`, grouped by the panels of its help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from batuta.cli.options import (
    EXECUTION_PANEL,
    LIMITS_PANEL,
    MOST_SECONDS,
    MOST_USD,
    OUTPUT_PANEL,
    POOL_PANEL,
    QUESTIONS_PANEL,
    ConcurrentRuns,
    ExecutorName,
    GradingOptions,
    JsonOutput,
    RayProcesses,
    SimulatedQuestions,
)

GOALS_PANEL = "What counts as best"
SEARCH_PANEL = "What is searched"

CALL_WEIGHT = 0.01
"""Default accuracy that one more call must gain, except on a record and with --mean-calls."""
QUESTIONS = 3000
"""Default maximum number of questions of --tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneQuestionOptions:
    """Options for the questions to ask."""

    panel: ClassVar = QUESTIONS_PANEL

    tasks: Annotated[
        str | None,
        typer.Option(
            help="Your FILE.jsonl, a benchmark (batuta tasks list), a simulated world (rehearsal, "
            "world2), or a record (recorded:SET/PART, recorded:FILE), for which no worker is "
            "called; default: for simulated workers questions of their world, else a general mix "
            "of reasoning-gym, and with --from-runs none."
        ),
    ] = None
    from_runs: Annotated[
        str | None,
        typer.Option(
            "--from-runs",
            help="A store of served runs (file or URL): its questions with an answer known from "
            "feedback are asked too; without --tasks, only these.",
        ),
    ] = None
    from_sessions: Annotated[
        str | None,
        typer.Option(
            "--from-sessions",
            help="A store of served sessions: no question is asked; prints what each pattern "
            "resolved and cost, and which pattern and margin to choose.",
        ),
    ] = None
    limit: Annotated[
        int, typer.Option(min=1, help="Maximum number of questions of --tasks that are used.")
    ] = QUESTIONS
    simulated_questions: SimulatedQuestions = False
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the split, the search and the calls.")
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneLimits:
    """Options for the limits of the tuning; at least one is needed if workers are called."""

    panel: ClassVar = LIMITS_PANEL

    budget: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MOST_USD,
            help="Maximum dollars in total: a call that might exceed them is not made. At least "
            "one of --budget, --calls and --minutes is required, except with a record or "
            "--from-sessions.",
        ),
    ] = None
    calls: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of calls of workers.")
    ] = None
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=MOST_SECONDS / 60, help="Minutes after which no further call is made."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOutput:
    """Options for the results."""

    panel: ClassVar = OUTPUT_PANEL

    out: Annotated[
        Path,
        typer.Option(
            file_okay=False, help="Folder of the results; the same command resumes there."
        ),
    ] = Path("runs/tuned")
    json: JsonOutput = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneExecution:
    """Options for which stages are run, and where."""

    panel: ClassVar = EXECUTION_PANEL

    check: Annotated[
        bool, typer.Option("--check", help="Print what it would do and cost; call no worker.")
    ] = False
    stages: Annotated[
        str | None,
        typer.Option(
            help="The first few of calibrate, search, select, rewrite and judge, comma-separated; "
            "default: all five."
        ),
    ] = None
    concurrency: ConcurrentRuns = 32
    executor: ExecutorName = "local"
    workers: RayProcesses = None
    journal: Annotated[
        str | None,
        typer.Option(
            help="File or PostgreSQL URL of finished calls, which are not paid again, as for "
            "`batuta eval`; default: a file in --out."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneGoals:
    """Options for what counts as best, and for what is recommended."""

    panel: ClassVar = GOALS_PANEL

    worth: Annotated[
        float | None,
        typer.Option(
            min=1e-9,
            max=MOST_USD,
            help="Dollars that a correct answer (with --from-sessions: a resolved session) is "
            "worth to you; default: dollars count only against --budget (a session: 1).",
        ),
    ] = None
    call_weight: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Accuracy that one more call must gain; default: 0.01, for a record 0.005, with "
            "--mean-calls 0.",
        ),
    ] = None
    mean_calls: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Maximum calls per question on average: the weight of a call is raised from "
            "--call-weight until that holds.",
        ),
    ] = None
    only_proven: Annotated[
        bool,
        typer.Option(
            "--only-proven",
            help="Recommend only what the judgement has proven, else the best single worker; by "
            "default, whatever is expected to be worth most.",
        ),
    ] = False

    @property
    def needed_gain(self) -> float:
        """The accuracy that one more call must gain; not for a record.

        It is 0 if only `mean_calls` is given.
        """
        if self.call_weight is not None:
            return self.call_weight
        return CALL_WEIGHT if self.mean_calls is None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSearch:
    """Options for the search."""

    panel: ClassVar = SEARCH_PANEL

    labels: Annotated[
        bool | None,
        typer.Option(
            "--labels/--no-labels",
            help="Group questions by their first tag (--labels) or their words (--no-labels); "
            "default: by tag if there are several tags and none is rare.",
        ),
    ] = None
    most_workers: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Keep at most this many models after the calibration: the best one, and those "
            "that add most to it. Advice for a large pool: 3 to 5; default: all.",
        ),
    ] = None
    patterns: Annotated[
        bool,
        typer.Option(
            "--patterns",
            help="Also measure the patterns fusion, critique and gate, for up to a fifth of the "
            "budget of later stages.",
        ),
    ] = False
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite/--no-rewrite",
            help="Rewrite the most used workflow's subtasks with gepa (extra tune), if it is "
            "installed.",
        ),
    ] = True
    rewriter: Annotated[
        str | None,
        typer.Option(help="The worker that rewrites subtasks; default: the strongest."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The options of `batuta tune`."""

    pool: Annotated[
        str | None,
        typer.Option(
            help="rehearsal, world2, local, discover (keys, local servers, pulled models), or a "
            "TOML file; default: BATUTA_CONFIG, else ./batuta.toml, else what is found.",
            rich_help_panel=POOL_PANEL,
        ),
    ] = None
    questions: TuneQuestionOptions
    limits: TuneLimits
    output: TuneOutput
    execution: TuneExecution
    goals: TuneGoals
    search: TuneSearch
    grading: GradingOptions
