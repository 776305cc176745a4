"""Training runs and evaluation reports, read from their files.

The folders are the operator's; a visitor names one only by a mark that is computed from its path,
so that no path comes from outside.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

METRICS, SAMPLES, SETTINGS = "metrics.jsonl", "samples.jsonl", "settings.json"
REPORT, REPORT_PAGE = "report.json", "report.html"
_MAX_DEPTH = 4
"""Folders below one that is searched."""
_MAX_FOLDERS = 300
"""Folders that are shown."""
_MAX_BYTES = 64 * 1024 * 1024
_STALE_SECONDS = 120.0
"""Seconds without a new line, beyond a few steps' time, after which a training has stopped."""
_RECENT_STEPS = 10

JsonRecord = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A folder with something to show."""

    path: Path
    name: str
    """The path within the searched folder."""
    modified_at: float
    """Seconds since the epoch."""

    @property
    def mark(self) -> str:
        """The folder's name on the page."""
        return hashlib.blake2b(str(self.path).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFolder:
    """A training run as its folder tells it."""

    folder: ResultFolder
    state: str
    """`running`, `stopped`, `finished` or `begun`."""
    lines: tuple[JsonRecord, ...]
    """The figures of each step."""
    steps: int | None
    """Steps of the whole training; None if not written down."""

    @property
    def current_step(self) -> int:
        """The step it has come to."""
        return int(self.lines[-1].get("step", 0)) if self.lines else 0


def find_trainings(folders: Sequence[Path]) -> list[ResultFolder]:
    """The folders of training runs, the one that changed last first."""
    return _find_folders(folders, (METRICS, SETTINGS))


def find_reports(folders: Sequence[Path]) -> list[ResultFolder]:
    """The folders of reports, the newest first."""
    return _find_folders(folders, (REPORT,))


def drop_copies(found: Sequence[ResultFolder]) -> list[ResultFolder]:
    """Keep one of the folders that have the same report, as `--out` and `--report` make them.

    It is the one with the report's own page, if one has it.
    """
    chosen: dict[bytes, ResultFolder] = {}
    for each in found:
        content = _read_bytes(each.path / REPORT)
        digest = hashlib.sha256(content or str(each.path).encode()).digest()
        before = chosen.get(digest)
        if before is None or not (before.path / REPORT_PAGE).is_file():
            has_page = (each.path / REPORT_PAGE).is_file()
            chosen[digest] = each if before is None or has_page else before
    kept = set(chosen.values())
    return [each for each in found if each in kept]


def folder_by_mark(found: Sequence[ResultFolder], mark: str) -> ResultFolder | None:
    """The one of that mark."""
    return next((each for each in found if each.mark == mark), None)


def read_training(found: ResultFolder, now: float | None = None) -> TrainingFolder:
    """Read the folder's contents."""
    lines = tuple(read_lines(found.path / METRICS))
    steps = _planned_steps(found.path)
    return TrainingFolder(
        folder=found,
        state=_training_state(found, lines, steps, now or time.time()),
        lines=lines,
        steps=steps,
    )


def read_samples(found: ResultFolder) -> list[JsonRecord]:
    """The workflows that were sampled."""
    return read_lines(found.path / SAMPLES)


def read_report(found: ResultFolder) -> list[JsonRecord]:
    """The report, or the several of an index; none if the file is something else."""
    data = _read_json(found.path / REPORT)
    several = cast("list[Any]", data) if isinstance(data, list) else [data]
    several = [_tuning_report(each) if _is_tuning(each) else each for each in several]
    return [
        cast("JsonRecord", each)
        for each in several
        if isinstance(each, dict) and isinstance(cast("JsonRecord", each).get("systems"), dict)
    ]


def _is_tuning(data: Any) -> bool:
    return isinstance(data, dict) and cast("JsonRecord", data).get("kind") == "tuning"


def _tuning_report(data: JsonRecord) -> JsonRecord:
    """Turn a report of `batuta tune` into the form of an evaluation: the systems judged last."""
    figures: list[Any] = []
    for name in ("selection", "finalists", "judged"):
        stage = data.get(name)
        figures = cast("list[Any]", stage) if isinstance(stage, list) and stage else figures
    known = [cast("JsonRecord", one) for one in figures if isinstance(one, dict)]
    advice = data.get("recommendation")
    return {
        "tasks": "A tuned pool",
        "questions": max((int(one.get("questions") or 0) for one in known), default=0),
        "systems": {
            str(one.get("name")): {
                "accuracy": one.get("share"),
                "ci95": (one["low"], one["high"]) if one.get("high") is not None else None,
                "n": one.get("questions"),
                "calls": one.get("calls"),
                "usd": one.get("usd"),
            }
            for one in known
        },
        "why": cast("JsonRecord", advice).get("why", []) if isinstance(advice, dict) else [],
        "workflows": data.get("workflows") or [],
        "spent": data.get("spent"),
    }


def _read_line(text: bytes) -> Any:
    """Read the value of a line; NaN and Infinity, which earlier versions wrote, are None.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text, parse_constant=lambda _: None)


def read_lines(path: Path) -> list[JsonRecord]:
    """The whole lines of a JSONL file; none if it is not there; a line cut short is left out."""
    lines: list[JsonRecord] = []
    for text in _read_bytes(path).split(b"\n"):
        try:
            value = _read_line(text)
        except ValueError:
            continue
        if isinstance(value, dict):
            lines.append(cast("JsonRecord", value))
    return lines


def _find_folders(folders: Sequence[Path], files: Sequence[str]) -> list[ResultFolder]:
    seen: dict[Path, ResultFolder] = {}
    for root in folders:
        for folder in _walk_folders(root, _MAX_DEPTH):
            changed = [m for name in files if (m := _modified_at(folder / name)) is not None]
            if changed:
                name = folder.name if folder == root else str(folder.relative_to(root))
                seen.setdefault(folder.resolve(), ResultFolder(folder, name, max(changed)))
    return sorted(seen.values(), key=lambda each: -each.modified_at)[:_MAX_FOLDERS]


def _walk_folders(folder: Path, depth: int) -> Iterator[Path]:
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
            yield from _walk_folders(path, depth - 1)


def _modified_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _planned_steps(folder: Path) -> int | None:
    data = _read_json(folder / SETTINGS)
    try:
        return int(cast("Any", data)["optimiser"]["steps"])
    except (KeyError, TypeError, ValueError):
        return None


def _training_state(
    found: ResultFolder, lines: Sequence[JsonRecord], steps: int | None, now: float
) -> str:
    if not lines:
        return "begun"
    if steps is not None and lines[-1].get("step", 0) >= steps:
        return "finished"
    usual = max(float(line.get("step_time") or 0.0) for line in lines[-_RECENT_STEPS:])
    return "running" if now - found.modified_at < _STALE_SECONDS + 3 * usual else "stopped"


def _read_json(path: Path) -> object:
    try:
        return orjson.loads(_read_bytes(path))
    except orjson.JSONDecodeError:
        return None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= _MAX_BYTES else b""
    except OSError:
        return b""
