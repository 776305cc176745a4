"""What every test shares."""

import os
import signal
import sys
from pathlib import Path

import pytest

# Hundreds of tests start the program; without its byte code each start would compile all of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests run on every core at once: each of them computes with one thread. Set before NumPy and torch are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Started in the background of a script, interrupts are ignored, also by whatever the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


UNIT_FOLDERS = frozenset({"config", "core", "language", "laws", "schemas"})
"""Tests of pure values: no server, no process, no database; all of them together take seconds."""


def pytest_collection_modifyitems(items):
    """Each test has its tier: `unit` by its folder, `long` by its mark, and else `integration`."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("long") is None:
            folder = item.path.relative_to(here).parts[0]
            item.add_marker("unit" if folder in UNIT_FOLDERS else "integration")


@pytest.fixture
def anyio_backend():
    return "asyncio"
