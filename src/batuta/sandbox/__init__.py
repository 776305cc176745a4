"""Runs untrusted programs, isolated from the machine, and reports how each test ended."""

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
