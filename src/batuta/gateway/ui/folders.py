"""Training runs and evaluation reports, read from their files.

The folders are the operator's; a visitor names one only by a mark that is computed from its path,
so that no path comes from outside.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

METRICS, SAMPLES, SETTINGS = "metrics.jsonl", "samples.jsonl", "settings.json"
REPORT, REPORT_PAGE = "report.json", "report.html"
_DEEPEST = 4
"""Folders below one that is searched."""
_MOST = 300
"""Folders that are shown."""
_LARGEST = 64 * 1024 * 1024
_PATIENCE = 120.0
"""Seconds without a new line, beyond a few steps' time, after which a training has stopped."""
_RECENT = 10

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """A folder with something to show."""

    path: Path
    name: str
    """From the searched folder on."""
    changed: float
    """Seconds since the epoch."""

    @property
    def mark(self) -> str:
        """What the page calls it."""
        return hashlib.blake2b(str(self.path).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Training:
    """A training run as its folder tells it."""

    found: Found
    state: str
    """`running`, `stopped`, `finished` or `begun`."""
    lines: tuple[Line, ...]
    """The figures of each step."""
    steps: int | None
    """Of the whole training; None: not written down."""

    @property
    def at(self) -> int:
        """The step it has come to."""
        return int(self.lines[-1].get("step", 0)) if self.lines else 0


def trainings(folders: Sequence[Path]) -> list[Found]:
    """The folders of training runs, the one that changed last first."""
    return _found(folders, (METRICS, SETTINGS))


def reports(folders: Sequence[Path]) -> list[Found]:
    """The folders of reports, the newest first."""
    return _found(folders, (REPORT,))


def named(found: Sequence[Found], mark: str) -> Found | None:
    """The one of that mark."""
    return next((each for each in found if each.mark == mark), None)


def read_training(found: Found, now: float | None = None) -> Training:
    """What the folder holds."""
    lines = tuple(read_lines(found.path / METRICS))
    steps = _planned(found.path)
    return Training(found, _state(found, lines, steps, now or time.time()), lines, steps)


def read_samples(found: Found) -> list[Line]:
    """The workflows that were sampled."""
    return read_lines(found.path / SAMPLES)


def read_report(found: Found) -> list[Line]:
    """The report, or the several of an index; none if the file is something else."""
    data = _json(found.path / REPORT)
    several = cast("list[Any]", data) if isinstance(data, list) else [data]
    return [
        cast("Line", each)
        for each in several
        if isinstance(each, dict) and isinstance(cast("Line", each).get("systems"), dict)
    ]


def read_lines(path: Path) -> list[Line]:
    """The whole lines of a JSONL file; none if it is not there; a line cut short is left out."""
    lines: list[Line] = []
    for text in _bytes(path).split(b"\n"):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict):
            lines.append(cast("Line", value))
    return lines


def _found(folders: Sequence[Path], files: Sequence[str]) -> list[Found]:
    seen: dict[Path, Found] = {}
    for root in folders:
        for folder in _below(root, _DEEPEST):
            changed = [m for name in files if (m := _changed(folder / name)) is not None]
            if changed:
                name = folder.name if folder == root else str(folder.relative_to(root))
                seen.setdefault(folder.resolve(), Found(folder, name, max(changed)))
    return sorted(seen.values(), key=lambda each: -each.changed)[:_MOST]


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """The folder and those in it; links are not followed."""
    yield folder
    if not depth:
        return
    try:
        inside = sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError:
        return
    for path in inside:
        if not path.name.startswith((".", "checkpoint")):
            yield from _below(path, depth - 1)


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _planned(folder: Path) -> int | None:
    data = _json(folder / SETTINGS)
    try:
        return int(cast("Any", data)["optimiser"]["steps"])
    except (KeyError, TypeError, ValueError):
        return None


def _state(found: Found, lines: Sequence[Line], steps: int | None, now: float) -> str:
    if not lines:
        return "begun"
    if steps is not None and lines[-1].get("step", 0) >= steps:
        return "finished"
    usual = max(float(line.get("step_time") or 0.0) for line in lines[-_RECENT:])
    return "running" if now - found.changed < _PATIENCE + 3 * usual else "stopped"


def _json(path: Path) -> object:
    try:
        return orjson.loads(_bytes(path))
    except orjson.JSONDecodeError:
        return None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= _LARGEST else b""
    except OSError:
        return b""
