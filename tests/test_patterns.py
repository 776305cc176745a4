"""No text of a stranger makes a regular expression slow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRIES = Path(__file__).parent / "pattern_tries.py"
SECONDS = 280


@pytest.mark.slow
def test_every_pattern_is_linear_in_what_strangers_write():
    tried = subprocess.run(
        [sys.executable, TRIES], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert tried.returncode == 0, tried.stderr
    assert json.loads(tried.stdout) == []
