"""The outcomes of a pool's workers on some questions.

Selectors, routers and cascades are fitted to such a history. It comes from a recorded set
(`history_from_record`), the calibration of an evaluation, or a file with a line for each question:

    {"question": "…", "family": "…", "workers": {"oboe": {"score": 0.5, "usd": 0.002, "runs": 2}}}

`batuta.lab.tasks.recorded.outcome_lines` describes every field.

Axes: q questions, m workers, s samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from batuta.core import WorkerId
from batuta.errors import SourceError, report_unwritable
from batuta.lab.tasks.graders.answer_form import canonical_answer
from batuta.lab.tasks.recorded import RecordedOutcomes
from batuta.lab.tasks.recorded.outcome_lines import OutcomeLine, read_outcome_lines

QuestionIndices = NDArray[np.signedinteger[Any]] | Sequence[int]
"""Indices of questions."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RunSamples:
    """The credit and answer of each single run."""

    credit_qms: NDArray[np.float32]
    """Credit in [0, 1]; NaN if there is no such run or its credit is unknown."""
    answers_qms: NDArray[np.int32]
    """Extracted answers, as indices into `answers`; -1 for no answer."""
    answers: tuple[str, ...]
    """The different answers, without those that differ only in formatting."""

    def select(self, index: Any) -> RunSamples:
        """Return the runs that `index` selects from the arrays."""
        return replace(self, credit_qms=self.credit_qms[index], answers_qms=self.answers_qms[index])

    def answer_at(self, index: tuple[int, int, int]) -> str | None:
        """Return the answer of that question, worker and sample; None if there is none."""
        code = int(self.answers_qms[index])
        return self.answers[code] if code >= 0 else None


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class History:
    """Questions, workers, and each worker's credit and cost on each question."""

    questions: tuple[str, ...]
    workers: tuple[WorkerId, ...]
    scores_qm: NDArray[np.float32]
    """Mean credit over the recorded runs, in [0, 1]; NaN if unknown."""
    usd_qm: NDArray[np.float64]
    """Mean dollars of a call; NaN if unknown."""
    runs_qm: NDArray[np.int32]
    """Number of graded runs, whose credit is in the mean."""
    families: tuple[str, ...]
    """The task family of each question; an empty string if unknown."""
    answers: tuple[tuple[str | None, ...], ...] | None = None
    """The extracted answer of the first run, by question and worker; None if there are no
    answers."""
    samples: RunSamples | None = None
    """The single runs with a recorded answer; None if there are none."""

    def __post_init__(self) -> None:
        shape = (len(self.questions), len(self.workers))
        arrays = (self.scores_qm, self.usd_qm, self.runs_qm)
        if any(array.shape != shape for array in arrays) or len(self.families) != shape[0]:
            raise ValueError(f"arrays do not fit {shape[0]} questions and {shape[1]} workers")
        if len(set(self.workers)) != len(self.workers):
            raise ValueError("two workers of a history have the same id")

    def __repr__(self) -> str:
        return f"History({len(self.questions)} questions, {len(self.workers)} workers)"

    def select(
        self, questions: QuestionIndices | None = None, workers: Iterable[str] | None = None
    ) -> History:
        """Return the history of these questions and workers, in this order; None keeps all.

        Raises:
            SourceError: the history does not have one of the workers.
        """
        rows = np.arange(len(self.questions)) if questions is None else np.asarray(questions, int)
        names = self.workers if workers is None else tuple(WorkerId(name) for name in workers)
        for name in names:
            if name not in self.workers:
                raise SourceError(f"the history has no worker {name!r}, only {self.workers}")
        columns = [self.workers.index(name) for name in names]
        index = np.ix_(rows, np.asarray(columns, int))
        answers, samples = self.answers, self.samples
        return replace(
            self,
            questions=tuple(self.questions[row] for row in rows),
            workers=names,
            scores_qm=self.scores_qm[index],
            usd_qm=self.usd_qm[index],
            runs_qm=self.runs_qm[index],
            families=tuple(self.families[row] for row in rows),
            answers=answers
            and tuple(tuple(answers[row][column] for column in columns) for row in rows),
            samples=samples and samples.select(index),
        )

    def drop_unscored(self) -> History:
        """Return the history of the questions with at least one known score."""
        known = ~np.isnan(self.scores_qm).all(axis=1)
        return self if known.all() else self.select(np.flatnonzero(known))

    def mean_m(self) -> NDArray[np.float64]:
        """Return each worker's mean known credit, (m,); NaN if none is known."""
        return _known_mean(self.scores_qm.astype(np.float64), axis=0)

    def best_worker(self) -> WorkerId:
        """Return the worker with the highest mean credit; of equals the cheapest, then the first.

        Raises:
            SourceError: no score is known.
        """
        mean_m = self.mean_m()
        if np.isnan(mean_m).all():
            raise SourceError("the history has no score: give at least one run a score")
        priced_qm = ~np.isnan(self.usd_qm)
        many_m, sum_m = priced_qm.sum(axis=0), np.nansum(self.usd_qm, axis=0)
        usd_m = np.where(many_m > 0, sum_m / np.maximum(many_m, 1), np.inf)
        equal = np.flatnonzero(mean_m == np.nanmax(mean_m))
        return self.workers[int(min(equal, key=lambda m: float(usd_m[m])))]


def history_from_record(
    record: RecordedOutcomes, questions: QuestionIndices | None = None
) -> History:
    """Return the history of a recorded set on those questions; None keeps all."""
    chosen = record if questions is None else record.select(questions)
    shape = chosen.scores_qms.shape[:2]
    usd_qms = chosen.usage.usd_qms if chosen.usage else np.full((*shape, 1), np.nan)
    samples = chosen.answers_qms is not None and join_samples(
        chosen.credit_qms, chosen.answers_qms, chosen.answers
    )
    return History(
        questions=tuple(task.question for task in chosen.tasks),
        workers=tuple(WorkerId(model) for model in chosen.models),
        scores_qm=_known_mean(chosen.credit_qms, axis=2).astype(np.float32),
        usd_qm=_known_mean(usd_qms.astype(np.float64), axis=2),
        runs_qm=(~np.isnan(chosen.scores_qms)).sum(axis=2).astype(np.int32),
        families=chosen.families,
        answers=_first_answers(samples) if samples else None,
        samples=samples or None,
    )


def join_samples(
    credit_qms: NDArray[np.float32], answers_qms: NDArray[np.int32], answers: tuple[str, ...]
) -> RunSamples:
    """Return the runs; answers that differ only in formatting get the same code.

    `answers_qms` has indices into `answers`, or -1 for no answer.
    """
    forms, codes = _canonical_codes(answers)
    return RunSamples(credit_qms, codes[answers_qms], forms)


@lru_cache(maxsize=8)
def _canonical_codes(answers: tuple[str, ...]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the canonical answers, and the code of each answer, followed by -1 for no answer."""
    numbers: dict[str, int] = {}
    canonical = (canonical_answer(answer) for answer in answers)
    codes = [numbers.setdefault(form, len(numbers)) if form else -1 for form in canonical]
    return tuple(numbers), np.array([*codes, -1], np.int32)


def write_history(history: History, path: Path) -> None:
    """Write the file that `read_history` reads.

    A worker without a graded run on a question is left out of that question's line.

    Raises:
        StoreError: the file cannot be written.
    """
    lines = (orjson.dumps(_line_json(history, q)) for q in range(len(history.questions)))
    with report_unwritable(path):
        path.write_bytes(b"".join(line + b"\n" for line in lines))


def read_history(path: Path) -> History:
    """Read the outcomes in a file; workers are in the order of their first appearance.

    Raises:
        SourceError: as for `read_outcome_lines`.
    """
    return _build_history(read_outcome_lines(path))


def _build_history(lines: Sequence[OutcomeLine]) -> History:
    workers = tuple(dict.fromkeys(WorkerId(name) for line in lines for name in line.workers))
    outcomes = [outcome for line in lines for outcome in line.workers.values()]
    texts = sorted({answer for o in outcomes for answer in o.answers if answer is not None})
    codes: dict[str | None, int] = {text: code for code, text in enumerate(texts)}
    depth = max(len(outcome.answers) for outcome in outcomes)
    shape = (len(lines), len(workers))
    scores_qm, usd_qm = np.full(shape, np.nan, np.float32), np.full(shape, np.nan)
    runs_qm = np.zeros(shape, np.int32)
    credit_qms = np.full((*shape, depth), np.nan, np.float32)
    answers_qms = np.full((*shape, depth), -1, np.int32)
    for q, line in enumerate(lines):
        for name, outcome in line.workers.items():
            m, recorded = workers.index(WorkerId(name)), outcome.answers
            scores_qm[q, m] = _known_mean(np.asarray(outcome.scores), axis=0)
            usd_qm[q, m] = _known_mean(np.asarray(outcome.usd or [np.nan]), axis=0)
            runs_qm[q, m] = outcome.graded_runs
            credit_qms[q, m, : len(recorded)] = outcome.scores[: len(recorded)]
            answers_qms[q, m, : len(recorded)] = [codes.get(answer, -1) for answer in recorded]
    samples = join_samples(credit_qms, answers_qms, tuple(texts)) if depth else None
    return History(
        questions=tuple(line.question for line in lines),
        workers=workers,
        scores_qm=scores_qm,
        usd_qm=usd_qm,
        runs_qm=runs_qm,
        families=tuple(line.family for line in lines),
        answers=samples and _first_answers(samples),
        samples=samples,
    )


def _line_json(history: History, q: int) -> dict[str, Any]:
    known = (m for m, runs in enumerate(history.runs_qm[q]) if runs)
    workers = {history.workers[m]: _outcome_json(history, q, m) for m in known}
    return {"question": history.questions[q], "family": history.families[q], "workers": workers}


def _outcome_json(history: History, q: int, m: int) -> dict[str, Any]:
    usd, samples = float(history.usd_qm[q, m]), history.samples
    cost = {} if np.isnan(usd) else {"usd": usd}
    if samples is None or np.isnan(samples.credit_qms[q, m]).all():
        score, runs = float(history.scores_qm[q, m]), int(history.runs_qm[q, m])
        return {"score": score, "runs": runs, **cost}
    credit_s = samples.credit_qms[q, m].tolist()
    ran = [s for s, credit in enumerate(credit_s) if not np.isnan(credit)]
    answers = [samples.answer_at((q, m, s)) for s in ran]
    return {"answers": answers, "scores": [credit_s[s] for s in ran], **cost}


def _first_answers(samples: RunSamples) -> tuple[tuple[str | None, ...], ...]:
    stated: tuple[str | None, ...] = (*samples.answers, None)  # -1 is the last index
    codes: list[list[int]] = samples.answers_qms[:, :, 0].tolist()
    return tuple(tuple(stated[code] for code in row) for row in codes)


def _known_mean(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return the mean of the known values; NaN if there are none."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0).sum(axis=axis, dtype=np.float64)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
