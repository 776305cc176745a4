"""Runs programs that nobody has read, kept apart from the machine, and says how each test ended."""

from batuta.tasks.sandbox.loaded import Loaded
from batuta.tasks.sandbox.program import (
    JSON,
    Call,
    Check,
    End,
    Limits,
    Outcome,
    Program,
    Script,
    Test,
)
from batuta.tasks.sandbox.sandbox import Sandbox
from batuta.tasks.sandbox.tiers import Tier

__all__ = [
    "JSON",
    "Call",
    "Check",
    "End",
    "Limits",
    "Loaded",
    "Outcome",
    "Program",
    "Sandbox",
    "Script",
    "Test",
    "Tier",
]
