"""What every test shares."""

import os
import signal
import sys

import pytest

# Hundreds of tests start the program; without its byte code each start would compile all of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests run on every core at once: each of them computes with one thread. Set before NumPy and torch are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Started in the background of a script, interrupts are ignored, also by whatever the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend():
    return "asyncio"
