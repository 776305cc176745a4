"""The recipe over real models: its settings are read, one journal serves all of it, its script says what is missing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from batuta.lab.commands.train_settings import load_settings
from lab.train.stage import LIBRARIES

pytestmark = LIBRARIES
ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "real-benchmarks"


def script(*args, **environ):
    return subprocess.run(
        ["bash", str(RECIPE / "conductor.sh"), *args],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, **environ},
    )


def test_the_settings_are_read_and_share_the_journal_of_the_evaluations():
    settings = load_settings(RECIPE / "conductor.toml", None, 2, Path("runs/elsewhere"))
    assert settings.seed == 2 and str(settings.output) == "runs/elsewhere"
    out = re.search(r"^out=(\S+)$", (RECIPE / "run.sh").read_text(), re.MULTILINE)[1]
    assert settings.pool.journal == f"{out}/calls.db"
    assert '--journal "$out/calls.db"' in (RECIPE / "run.sh").read_text()
    assert (ROOT / settings.pool.source).is_file()


def test_without_a_tuning_the_script_says_what_to_run():
    if (ROOT / "runs" / "real-benchmarks" / "tuned").is_dir():
        pytest.skip("there is a tuning here")
    done = script()
    assert (
        done.returncode == 1 and "there is no tuning in runs/real-benchmarks/tuned" in done.stderr
    )
