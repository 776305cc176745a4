"""The options of `batuta tune`, one group for each panel of its help."""

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
"""Accuracy that one more call must gain where nothing else is said."""
QUESTIONS = 3000
"""Questions that are read at most where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneQuestionOptions:
    """The questions that are asked."""

    panel: ClassVar = QUESTIONS_PANEL

    tasks: Annotated[
        str | None,
        typer.Option(
            help="FILE.jsonl of your own, a benchmark (batuta tasks list), rehearsal, or a record "
            "(recorded:SET/PART, recorded:FILE), which costs nothing; without it a general mix of "
            "reasoning-gym, and for simulated workers questions of their world."
        ),
    ] = None
    from_runs: Annotated[
        str | None,
        typer.Option(
            "--from-runs",
            help="A store of served runs: those with feedback are asked too (batuta runs).",
        ),
    ] = None
    from_sessions: Annotated[
        str | None,
        typer.Option(
            "--from-sessions",
            help="A store of served sessions: nothing is asked; it is said what each pattern "
            "resolved and cost, and which pattern and margin that speaks for.",
        ),
    ] = None
    limit: Annotated[int, typer.Option(min=1, help="Questions at most.")] = QUESTIONS
    simulated_questions: SimulatedQuestions = False
    seed: Annotated[int, typer.Option(min=0, help="Of the split, the search and the calls.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneLimits:
    """Options of what the tuning may spend."""

    panel: ClassVar = LIMITS_PANEL

    budget: Annotated[
        float | None,
        typer.Option(min=0, max=MOST_USD, help="Total dollars at most; never exceeded."),
    ] = None
    calls: Annotated[int | None, typer.Option(min=1, help="Calls of workers at most.")] = None
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Minutes at most.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOutput:
    """The files and texts that come of it."""

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
    """Options of which stages are run, and where."""

    panel: ClassVar = EXECUTION_PANEL

    check: Annotated[
        bool, typer.Option("--check", help="Say what it would do and cost; call no worker.")
    ] = False
    stages: Annotated[
        str | None,
        typer.Option(help="calibrate,search,select,rewrite,judge, or only the first of them."),
    ] = None
    concurrency: ConcurrentRuns = 32
    executor: ExecutorName = "local"
    workers: RayProcesses = None
    journal: Annotated[
        str | None,
        typer.Option(
            help="File or PostgreSQL URL of finished calls, which cost nothing, as `batuta eval` "
            "keeps them; default a file in --out."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneGoals:
    """Options of what counts as best, and of what is recommended."""

    panel: ClassVar = GOALS_PANEL

    worth: Annotated[
        float | None,
        typer.Option(min=1e-9, help="Dollars that a right answer is worth to you."),
    ] = None
    call_weight: Annotated[
        float | None,
        typer.Option(
            min=0, help="Accuracy that one more call must gain; 0.01, and of a record 0.005."
        ),
    ] = None
    mean_calls: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Calls of a question on average at most: a call then counts for as much as that "
            "takes, not for less than --call-weight if it is given.",
        ),
    ] = None
    only_proven: Annotated[
        bool,
        typer.Option(
            "--only-proven",
            help="Recommend only what the judgement has proven; by default it is whatever is "
            "expected to be worth most.",
        ),
    ] = False

    @property
    def needed_gain(self) -> float:
        """The accuracy that a call must gain at least; where only a limit is given, none."""
        if self.call_weight is not None:
            return self.call_weight
        return CALL_WEIGHT if self.mean_calls is None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSearch:
    """Options of what is looked at in the search."""

    panel: ClassVar = SEARCH_PANEL

    labels: Annotated[
        bool | None,
        typer.Option(
            "--labels/--no-labels",
            help="Group questions by their first tag, or by their words; by default by the tags "
            "if there are enough.",
        ),
    ] = None
    most_workers: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Keep at most this many models after the calibration: those whose right "
            "answers complete one another. Three to five of a larger pool; by default all.",
        ),
    ] = None
    patterns: Annotated[
        bool,
        typer.Option(
            "--patterns",
            help="Measure the patterns fusion, critique and gate beside what the search found, "
            "for up to a fifth of what later stages have.",
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
        typer.Option(help="The worker that rewrites subtasks; by default the strongest."),
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
