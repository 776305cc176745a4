"""Runs programs that nobody has read, kept apart from the machine, and says how each test ended."""

from batuta.sandbox.backends import SandboxBackend
from batuta.sandbox.process import LoadedProgram
from batuta.sandbox.program import (
    JSON,
    AssertionTest,
    CallTest,
    EndReason,
    Program,
    ProgramResult,
    ProgramTest,
    SandboxLimits,
    ScriptTest,
)
from batuta.sandbox.sandbox import Sandbox

__all__ = [
    "JSON",
    "AssertionTest",
    "CallTest",
    "EndReason",
    "LoadedProgram",
    "Program",
    "ProgramResult",
    "ProgramTest",
    "Sandbox",
    "SandboxBackend",
    "SandboxLimits",
    "ScriptTest",
]
