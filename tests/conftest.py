"""What every test shares."""

import os
import sys

import pytest

# Hundreds of tests start the program; without its byte code each start would compile all of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture
def anyio_backend():
    return "asyncio"
