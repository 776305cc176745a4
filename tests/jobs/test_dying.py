"""A job that ends its process is not run for ever, and takes no other job with it."""

import os
from pathlib import Path

DYING = Path(__file__).parent / "dying.py"


def test_what_has_twice_not_returned_fails_alone(tmp_path, command_line):
    ends = []
    for _ in range(6):
        ran = command_line.run_file(DYING, str(tmp_path), cwd=tmp_path, env=os.environ)
        ends.append(ran.returncode)
        if ran.returncode != 9:
            break
    assert ends == [9, 9, 0], ran.stderr
    told = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert told["good-1"].strip() == told["good-2"].strip() == "completed"
    assert told["bad"].startswith("failed") and "not run again" in told["bad"]
