"""Writes the settings that a tuning run recommends: the pool's file with the results. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import dropwhile
from pathlib import PurePath
from typing import Any

from batuta.config.conductors import PATTERN_PREFIX
from batuta.config.pool_file import quote_text
from batuta.core import Worker
from batuta.lab.tune.calibrate import WorkerCard

_TABLE = re.compile(r"^\s*\[{1,2}\s*([A-Za-z0-9_.\"-]+)\s*\]{1,2}")
_SYSTEM = re.compile(r"^\s*(conductor|selector)\s*=")
_REASONS = "# batuta-ultra: ", "# Nothing was judged"
"""The beginnings of settings that a tuning run recommended."""
_PLAIN_SYSTEM = re.compile(r"^\s*(mini|ultra)\s*[.=]")
_ROUNDS = re.compile(r"^\s*max_rounds\s*=\s*(\d+)")
_FILE = re.compile(r"^\s*file\s*=\s*[\"'](.*?)[\"']")
_MEASURED = re.compile(r"^\s*(strength|skills|id)\s*[.=]")
_PATH = re.compile(r"^(\s*(\w+)\s*=\s*)([\"'])(.+?)\3")
_PATHS = {
    "baselines": {"history", "cascade"},
    "conductor": {"worker", "card"},
    "confidence": {"file"},
    "models": {"conductor", "workflow"},
}
"""The settings of each table that may be paths relative to the settings' folder."""


def write_settings(
    original: str,
    recommendation: Mapping[str, Any],
    cards: Sequence[WorkerCard],
    groups: Sequence[str],
    *,
    rounds: int = 1,
    pool: Iterable[Worker] = (),
) -> str:
    """Return the file's text with the recommended systems and each worker's measurements.

    The recommendation, from `recommend_systems`, has the folder or the pattern that answers as mini
    and as ultra, or None for the best single worker. Its reasons become comments. `rounds` is the
    number of rounds that the system for ultra needs. The strengths of `pool`, unless None, replace
    those of the cards. Workers of `pool` that are not language models get no measurements, because
    settings refuse them.
    """
    workers = {worker.id: worker for worker in pool}
    known = {
        str(card.worker): _measured_lines(card, groups, workers.get(card.worker)) for card in cards
    }
    kept = _without_old(original)
    lines = [*(f"# {reason}" for reason in recommendation["why"]), ""]
    lines += _with_measured(kept, known)
    for name, fallback in (("mini", "best"), ("ultra", f"single/{recommendation['best']}")):
        chosen = recommendation.get(name) or fallback
        is_fixed = chosen == fallback or chosen.startswith(PATTERN_PREFIX)
        kind, served = "conductor" if is_fixed else "selector", chosen.removeprefix(PATTERN_PREFIX)
        entry = f'{kind} = "{served}"'
        lines = _with_entry(lines, name, _SYSTEM, lambda _, entry=entry: entry)
    if rounds > 1 and recommendation.get("ultra"):
        lines = _with_rounds(lines, rounds)
    return "\n".join(lines).strip() + "\n"


def move_paths(text: str, moved: Callable[[str], str]) -> str:
    """Return the settings with `moved` applied to each value that may be a relative path."""
    lines: list[str] = []
    table = ""
    for line in text.split("\n"):
        if found := _TABLE.match(line):
            table = found[1].split(".")[0]
        path = _PATH.match(line)
        if path and path[2] in _PATHS.get(table, ()):
            line = f"{path[1]}{path[3]}{moved(path[4])}{line[path.end(4) :]}"  # noqa: PLW2901
        lines.append(line)
    return "\n".join(lines)


def with_confidence(text: str, file: str) -> str:
    """Add the confidence model's file to the settings, unless they name a file of another name."""

    def named(known: re.Match[str] | None) -> str:
        is_own = known is not None and PurePath(known[1]).name != file
        return known.string if known and is_own else f'file = "{file}"'

    lines = _with_entry(text.strip().split("\n"), "confidence", _FILE, named)
    return "\n".join(lines) + "\n"


def _with_rounds(lines: Sequence[str], rounds: int) -> list[str]:
    """Set `max_rounds` to at least `rounds`."""

    def raised(known: re.Match[str] | None) -> str:
        return f"max_rounds = {max(rounds, int(known[1]) if known else 0)}"

    return _with_entry(lines, "limits", _ROUNDS, raised)


def _with_entry(
    lines: Sequence[str],
    name: str,
    pattern: re.Pattern[str],
    entry: Callable[[re.Match[str] | None], str],
) -> list[str]:
    """Replace the entry of a table; add it, and the table, where they are missing.

    `pattern` finds the entry's line in the table `name`, and `entry` returns its new line from what
    was found, or from None.
    """
    written: list[str] = []
    table, header, has_entry = "", None, False
    for line in lines:
        if found := _TABLE.match(line):
            table = found[1]
            header = len(written) if table == name else header
        known = pattern.match(line) if table == name else None
        has_entry = has_entry or known is not None
        written.append(entry(known) if known else line)
    if has_entry:
        return written
    if header is None:
        return [*written, "", f"[{name}]", entry(None)]
    return [*written[: header + 1], entry(None), *written[header + 1 :]]


def _without_old(text: str) -> list[str]:
    """Return the lines without the reasons of an earlier recommendation, which come first.

    Systems that are set above all tables, as in `mini = "best"`, are left out too.
    """
    lines = text.split("\n")  # a string may have other ends of lines
    if text.startswith(_REASONS):
        rest = dropwhile(lambda line: line.startswith("#"), lines)
        lines = list(dropwhile(lambda line: not line.strip(), rest))
    first = next((at for at, line in enumerate(lines) if _TABLE.match(line)), len(lines))
    return [line for at, line in enumerate(lines) if at > first or not _PLAIN_SYSTEM.match(line)]


def _with_measured(lines: Sequence[str], known: Mapping[str, list[str]]) -> list[str]:
    """Replace each worker's old measurements by the new measurements, below its id."""
    written: list[str] = []
    table = ""
    for line in lines:
        if found := _TABLE.match(line):
            table = found[1]
        if table.startswith("workers.skills"):
            continue
        named = _MEASURED.match(line) if table == "workers" else None
        if named is None or named[1] == "id":
            written.append(line)
        if named is not None and named[1] == "id":
            worker = line.partition("=")[2].split("#")[0].strip().strip("\"'")
            written += known.get(worker, [])
    return written


def _measured_lines(card: WorkerCard, groups: Sequence[str], worker: Worker | None) -> list[str]:
    if card.overall.share is None or (worker is not None and not worker.is_model):
        return []
    strength = None if worker is None else worker.strength
    skills = ", ".join(
        f"{quote_text(name)} = {{ share = {one.shrunk:.3f}, questions = {one.questions} }}"
        for name, one in zip(groups, card.by_group, strict=True)
        if one.questions and one.shrunk is not None
    )
    low, high = card.overall.low or 0.0, card.overall.high or 0.0
    many = f"{card.overall.questions} questions: {low:.3f} to {high:.3f}"
    first = round(card.overall.share, 3)
    how = "measured on" if strength in {None, first} else "remeasured over all groups; first on"
    stated = f"strength = {first if strength is None else strength:.3f}  # {how} {many}"
    return [stated, *([f"skills = {{ {skills} }}"] if skills else [])]
