"""Runs untrusted programs, isolated except in the tier `none`, and reports how each test ended."""

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
