"""The words by which runs are grouped: workers, error, user and tags, as one column of text. Pure.

A run keeps at most `LABEL_BYTES` of them, as lists are read from indexes that hold them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from batuta.core import Run
from batuta.store.codec import sql_text

LABEL_BYTES = 1_000
"""Bytes of all labels of a run at most; tags that come last are left out, then the user."""
LABEL_CHARACTERS = 200
"""Characters of a label at most; the rest of a longer one is cut, where it is looked for too."""
WORKER, ERROR, USER, TAG = "worker", "error", "user", "tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLabels:
    """What a request says of itself, to be found by."""

    user: str = ""
    """The end user, as the client calls them; empty: it says nobody."""
    tags: tuple[str, ...] = ()
    """Words, and pairs `name=value` of the request's metadata."""


NO_LABELS = RequestLabels()


def format_label(kind: str, value: str) -> str:
    """Return the label as it is stored and looked for: one line, not too long."""
    return f"{kind}:{' '.join(sql_text(value).split())}"[:LABEL_CHARACTERS]


def encode_labels(labels: Iterable[str]) -> str | None:
    """Return the labels as the column holds them, each between two line ends; None if none."""
    kept, size = "\n", 1
    for label in dict.fromkeys(labels):
        size += len(label.encode()) + 1
        if size > LABEL_BYTES:
            break
        kept += f"{label}\n"
    return kept if len(kept) > 1 else None


def label_values(column: str | None, kind: str) -> tuple[str, ...]:
    """Return the values of that kind among the labels that the column holds."""
    lines = (column or "").split("\n")
    return tuple(line.partition(":")[2] for line in lines if line.startswith(f"{kind}:"))


def run_labels(run: Run, said: RequestLabels | None) -> str | None:
    """Return the labels of a run.

    Args:
        run: the run, whose question has its tags.
        said: what its request says; None keeps nothing but workers and the error.
    """
    labels = [format_label(ERROR, run.error_code)] if run.error_code else []
    labels += [format_label(WORKER, worker) for worker in _name_workers(run)]
    if said is not None:
        labels += [format_label(USER, said.user)] if said.user else []
        labels += [format_label(TAG, tag) for tag in (*run.header.question.tags, *said.tags)]
    return encode_labels(labels)


def _name_workers(run: Run) -> Iterable[str]:
    """Name the workers that were planned or asked, each once."""
    named: dict[str, None] = {}
    for step in run.steps:
        named.update(dict.fromkeys((step.planned, *(each.worker for each in step.attempts))))
        named[step.worker] = None
    return named
