"""Kills the tuning of docs/tune.md at many places and compares what came of it, byte for byte.

    python recipes/tune/kills.py 40 500 800 1030 1100 1200 1250 1300
    python recipes/tune/kills.py 500 1030 1250 --late 3 --load 4

The workers are programs on loopback (tests/lab/tune/loopback.py). The command runs whole once; then for
each number it is killed (SIGKILL) after so many answers and started again. A line for each: calls
answered, calls answered twice, files that differ.
"""

import argparse
import multiprocessing
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from lab.tune.loopback import KILLED, RESULTS, run, serve_workers, start, write_files


def burn():
    """Keeps a core busy."""
    while True:
        sum(range(10_000))


def kill_at(command, folder, answered, when):
    """Starts the command and kills it once so many answers were given."""
    process = start(command, folder)
    while len(answered) < when and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def compare(said):
    """Prints a line for the whole run and for each kill."""
    where = Path(tempfile.mkdtemp(prefix="kills"))
    with serve_workers(said.late) as (url, answered):
        whole = where / "whole"
        whole.mkdir()
        write_files(whole, url)
        began = time.monotonic()
        run(said.command, whole)
        print(f"whole: {len(answered)} calls, {time.monotonic() - began:.0f} s", flush=True)
        for when in said.kills:
            folder = where / str(when)
            folder.mkdir()
            write_files(folder, url)
            answered.clear()
            kill_at(said.command, folder, answered, when)
            run(said.command, folder)
            twice = sum(many - 1 for many in Counter(answered).values())
            differ = [
                name
                for name in RESULTS
                if (whole / "runs/tuned" / name).read_bytes()
                != (folder / "runs/tuned" / name).read_bytes()
            ]
            print(f"killed at {when}: {len(answered)} calls, {twice} twice, differ: {differ}",
                  flush=True)  # fmt: skip
    print(where)


def main():
    """Reads the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("kills", type=int, nargs="*")
    options.add_argument("--late", type=float, default=0.0)
    options.add_argument("--load", type=int, default=0)
    options.add_argument("--command", default=KILLED)
    said = options.parse_args()
    busy = [multiprocessing.Process(target=burn, daemon=True) for _ in range(said.load)]
    for one in busy:
        one.start()
    try:
        compare(said)
    finally:
        for one in busy:
            one.kill()


if __name__ == "__main__":
    main()
