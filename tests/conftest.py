"""What every test shares."""

import gc
import os
import signal
import sys
import tempfile
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import settings

# An example may take as long as a busy machine needs; what has to be quick says so itself. A test that wants more or
# fewer examples says its share of the profile's. `make test` has the same examples each time, so that no change is
# refused for what another one broke; `make test-long` draws new ones.
settings.register_profile("unhurried", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("unhurried")

# Hundreds of tests start the program; without its byte code each start would compile all of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests run on every core at once: each of them computes with one thread. Set before NumPy and torch are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Models that somebody has pulled on this machine are no workers of the tests.
os.environ.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))
os.environ.setdefault("PLAYWRIGHT_BROWSERS_PATH", str(Path.home() / ".cache" / "ms-playwright"))
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"batuta-tests-{os.getuid()}")

# No test asks a server that has a certificate: in place of the machine's hundred and fifty, which each process and each
# client of a provider's package would read for 40 ms, all believe one whose key is kept nowhere.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "fixtures" / "nobody.pem")
os.environ.pop("SSL_CERT_DIR", None)

# Started in the background of a script, interrupts are ignored, also by whatever the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is imported and collected stays to the end: to look through it for garbage again and again, while it
# grows and in every later collection, would cost each worker many seconds.
gc.disable()


UNIT_FOLDERS = frozenset({"config", "core", "language", "laws", "schemas"})
"""Tests of pure values: no server, no process, no database; all of them together take seconds."""


COSTLY = (
    "train",
    "docs",
    "tune",
    "tasks",
    "e2e",
    "executor",
    "ui",
    "jobs",
    "cli",
    "evals",
    "store",
)
"""Folders whose tests take long or share what takes long to make, the costliest first."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """Each test has its tier: `unit` by its folder, `long` by its mark, and else `integration`."""
    for item in items:
        if item.get_closest_marker("long") is None:
            item.add_marker("unit" if folder_of(item.path) in UNIT_FOLDERS else "integration")
    yield  # other plugins leave out what was not asked for
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = divide_among_workers(items, workers)


@cache
def folder_of(path):
    """The folder of a test's file: the innermost that is costly, else the first under tests/ or tests/lab/.

    For those that are in none, and for others, the file.
    """
    here = Path(__file__).parent
    if not path.is_relative_to(here):
        return path
    parts = path.relative_to(here).parts
    costly = next((name for name in reversed(parts[:-1]) if name in COSTLY), None)
    return costly or parts[parts[0] == "lab"]


def divide_among_workers(items, workers):
    """The tests in another order: at the front of each worker's share, those of its costly folders.

    pytest-xdist gives each worker a share of equal size to begin with, and one that is done takes from
    the end of another's. So what is costly begins first and stays together, what it shares is made
    once, and nothing long is left for the end, when the other workers have nothing to do.
    """
    folders = {}
    for item in items:
        folders.setdefault(folder_of(item.path), []).append(item)
    costly = [folders.pop(name) for name in COSTLY if name in folders]
    fronts = [[item for folder in costly[n::workers] for item in folder] for n in range(workers)]
    rest = iter([item for folder in folders.values() for item in folder])
    size = -(-len(items) // workers)
    shares = [front + list(islice(rest, max(0, size - len(front)))) for front in fronts]
    return [item for share in shares for item in share] + list(rest)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def command_line():
    """Starts `batuta` without loading it each time."""
    from fakes.command_line import loaded_program

    return loaded_program()
