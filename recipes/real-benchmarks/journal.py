"""Keeps the calls of this recipe without their questions, and brings them back.

    python recipes/real-benchmarks/journal.py pack FOLDER...   # every *.db in them, to calls.jsonl.zst here
    python recipes/real-benchmarks/journal.py unpack runs/real-benchmarks/calls.db
    python recipes/real-benchmarks/journal.py record FOLDER... # evaluations, to recorded:real-benchmarks

A call is the worker's name, a digest of its request, and its reply. With `calls.db` as `--journal` an
evaluation or a tuning asks only what nobody has asked before.

`record` writes what each system of these evaluations earned on each question; a conductor's column has its folder's
name. Questions are named by their ids, and a long answer, which may quote its question, by a digest: all that
votes and cascades do with answers is to compare them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import zstandard

from batuta.clients import CallCache
from batuta.lab.tasks.recorded import find_outcomes_file

RECORD = Path(__file__).parent / "calls.jsonl.zst"
LONG_ANSWER = 80
"""Characters from which an answer is kept as a digest."""


def pack(folders: list[Path]) -> None:
    """Write the models' finished calls in all journals of the folders; of equal ones the first stays.

    Programs are left out: running them again costs nothing, and what a run of one tells has changed.
    """
    calls: dict[tuple[str, str], str] = {}
    reached: dict[str, str] = {}
    for path in sorted(file for folder in folders for file in folder.rglob("*.db")):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
            tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
            if not {"calls", "reached"} <= tables:
                continue
            for worker, identity in file.execute("SELECT worker, identity FROM reached"):
                if reached.setdefault(worker, identity) != identity:
                    raise SystemExit(f"{path}: another model was behind {worker}")
            for worker, request, reply in file.execute("SELECT worker, request, reply FROM calls"):
                if worker == "python":
                    continue
                calls.setdefault((worker, request.hex()), bytes(reply).decode())
    if not calls:
        raise SystemExit("these folders have no journal with calls, and the record stays as it is")
    lines = [json.dumps({"reached": reached}, sort_keys=True)]
    lines += [
        json.dumps({"worker": worker, "request": request, "reply": json.loads(reply)})
        for (worker, request), reply in sorted(calls.items())
    ]
    text = "\n".join(lines).encode()
    RECORD.write_bytes(zstandard.ZstdCompressor(level=19).compress(text))
    print(f"{RECORD}: {len(calls):,} calls, {RECORD.stat().st_size:,} bytes")


def unpack(place: Path) -> None:
    """Add the recorded calls to a journal, which is made if it is not there."""
    with CallCache(place):
        pass
    with RECORD.open("rb") as packed, sqlite3.connect(place) as file:
        read = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(packed), "utf-8")
        reached = json.loads(next(read))["reached"]
        file.executemany("INSERT OR IGNORE INTO reached VALUES (?, ?)", reached.items())
        rows = (json.loads(line) for line in read)
        file.executemany(
            "INSERT OR IGNORE INTO calls VALUES (?, ?, ?)",
            (
                (row["worker"], bytes.fromhex(row["request"]), json.dumps(row["reply"]).encode())
                for row in rows
            ),
        )
    with sqlite3.connect(place) as file:
        (calls,) = file.execute("SELECT count(*) FROM calls").fetchone()
    print(f"{place}: {calls:,} calls")


def record(folders: list[Path]) -> None:
    """Write the packaged record of these evaluations; runs without a score are left out."""
    lines: dict[str, dict[str, Any]] = {}
    for folder in folders:
        tokens = read_tokens(folder / "runs.db")
        for row in map(json.loads, (folder / "results.jsonl").read_text("utf-8").splitlines()):
            if row["score"] is None or row["seed"] or row["system"].startswith("calibration/"):
                continue
            name = folder.name if row["system"] == "ultra" else row["system"]
            line = {"id": row["task"], "family": row["family"], "workers": {}}
            lines.setdefault(row["task"], line)["workers"][name] = as_outcome(row, tokens)
    place = find_outcomes_file("real-benchmarks")
    text = "".join(json.dumps(line) + "\n" for line in lines.values())
    place.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{place}: {len(lines):,} questions, {place.stat().st_size:,} bytes")


def read_tokens(place: Path) -> dict[str, tuple[int, int]]:
    """Return the input and output tokens of each stored run."""
    with sqlite3.connect(f"file:{place}?mode=ro", uri=True) as file:
        rows = file.execute("SELECT id, input_tokens, output_tokens FROM runs")
        return {run: (sent, got) for run, sent, got in rows}


def as_outcome(row: dict[str, Any], tokens: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Return a result as a worker's outcome."""
    answer = row["answer"]
    if answer is not None and len(answer) > LONG_ANSWER:
        answer = f"sha256:{hashlib.sha256(answer.encode()).hexdigest()[:16]}"
    sent, got = tokens[row["run"]]
    return {
        "scores": [row["score"]],
        "answers": [answer],
        "input_tokens": sent,
        "output_tokens": got,
        "usd": None if row["usd"] is None else float(row["usd"]),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("pack", "unpack", "record"))
    parser.add_argument("places", nargs="+", type=Path)
    said = parser.parse_args()
    if said.command == "pack":
        pack(said.places)
    elif said.command == "unpack":
        unpack(said.places[0])
    else:
        record(said.places)
