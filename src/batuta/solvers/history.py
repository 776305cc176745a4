"""What is known of a pool's workers: how well each answered each of some questions.

Selectors, routers and cascades are fitted on it. It comes from a recorded set (`of_record`) or
from a file of one's own, a line a question:

    {"question": "…", "family": "…", "workers": {"oboe": {"score": 0.5, "usd": 0.002, "runs": 2}}}

`family` may be left out, and so may everything of a worker but its score. A worker's line may also
have its runs one by one: `"answers": ["7", "8"], "scores": [1, 0]`. What is left out is unknown,
which is not zero.

Axes: q questions, m workers, s samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from batuta.core import WorkerId
from batuta.errors import SourceError, StoreError
from batuta.tasks.recorded import Recorded

EXAMPLE = '{"question": "2+2?", "workers": {"oboe": {"score": 1}}}'
"""The shortest line of a file of outcomes."""

Places = NDArray[np.signedinteger[Any]] | Sequence[int]
"""Places of questions."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Samples:
    """Every run on its own."""

    credit_qms: NDArray[np.float32]
    """In [0, 1]; NaN: no such run, or its credit is unknown."""
    answers_qms: NDArray[np.int32]
    """Extracted answers, as places in `answers`; -1: none."""
    answers: tuple[str, ...]

    def select(self, index: Any) -> Samples:
        """The runs that `index` selects from the arrays."""
        return replace(self, credit_qms=self.credit_qms[index], answers_qms=self.answers_qms[index])

    def said(self, place: tuple[int, int, int]) -> str | None:
        """The answer at question, worker, sample; None: none."""
        code = int(self.answers_qms[place])
        return self.answers[code] if code >= 0 else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class History:
    """Questions, workers, and what each worker earned and cost on each question."""

    questions: tuple[str, ...]
    workers: tuple[WorkerId, ...]
    scores_qm: NDArray[np.float32]
    """Mean credit over the recorded runs, in [0, 1]; NaN: unknown."""
    usd_qm: NDArray[np.float64]
    """Mean dollars of a call; NaN: unknown."""
    runs_qm: NDArray[np.int32]
    """How many runs each mean is of."""
    families: tuple[str, ...]
    """The task family of each question; empty: unknown."""
    answers: tuple[tuple[str | None, ...], ...] | None = None
    """The extracted answer of the first run, by question and worker; None: there are none."""
    samples: Samples | None = None
    """The runs one by one; None: only their means are known."""

    def __post_init__(self) -> None:
        shape = (len(self.questions), len(self.workers))
        arrays = (self.scores_qm, self.usd_qm, self.runs_qm)
        if any(array.shape != shape for array in arrays) or len(self.families) != shape[0]:
            raise ValueError(f"arrays do not fit {shape[0]} questions of {shape[1]} workers")
        if len(set(self.workers)) != len(self.workers):
            raise ValueError("two workers of a history have the same id")

    def __repr__(self) -> str:
        return f"History({len(self.questions)} questions, {len(self.workers)} workers)"

    def select(
        self, questions: Places | None = None, workers: Iterable[str] | None = None
    ) -> History:
        """Only those questions and those workers, in the order given.

        Raises:
            SourceError: a worker that the history does not know.
        """
        rows = np.arange(len(self.questions)) if questions is None else np.asarray(questions, int)
        names = self.workers if workers is None else tuple(WorkerId(name) for name in workers)
        for name in names:
            if name not in self.workers:
                raise SourceError(f"the history knows no worker {name!r}, only {self.workers}")
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

    def scored(self) -> History:
        """Only the questions of which some score is known."""
        known = ~np.isnan(self.scores_qm).all(axis=1)
        return self if known.all() else self.select(np.flatnonzero(known))

    def mean_m(self) -> NDArray[np.float64]:
        """Each worker's mean credit where it is known; NaN for a worker of whom nothing is."""
        return _mean(self.scores_qm.astype(np.float64), axis=0)

    def best(self) -> WorkerId:
        """The worker with the highest mean credit; of equals, the first.

        Raises:
            SourceError: no score is known.
        """
        mean_m = self.mean_m()
        if np.isnan(mean_m).all():
            raise SourceError("the history has no score: write at least one run of one worker")
        return self.workers[int(np.nanargmax(mean_m))]


def of_record(record: Recorded, questions: Places | None = None) -> History:
    """The outcomes of a recorded set on those questions, by default on all."""
    chosen = record if questions is None else record.select(questions)
    shape = chosen.scores_qms.shape[:2]
    usd_qms = chosen.spent.usd_qms if chosen.spent else np.full((*shape, 1), np.nan)
    samples = chosen.answers_qms is not None and Samples(
        chosen.credit_qms, chosen.answers_qms, chosen.answers
    )
    return History(
        tuple(task.question for task in chosen.tasks),
        tuple(WorkerId(model) for model in chosen.models),
        _mean(chosen.credit_qms, axis=2).astype(np.float32),
        _mean(usd_qms.astype(np.float64), axis=2),
        (~np.isnan(chosen.scores_qms)).sum(axis=2).astype(np.int32),
        chosen.families,
        _first(samples) if samples else None,
        samples or None,
    )


def write_history(history: History, path: Path) -> None:
    """A file that `read_history` reads.

    Raises:
        StoreError: it cannot be written.
    """
    lines = (orjson.dumps(_line(history, q)) for q in range(len(history.questions)))
    try:
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None


def read_history(path: Path) -> History:
    """The outcomes in a file of the form above; workers in the order of their first appearance.

    Raises:
        SourceError: it cannot be read, has no question, or a line is not of that form.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    lines: list[_Line] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            try:
                lines.append(_Line.of(orjson.loads(line)))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise SourceError(f"{path}, line {number} is no outcome: {error}") from None
    if not lines:
        raise SourceError(f"{path} has no questions: write one a line, such as {EXAMPLE}")
    return _history(lines)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A worker's runs on a question."""

    scores: tuple[float, ...]
    """Of each run, or their mean alone."""
    runs: int
    usd: float
    answers: tuple[str | None, ...]
    """Of each run; none known: empty."""

    @staticmethod
    def of(data: Mapping[str, Any]) -> _Outcome:
        scores = tuple(_share(score) for score in data.get("scores", ()))
        answers = tuple(None if said is None else str(said) for said in data.get("answers", ()))
        if answers and len(answers) != len(scores):
            raise ValueError(f"{len(answers)} answers with {len(scores)} scores")
        if scores:
            runs = len(scores)
        else:
            scores, runs = (_share(data["score"]),), int(data.get("runs", 1))
        usd = data.get("usd")
        return _Outcome(scores, runs, float("nan") if usd is None else float(usd), answers)


@dataclass(frozen=True, slots=True)
class _Line:
    question: str
    family: str
    workers: dict[str, _Outcome]

    @staticmethod
    def of(data: Mapping[str, Any]) -> _Line:
        workers = cast("Mapping[str, Mapping[str, Any]]", data["workers"])
        return _Line(
            str(data["question"]),
            str(data.get("family") or ""),
            {name: _Outcome.of(outcome) for name, outcome in workers.items()},
        )


def _share(value: Any) -> float:
    score = float(value)
    if not 0 <= score <= 1:
        raise ValueError(f"a score of {value} is not in [0, 1]")
    return score


def _history(lines: Sequence[_Line]) -> History:
    workers = tuple(dict.fromkeys(WorkerId(name) for line in lines for name in line.workers))
    outcomes = [outcome for line in lines for outcome in line.workers.values()]
    texts = sorted({said for o in outcomes for said in o.answers if said is not None})
    codes: dict[str | None, int] = {text: code for code, text in enumerate(texts)}
    depth = max(len(outcome.answers) for outcome in outcomes)
    shape = (len(lines), len(workers))
    scores_qm, usd_qm = np.full(shape, np.nan, np.float32), np.full(shape, np.nan)
    runs_qm = np.zeros(shape, np.int32)
    credit_qms = np.full((*shape, depth), np.nan, np.float32)
    answers_qms = np.full((*shape, depth), -1, np.int32)
    for q, line in enumerate(lines):
        for name, outcome in line.workers.items():
            m, answered = workers.index(WorkerId(name)), len(outcome.answers)
            scores_qm[q, m] = np.mean(outcome.scores)
            usd_qm[q, m], runs_qm[q, m] = outcome.usd, outcome.runs
            credit_qms[q, m, :answered] = outcome.scores[:answered]
            answers_qms[q, m, :answered] = [codes.get(said, -1) for said in outcome.answers]
    samples = Samples(credit_qms, answers_qms, tuple(texts)) if depth else None
    families = tuple(line.family for line in lines)
    questions = tuple(line.question for line in lines)
    answers = samples and _first(samples)
    return History(questions, workers, scores_qm, usd_qm, runs_qm, families, answers, samples)


def _line(history: History, q: int) -> dict[str, Any]:
    known = (m for m, runs in enumerate(history.runs_qm[q]) if runs)
    workers = {history.workers[m]: _outcome(history, q, m) for m in known}
    return {"question": history.questions[q], "family": history.families[q], "workers": workers}


def _outcome(history: History, q: int, m: int) -> dict[str, Any]:
    usd, samples = float(history.usd_qm[q, m]), history.samples
    cost = {} if np.isnan(usd) else {"usd": usd}
    if samples is None:
        score, runs = float(history.scores_qm[q, m]), int(history.runs_qm[q, m])
        return {"score": score, "runs": runs, **cost}
    ran = np.flatnonzero(~np.isnan(samples.credit_qms[q, m]))
    answers = [samples.said((q, m, int(s))) for s in ran]
    return {"answers": answers, "scores": samples.credit_qms[q, m, ran].tolist(), **cost}


def _first(samples: Samples) -> tuple[tuple[str | None, ...], ...]:
    """The first run's answers."""
    said: tuple[str | None, ...] = (*samples.answers, None)  # -1 is the last place
    codes: list[list[int]] = samples.answers_qms[:, :, 0].tolist()
    return tuple(tuple(said[code] for code in row) for row in codes)


def _mean(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """The mean of what is known; NaN where nothing is."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0).sum(axis=axis, dtype=np.float64)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
