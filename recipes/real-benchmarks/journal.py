"""Keeps the calls of this recipe without their questions, and brings them back.

    python recipes/real-benchmarks/journal.py pack FOLDER...   # every *.db in them, to calls.jsonl.zst here
    python recipes/real-benchmarks/journal.py unpack runs/real-benchmarks/calls.db

A call is the worker's name, a digest of its request, and its reply. With `calls.db` as `--journal` an
evaluation or a tuning asks only what nobody has asked before.
"""

from __future__ import annotations

import argparse
import io
import json
import sqlite3
from pathlib import Path

import zstandard

from batuta.clients import CallCache

RECORD = Path(__file__).parent / "calls.jsonl.zst"


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("pack", "unpack"))
    parser.add_argument("places", nargs="+", type=Path)
    said = parser.parse_args()
    if said.command == "pack":
        pack(said.places)
    else:
        unpack(said.places[0])
