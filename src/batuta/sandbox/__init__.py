"""Runs programs that nobody has read, kept apart from the machine, and says how each test ended."""

from batuta.sandbox.backends import SandboxBackend
from batuta.sandbox.program import (
    AssertionTest,
    CallTest,
    EndReason,
    Program,
    ProgramResult,
    SandboxLimits,
    ScriptTest,
)
from batuta.sandbox.sandbox import Sandbox

__all__ = [
    "AssertionTest",
    "CallTest",
    "EndReason",
    "Program",
    "ProgramResult",
    "Sandbox",
    "SandboxBackend",
    "SandboxLimits",
    "ScriptTest",
]
