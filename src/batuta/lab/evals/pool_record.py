"""Records which model each name stands for, so that results of two models are not mixed up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from batuta.clients.providers import Identity, identity_digest
from batuta.core.formatting import join_words
from batuta.errors import StoreError, report_unwritable

WORKERS_FILE = "workers.json"
_SHOWN_PARTS = ("model", "worker")
"""The parts of an identity that are shown with their values."""


@dataclass(frozen=True, slots=True)
class _IdentityRecord:
    """The first and the latest identity of a name."""

    first: dict[str, str]
    latest: dict[str, str]


@dataclass(frozen=True, slots=True)
class PoolChanges:
    """The workers, conductors' models and judge that have changed since the folder was created."""

    replaced: Mapping[str, str] = field(default_factory=dict[str, str])
    """Digests of their present identities, by name; they are part of the keys of results."""
    sentence: str = ""
    """A sentence about the changes since the folder was last used; empty if there are none."""


def note_identities(
    folder: Path, identities: Mapping[str, Identity], *, write: bool = True
) -> PoolChanges:
    """Return what has changed since the folder was created; with `write`, update its record.

    A folder that an earlier version of Batuta made has no record; it is assumed to belong to the
    present workers.

    Raises:
        StoreError: the record is damaged, or it cannot be read or written.
    """
    path = folder / WORKERS_FILE
    known = _read_record(path)
    replaced: dict[str, str] = {}
    notes: list[str] = []
    noted = dict(known)
    for name, now in identities.items():
        before = known.get(name)
        noted[name] = _IdentityRecord(before.first if before else dict(now), dict(now))
        if before and before.first != now:
            replaced[name] = identity_digest(now)
        if before and before.latest != now:
            notes.append(f"{name} ({_describe_change(before.latest, now)})")
    if write and noted != known:
        _write_record(path, noted)
    sentence = f"{join_words(notes)} changed since {folder} was last used" if notes else ""
    effect = "earlier results that depend on this are not used, and the questions are asked again"
    return PoolChanges(replaced, f"{sentence}; {effect}" if sentence else "")


def _describe_change(before: Identity, now: Identity) -> str:
    """Return the parts of the identity that differ; those of `_SHOWN_PARTS` with both values.

    If the name stands for another worker, only that part is returned.
    """
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if "worker" in names:
        names = ["worker"]
    return ", ".join(
        f"{name} {before.get(name)} → {now.get(name)}" if name in _SHOWN_PARTS else name
        for name in names
    )


def _read_record(path: Path) -> dict[str, _IdentityRecord]:
    if not path.is_file():
        return {}
    try:
        return TypeAdapter(dict[str, _IdentityRecord]).validate_json(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError:
        reason = (
            "is damaged: remove it; the folder's results then count as those of the present workers"
        )
        raise StoreError(f"{path} {reason}") from None


def _write_record(path: Path, noted: Mapping[str, _IdentityRecord]) -> None:
    new = path.with_suffix(f".{os.getpid()}")
    with report_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(orjson.dumps(noted, option=orjson.OPT_INDENT_2))
        new.replace(path)
