"""Reads an outcomes file as a record that can be replayed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batuta.core import Task, TaskId
from batuta.errors import SourceError
from batuta.lab.tasks.datasets.dataset import distinct_ids, text_digest
from batuta.lab.tasks.recorded.outcome_lines import OutcomeLine, read_outcome_lines
from batuta.lab.tasks.recorded.outcomes import GRADER, RecordedOutcomes, RecordedUsage, ReplyRow

SUFFIX = ".jsonl"
"""The suffix of an outcomes file; `.gz` or `.zst` may follow."""


PACKAGED_RECORDS = {"real-benchmarks": "real_benchmarks.jsonl.gz"}
"""The files, in this folder, of the records distributed with Batuta; they lack questions' texts."""


def find_outcomes_file(name: str) -> Path | None:
    """Return the path of a packaged record or of an outcomes file; None for another name."""
    if name in PACKAGED_RECORDS:
        return Path(__file__).parent / PACKAGED_RECORDS[name]
    return Path(name) if SUFFIX in Path(name).suffixes[-2:] else None


def read_own_record(path: Path, *, with_texts: bool = True) -> RecordedOutcomes:
    """Read the record in a file; missing answers are extracted from the replies.

    Raises:
        SourceError: the file cannot be read, or is not in the format of `outcome_lines`.
    """
    lines = read_outcome_lines(path)
    models = tuple(dict.fromkeys(name for line in lines for name in line.workers))
    depth = max(len(one.scores) for line in lines for one in line.workers.values())
    shape = (len(lines), len(models), depth)
    named = (line.id or f"own/{text_digest(line.question)}" for line in lines)
    ids = list(distinct_ids(named))
    answers, indices_qms = _index_answers(lines, models, shape)
    record = RecordedOutcomes(
        name=path.name,
        tasks=tuple(
            Task(
                id=TaskId(id_),
                question=line.question,
                target=line.target,
                grader=GRADER,
                tags=(line.family,) * bool(line.family),
            )
            for id_, line in zip(ids, lines, strict=True)
        ),
        families=tuple(line.family or "all" for line in lines),
        models=models,
        scores_qms=_field_values(lines, models, shape, "scores").astype(np.float32),
        answers_qms=indices_qms if answers else None,
        answers=answers,
        usage=_recorded_usage(lines, models, shape),
        is_drawn_by_id=any(line.is_named_by_id for line in lines),
        version=hashlib.sha256(path.read_bytes()).hexdigest()[:12],
    )
    replies = _reply_rows(lines, ids)
    return record.with_texts(replies) if with_texts and replies else record


def _index_answers(
    lines: tuple[OutcomeLine, ...], models: tuple[str, ...], shape: tuple[int, int, int]
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the distinct answers, and the index of each run's answer among them; -1 for none."""
    indices: dict[str, int] = {}
    indices_qms = np.full(shape, -1, np.int32)
    for q, line in enumerate(lines):
        for name, outcome in line.workers.items():
            for s, answer in enumerate(outcome.answers):
                if answer:
                    index = indices.setdefault(answer, len(indices))
                    indices_qms[q, models.index(name), s] = index
    return tuple(indices), indices_qms


def _field_values(
    lines: tuple[OutcomeLine, ...], models: tuple[str, ...], shape: tuple[int, int, int], name: str
) -> NDArray[np.float64]:
    """Return the field `name` of every run, by question, worker and run; NaN if it is unknown."""
    found = np.full(shape, np.nan)
    for q, line in enumerate(lines):
        for worker, outcome in line.workers.items():
            values: tuple[float, ...] = getattr(outcome, name)
            found[q, models.index(worker), : len(values)] = values
    return found


def _recorded_usage(
    lines: tuple[OutcomeLine, ...], models: tuple[str, ...], shape: tuple[int, int, int]
) -> RecordedUsage | None:
    usd, seconds, input_tokens, output_tokens = (
        _field_values(lines, models, shape, name)
        for name in ("usd", "seconds", "input_tokens", "output_tokens")
    )
    if all(np.isnan(values).all() for values in (usd, seconds, input_tokens, output_tokens)):
        return None
    return RecordedUsage(
        input_qms=_as_integers(input_tokens),
        output_qms=_as_integers(output_tokens),
        usd_qms=usd,
        seconds_qms=seconds.astype(np.float32),
    )


def _as_integers(amounts: NDArray[np.float64]) -> NDArray[np.int32]:
    return np.where(np.isnan(amounts), -1, amounts).astype(np.int32)


def _reply_rows(lines: tuple[OutcomeLine, ...], ids: list[str]) -> list[ReplyRow]:
    return [
        (id_, worker, s, reply)
        for id_, line in zip(ids, lines, strict=True)
        for worker, outcome in line.workers.items()
        for s, reply in enumerate(outcome.replies)
        if reply
    ]


def complete_record(record: RecordedOutcomes) -> RecordedOutcomes:
    """Return the record of the questions that every model answered, with the number of the others.

    Raises:
        SourceError: no question was answered by every model.
    """
    kept = record.drop_incomplete()
    if not kept.tasks:
        raise SourceError(
            f"{record.name} has no question that all of {', '.join(record.models)} answered: "
            "choose fewer workers with --pool"
        )
    return replace(kept, incomplete=len(record.tasks) - len(kept.tasks))
