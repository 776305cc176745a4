"""What the commands' help texts share: the names of their panels, and how an example is shown."""

from __future__ import annotations

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
