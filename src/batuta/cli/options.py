"""Options that several commands have, in the same words."""

from __future__ import annotations

from typing import Annotated

import typer

from batuta.cli.help_text import EXECUTION_PANEL, GRADING_PANEL, OUTPUT_PANEL

_JSON_HELP = "Print JSON on stdout."

Json = Annotated[bool, typer.Option("--json", help=_JSON_HELP)]
JsonOutput = Annotated[bool, typer.Option("--json", help=_JSON_HELP, rich_help_panel=OUTPUT_PANEL)]
"""The same, in commands whose options are in panels."""
Judge = Annotated[
    str | None,
    typer.Option(
        help="The worker that grades what no rule can grade.", rich_help_panel=GRADING_PANEL
    ),
]
Sandbox = Annotated[
    str,
    typer.Option(
        help="Where programs run: auto, bubblewrap, landlock, or none.",
        rich_help_panel=GRADING_PANEL,
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
