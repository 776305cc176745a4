"""Options that several commands have, in the same words."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from batuta.clients.providers import LOCAL

ACCESS_PANEL = "Who may use what"
BASELINES_PANEL = "Baselines"
BUDGET_PANEL = "Dollars"
EXECUTION_PANEL = "How it is run"
GRADING_PANEL = "Grading"
LIMITS_PANEL = "Limits"
OUTPUT_PANEL = "Output and records"
POOL_PANEL = "Pool and conductor"
QUESTIONS_PANEL = "Questions"
RATE_PANEL = "Rates"
RUNS_PANEL = "Questions from stored runs"
SYSTEMS_PANEL = "Systems"


def format_example(command: str) -> str:
    """The last line of a command's help: one that can be typed as it stands."""
    return f"Example: {command.replace('[', chr(92) + '[')}"


MOST_USD = 1e9
"""The largest budget; a larger or infinite one is a mistake."""
_JSON_HELP = "Print JSON on stdout."

Json = Annotated[bool, typer.Option("--json", help=_JSON_HELP)]
JsonOutput = Annotated[bool, typer.Option("--json", help=_JSON_HELP, rich_help_panel=OUTPUT_PANEL)]
"""The same, in commands whose options are in panels."""
SimulatedQuestions = Annotated[
    bool,
    typer.Option(
        "--simulated-questions",
        help="Ask real models questions of a simulated world.",
        rich_help_panel=QUESTIONS_PANEL,
    ),
]
ConcurrentRuns = Annotated[
    int, typer.Option(min=1, help="Runs at the same time.", rich_help_panel=EXECUTION_PANEL)
]
ExecutorName = Annotated[
    str,
    typer.Option(
        help="Where runs are executed: local, ray, ray:local, ray:HOST:PORT.",
        rich_help_panel=EXECUTION_PANEL,
    ),
]
RayProcesses = Annotated[
    int | None,
    typer.Option(
        min=1, help="Processes of Ray: one for each free core.", rich_help_panel=EXECUTION_PANEL
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """The workers, and who conducts them."""

    panel: ClassVar = POOL_PANEL

    pool: Annotated[
        str | None,
        typer.Option(help="rehearsal, local, discover (keys and local servers), or a TOML file."),
    ] = None
    conductor: Annotated[
        str | None,
        typer.Option(
            help="A worker's id, best, vote, fusion, critique, plan-solve-verify, escalate, "
            "advise, gate, single/<id>, chain/<id>><id>, or a file with a workflow (*.txt)."
        ),
    ] = None
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Pull the models of --pool local unasked.")
    ] = False

    def pull_missing(self) -> None:
        """Pull what `--pool local` needs and is not here, after asking.

        Raises:
            ConfigError: it is not wanted, or nobody can be asked.
            DownloadError: it cannot be had.
        """
        if (self.pool or "").partition(":")[0] == LOCAL:
            from batuta.cli.model_pulls import offer_models  # noqa: PLC0415 - rarely needed

            offer_models(self.pool or "", yes=self.yes)


def command_actor() -> str:
    """Return who uses the command line, as the audit trail calls them."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no name
        return "cli"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingOptions:
    """Options of how answers are graded."""

    panel: ClassVar = GRADING_PANEL

    judge: Annotated[
        str | None, typer.Option(help="The worker that grades what no rule can grade.")
    ] = None
    sandbox: Annotated[
        str, typer.Option(help="Where programs run: auto, bubblewrap, landlock, or none.")
    ] = "auto"
