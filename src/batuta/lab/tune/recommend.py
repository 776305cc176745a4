"""Writes the settings that a tuning run recommends: the pool's file with the results. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from batuta.config.conductors import PATTERN_PREFIX
from batuta.core import WorkerId
from batuta.lab.tune.calibrate import WorkerCard

_TABLE = re.compile(r"^\s*\[{1,2}\s*([A-Za-z0-9_.\"-]+)\s*\]{1,2}")
_OWN = frozenset({"mini", "ultra"})
_ROUNDS = re.compile(r"^\s*max_rounds\s*=\s*(\d+)")
_MEASURED = re.compile(r"^\s*(strength|skills|id)\s*=")


def write_settings(
    original: str,
    recommendation: Mapping[str, Any],
    cards: Sequence[WorkerCard],
    groups: Sequence[str],
    *,
    rounds: int = 1,
    strengths: Mapping[WorkerId, float | None] | None = None,
) -> str:
    """Return the file's text with the recommended systems and each worker's measurements.

    The recommendation, from `recommend_systems`, has the folder or the pattern that answers as mini
    and as ultra, or None for the best single worker. Its reasons become comments. `rounds` is the
    number of rounds that the system for ultra needs. `strengths` replaces strengths of the cards,
    unless a strength is None.
    """
    known = {
        str(card.worker): _measured_lines(card, groups, (strengths or {}).get(card.worker))
        for card in cards
    }
    kept = _without_tables(original, _OWN)
    lines = [*(f"# {reason}" for reason in recommendation["why"]), ""]
    lines += _with_measured(kept, known)
    for name, fallback in (("mini", "best"), ("ultra", f"single/{recommendation['best']}")):
        chosen = recommendation.get(name) or fallback
        is_fixed = chosen == fallback or chosen.startswith(PATTERN_PREFIX)
        entry = (
            f'{"conductor" if is_fixed else "selector"} = "{chosen.removeprefix(PATTERN_PREFIX)}"'
        )
        lines += ["", f"[{name}]", entry]
    if rounds > 1 and recommendation.get("ultra"):
        lines = _with_rounds(lines, rounds)
    return "\n".join(lines).strip() + "\n"


def with_confidence(text: str, file: str) -> str:
    """Add the confidence model's file to the settings, unless they have a [confidence] table."""
    tables = (found[1] for line in text.splitlines() if (found := _TABLE.match(line)))
    return text if "confidence" in tables else f'{text}\n[confidence]\nfile = "{file}"\n'


def _with_rounds(lines: Sequence[str], rounds: int) -> list[str]:
    """Raise `max_rounds` to `rounds`, because comparing answers needs a second round."""
    written: list[str] = []
    table, has_limit = "", False
    for line in lines:
        if found := _TABLE.match(line):
            table = found[1]
        known = _ROUNDS.match(line) if table == "limits" else None
        has_limit = has_limit or known is not None
        written.append(f"max_rounds = {max(rounds, int(known[1]))}" if known else line)
    if has_limit:
        return written
    tables = ((at, _TABLE.match(line)) for at, line in enumerate(written))
    header = next((at for at, found in tables if found and found[1] == "limits"), None)
    if header is None:
        return [*written, "", "[limits]", f"max_rounds = {rounds}"]
    return [*written[: header + 1], f"max_rounds = {rounds}", *written[header + 1 :]]


def _without_tables(text: str, names: frozenset[str]) -> list[str]:
    kept: list[str] = []
    skips = False
    for line in text.splitlines():
        if table := _TABLE.match(line):
            skips = table[1].split(".")[0] in names
        if not skips:
            kept.append(line)
    return kept


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


def _measured_lines(card: WorkerCard, groups: Sequence[str], strength: float | None) -> list[str]:
    if card.overall.share is None:
        return []
    skills = ", ".join(
        f"{_quote_toml(name)} = {{ share = {one.shrunk:.3f}, questions = {one.questions} }}"
        for name, one in zip(groups, card.by_group, strict=True)
        if one.questions and one.shrunk is not None
    )
    low, high = card.overall.low or 0.0, card.overall.high or 0.0
    many = f"{card.overall.questions} questions: {low:.3f} to {high:.3f}"
    first = round(card.overall.share, 3)
    how = "measured on" if strength in {None, first} else "remeasured over all groups; first on"
    stated = f"strength = {first if strength is None else strength:.3f}  # {how} {many}"
    return [stated, *([f"skills = {{ {skills} }}"] if skills else [])]


def _quote_toml(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
