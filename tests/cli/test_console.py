"""What is printed to a file or a pipe is as wide as it needs."""

import os
import subprocess
import sys

import pytest

from batuta.lab.worlds import rehearsal_pool

COMMAND = [sys.executable, "-W", "ignore", "-m", "batuta", "pool", "list", "--pool", "rehearsal"]


@pytest.mark.parametrize(("columns", "is_whole"), [(None, True), ("60", False)])
def test_nothing_is_cut_where_there_is_no_terminal(columns, is_whole, tmp_path):
    kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environ = {**kept, "BATUTA_HOME": str(tmp_path), **({"COLUMNS": columns} if columns else {})}
    done = subprocess.run(
        COMMAND, capture_output=True, text=True, check=True, env=environ, cwd=tmp_path
    )
    lines = done.stdout.splitlines()
    shown = [
        all(word in line for word in worker.description.split()[:12])
        for worker in rehearsal_pool()
        for line in lines
        if f"rehearsal/{worker.id}" in line
    ]
    assert len(shown) == 7
    for worker in rehearsal_pool():  # who it is and what it costs is there on any screen
        assert any(
            line.split()[1:4] == [worker.id, worker.model, f"{worker.price.input:.2f}"]
            for line in lines
        ), done.stdout
    assert all(shown) is is_whole
