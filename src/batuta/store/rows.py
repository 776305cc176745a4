"""Converts a run to a database row, and a row to a summary. Pure.

Labels are values by which runs are filtered: workers, error, user and tags, in one text column. A
run keeps at most `LABEL_BYTES` of labels, since the column is part of the covering indexes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from math import isfinite
from typing import Any

from batuta.core import Cost, Outcome, Run, RunId
from batuta.errors import StoreError
from batuta.store.codec import encode_run, format_cursor, sql_text
from batuta.store.drift import DriftValue, run_seconds
from batuta.store.ledger import RunCharge, budgeted_nano, ledger_lines, ledger_rows

LABEL_BYTES = 1_000
"""Maximum bytes of all labels of a run; tags are left out first, then the user, then workers."""
LABEL_CHARACTERS = 200
"""Maximum characters of a label; longer ones are truncated, in filters too."""
WORKER, ERROR, USER, TAG = "worker", "error", "user", "tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLabels:
    """The end user and the tags of a request, as labels of its run."""

    user: str = ""
    """The client's name of the end user; empty: none given."""
    tags: tuple[str, ...] = ()
    """Words, and pairs `name=value` of the request's metadata."""


NO_LABELS = RequestLabels()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingNote:
    """The worker that acted at a request, the worker before it in the session, and the reason."""

    acting: str | None = None
    """The worker whose reply reached the client; None: no reply did, or it is not known."""
    took_over_from: str | None = None
    """The worker that acted before; None: no worker did, or the same one."""
    turn: str | None = None
    """A digest that all requests of a turn share; None: no turn, or not kept."""
    reason: str | None = None
    """Why that worker was chosen, as clauses; None: there was no choice, or it is not kept."""


NO_ACTING_NOTE = ActingNote()


def format_label(kind: str, value: str) -> str:
    """Return the label as it is stored and searched: one line, truncated."""
    return f"{kind}:{' '.join(sql_text(value).split())}"[:LABEL_CHARACTERS]


def encode_labels(labels: Iterable[str]) -> str | None:
    """Return the column's text, with each label between two newlines; None if there are no labels.

    The first label beyond `LABEL_BYTES`, and all labels after it, are left out.
    """
    kept, size = "\n", 1
    for label in dict.fromkeys(labels):
        size += len(label.encode()) + 1
        if size > LABEL_BYTES:
            break
        kept += f"{label}\n"
    return kept if len(kept) > 1 else None


def label_values(column: str | None, kind: str) -> tuple[str, ...]:
    """Return the values of the column's labels of that kind."""
    lines = (column or "").split("\n")
    return tuple(line.partition(":")[2] for line in lines if line.startswith(f"{kind}:"))


def run_labels(run: Run, labelled: RequestLabels | None) -> str | None:
    """Return the labels of a run as the column's text; None if it has none.

    Args:
        run: the run; its question may have tags.
        labelled: labels of its request; None: only the workers and the error are kept.
    """
    labels = [format_label(ERROR, run.error_code)] if run.error_code else []
    labels += [format_label(WORKER, worker) for worker in _name_workers(run)]
    if labelled is not None:
        labels += [format_label(USER, labelled.user)] if labelled.user else []
        labels += [format_label(TAG, tag) for tag in (*run.header.question.tags, *labelled.tags)]
    return encode_labels(labels)


def _name_workers(run: Run) -> Iterable[str]:
    """Return the workers that were planned or called, each once."""
    named: dict[str, None] = {}
    for step in run.steps:
        named.update(dict.fromkeys((step.planned, *(each.worker for each in step.attempts))))
        named[step.worker] = None
    return named


PREVIEW_CHARACTERS = 200
"""Maximum characters of question and answer that a summary shows."""

_MAX_INTEGER = 2**63 - 1

LOCAL_CHARGE = RunCharge()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a list: its numbers and names, with previews of question and answer."""

    id: RunId
    tenant: str
    parent: RunId | None
    """The run that this one continues; None: none."""
    created: float
    """Seconds since the epoch."""
    model: str
    conductor: str
    outcome: Outcome
    error_code: str | None
    """None: no error."""
    question_preview: str
    """The first characters of `Question.title`; empty if the run's content is not kept."""
    answer_preview: str | None
    """The first characters of the answer; None: there is no answer, or the content is not kept."""
    steps: int
    rounds: int
    calls: int
    input_tokens: int
    cached_tokens: int
    """Tokens of `input_tokens` that were read from a cache."""
    output_tokens: int
    reasoning_tokens: int
    """Tokens of `output_tokens` that were spent on reasoning."""
    cost: Cost
    seconds: float
    score: float | None
    """None: not judged."""
    score_comment: str | None
    """None: no comment."""
    session: str | None = None
    """The id of the run's session; None: none."""
    labels: str | None = None
    """The stored labels as `encode_labels` returns them; None: none."""
    alone_usd: Decimal | None = None
    """Estimated dollars that the best single worker would have cost; None: not known."""
    shadow: str | None = None
    """The verdict on the comparison with the best single worker's answer; None: not compared."""
    shadow_usd: Decimal | None = None
    """Dollars that this comparison cost; None: not compared."""
    acted: ActingNote = NO_ACTING_NOTE
    """The worker that acted in the run, and the reason."""

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that were planned or called, as far as `labels` has them."""
        return label_values(self.labels, WORKER)

    @property
    def user(self) -> str | None:
        """The end user that the request named; None: none named, or not kept."""
        return next(iter(label_values(self.labels, USER)), None)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the question and the request, as far as `labels` has them.

        They are words, and pairs `name=value` of the request's metadata.
        """
        return label_values(self.labels, TAG)

    @property
    def cursor(self) -> str:
        """The position after this run in a list: `Store.list(before=...)`."""
        return format_cursor(self.created, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run that is queued for the database."""

    run: Run
    tenant: str
    content: bool
    """False: texts, user, tags, turn and reason are not kept."""
    charge: RunCharge = LOCAL_CHARGE
    """The payer."""
    keep: bool = True
    """False: only ledger lines are written."""
    session: str | None = None
    """The id of the run's session; None: none."""
    labels: RequestLabels = NO_LABELS
    """The labels of the run's request."""
    alone_usd: Decimal | None = None
    """Estimated dollars that the best single worker would have cost; None: not known."""
    acted: ActingNote = NO_ACTING_NOTE
    """The worker that acted in the run, and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRun:
    """The database values of an entry."""

    row: dict[str, Any] | None
    """None if the run is not kept."""
    body: bytes | None
    """The encoded run; None if its content is not kept."""
    lines: tuple[dict[str, Any], ...] = ()
    """Lines of the ledger."""
    nano: int = 0
    """Billionths of a dollar that budgets count for the run."""
    reservation: str | None = None
    """The id of the reservation that ends with the run; None: none."""
    seconds: tuple[DriftValue, ...] = ()
    """Durations of the run's calls, for `drift`; empty if the run is not kept."""


def pack_run(entry: RunEntry) -> PackedRun:
    """Return the entry as values that every database accepts.

    A run that cannot be encoded is kept without its content, so that its cost is not lost.
    """
    run, charge = entry.run, entry.charge
    at = _finite_or_zero(run.header.started if charge.at is None else charge.at)
    lines = ledger_lines(run, charge.counted)
    return PackedRun(
        row=_run_row(entry) if entry.keep else None,
        body=_encode_body(run) if entry.keep and entry.content else None,
        lines=tuple(ledger_rows(run, lines, charge, at)),
        nano=budgeted_nano(lines),
        reservation=charge.reservation.id if charge.reservation else None,
        seconds=tuple(run_seconds(run)) if entry.keep else (),
    )


def summary_from_row(row: Mapping[str, Any]) -> RunSummary:
    """Return the summary of a row of `runs`."""
    values: dict[str, Any] = dict(row)
    values["cost"] = Cost(values.pop("usd"), values.pop("unpriced_calls"))
    values["outcome"] = Outcome(values["outcome"])
    acted = take_acting_note(values)
    return RunSummary(**values, acted=acted)


def summary_from_entry(entry: RunEntry) -> RunSummary:
    """Return the summary of a run that is not written yet and therefore has no score."""
    return summary_from_row({**_run_row(entry), "score": None, "score_comment": None})


def take_acting_note(values: dict[str, Any]) -> ActingNote:
    """Remove the columns of an `ActingNote` from a row's values, and return the note."""
    return ActingNote(**{each.name: values.pop(each.name) for each in fields(ActingNote)})


def _encode_body(run: Run) -> bytes | None:
    try:
        return encode_run(run)
    except StoreError:
        return None


def _run_row(entry: RunEntry) -> dict[str, Any]:
    run, header, usage, cost = entry.run, entry.run.header, entry.run.usage, entry.run.cost
    acted = entry.acted
    return {
        "id": sql_text(header.id),
        "tenant": sql_text(entry.tenant),
        "parent": _optional_text(header.parent or (header.resumed and header.resumed.runs[-1])),
        "created": _finite_or_zero(header.started),
        "model": sql_text(header.model),
        "conductor": sql_text(header.conductor),
        "outcome": run.outcome.value,
        "error_code": _optional_text(run.error_code),
        "question_preview": sql_text(header.question.title[:PREVIEW_CHARACTERS])
        if entry.content
        else "",
        "answer_preview": _optional_text(run.answer and run.answer[:PREVIEW_CHARACTERS])
        if entry.content
        else None,
        "steps": len(run.steps),
        "rounds": len(run.rounds),
        "calls": _clamp_integer(usage.calls),
        "input_tokens": _clamp_integer(usage.input),
        "cached_tokens": _clamp_integer(usage.cached),
        "output_tokens": _clamp_integer(usage.output),
        "reasoning_tokens": _clamp_integer(usage.reasoning),
        "usd": cost.usd,
        "unpriced_calls": _clamp_integer(cost.unpriced_calls),
        "seconds": _finite_or_zero(run.seconds),
        "session": _optional_text(entry.session),
        "alone_usd": entry.alone_usd,
        "labels": run_labels(run, entry.labels if entry.content else None),
        "acting": _optional_text(acted.acting),
        "took_over_from": _optional_text(acted.took_over_from),
        "turn": _optional_text(acted.turn) if entry.content else None,
        "reason": _optional_text(acted.reason) if entry.content else None,
    }


def _optional_text(text: str | None) -> str | None:
    return None if text is None else sql_text(text)


def _clamp_integer(number: int) -> int:
    return min(number, _MAX_INTEGER)


def _finite_or_zero(number: float) -> float:
    return number if isfinite(number) else 0.0
