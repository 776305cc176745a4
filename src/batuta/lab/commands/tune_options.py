"""The options of `batuta tune`, grouped by the panels of its help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from batuta.cli.options import (
    EXECUTION_PANEL,
    LIMITS_PANEL,
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
"""Default accuracy that one more call must gain."""
QUESTIONS = 3000
"""Default maximum number of questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneQuestionOptions:
    """Options for the questions to ask."""

    panel: ClassVar = QUESTIONS_PANEL

    tasks: Annotated[
        str | None,
        typer.Option(
            help="Your FILE.jsonl, a benchmark (batuta tasks list), rehearsal, or a record "
            "(recorded:SET/PART, recorded:FILE), which costs nothing; default: a general mix of "
            "reasoning-gym, or for simulated workers questions of their world."
        ),
    ] = None
    from_runs: Annotated[
        str | None,
        typer.Option(
            "--from-runs",
            help="A store of served runs: its runs with feedback are asked too (batuta runs).",
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
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of questions to ask.")] = (
        QUESTIONS
    )
    simulated_questions: SimulatedQuestions = False
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the split, the search and the calls.")
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneLimits:
    """Options for the tuning's budget."""

    panel: ClassVar = LIMITS_PANEL

    budget: Annotated[
        float | None,
        typer.Option(min=0, max=MOST_USD, help="Maximum dollars in total; never exceeded."),
    ] = None
    calls: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of calls of workers.")
    ] = None
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Maximum minutes to take.")] = None


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
        typer.Option(help="calibrate,search,select,rewrite,judge, or the first few of them."),
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
        typer.Option(min=1e-9, help="Dollars that a correct answer is worth to you."),
    ] = None
    call_weight: Annotated[
        float | None,
        typer.Option(
            min=0, help="Accuracy that one more call must gain; default 0.01, for a record 0.005."
        ),
    ] = None
    mean_calls: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Maximum calls per question on average: the weight of a call is raised from "
            "--call-weight (default: 0) until that holds.",
        ),
    ] = None
    only_proven: Annotated[
        bool,
        typer.Option(
            "--only-proven",
            help="Recommend only what the judgement has proven; by default, whatever is "
            "expected to be worth most.",
        ),
    ] = False

    @property
    def needed_gain(self) -> float:
        """The accuracy that one more call must gain; 0 if only `mean_calls` is given."""
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
            help="Group questions by their first tag, or by their words; default: by tags "
            "if there are enough.",
        ),
    ] = None
    most_workers: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Keep at most this many models after the calibration: those whose correct "
            "answers complement each other. Three to five of a larger pool; default: all.",
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
            help="Rewrite the best workflow's subtasks with gepa (extra tune), if it is installed.",
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
            help="rehearsal, discover (keys and local servers), or a file.",
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
