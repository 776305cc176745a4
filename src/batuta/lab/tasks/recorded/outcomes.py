"""Recorded answers of real models, as arrays over questions, models and samples.

This module also computes the reference scores: best single model, plurality vote, oracle. The
credit of an answer, in [0, 1], is its score, or 1 or 0 by a threshold on the score. The letters at
the end of an array's name are its axes: q questions, m models, s samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.core import Grade, Pool, Task, TaskId, Worker, WorkerId
from batuta.core.suggestions import suggest_names
from batuta.errors import SourceError

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.signedinteger[Any]]

SampleIndex = tuple[int, int, int]
"""The indices of question, model and sample."""
ReplyRow = tuple[str, str, int, str]
"""A task's id, a model, a sample, and the text of the reply."""

GRADER = "recorded"
"""The `grader` of recorded tasks: `RecordedOutcomes.grade` looks up the recorded credit."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReplyTexts:
    """Replies in one block of UTF-8 bytes."""

    blob: bytes
    starts_qms: Integers
    ends_qms: Integers
    """The end of each reply in `blob`; equal to the start if there is no reply."""

    def at(self, index: SampleIndex) -> str | None:
        """Return the reply at question, model and sample; None if there is none."""
        start, end = int(self.starts_qms[index]), int(self.ends_qms[index])
        return self.blob[start:end].decode() if end > start else None

    def select(self, index: Any) -> ReplyTexts:
        """Return the replies that `index` selects from the arrays."""
        return ReplyTexts(self.blob, self.starts_qms[index], self.ends_qms[index])


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class RecordedUsage:
    """Tokens, dollars and seconds of the recorded calls, as far as they are known."""

    input_qms: Integers
    """Prompt tokens; -1 if unknown."""
    output_qms: Integers
    """Completion tokens; -1 if unknown."""
    usd_qms: Floats
    """Dollars; NaN if unknown."""
    seconds_qms: Floats
    """Seconds; NaN if unknown."""

    def select(self, index: Any) -> RecordedUsage:
        """Return the usage of the calls that `index` selects from the arrays."""
        return RecordedUsage(
            input_qms=self.input_qms[index],
            output_qms=self.output_qms[index],
            usd_qms=self.usd_qms[index],
            seconds_qms=self.seconds_qms[index],
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class RecordedOutcomes:
    """Questions, models, and the score of each answer.

    Raises:
        ValueError: the scores or families do not fit the questions and models.
    """

    name: str
    tasks: tuple[Task, ...]
    families: tuple[str, ...]
    """The task family of each question."""
    models: tuple[str, ...]
    scores_qms: NDArray[np.float32]
    """Scores in [0, 1]; NaN if no answer was recorded or graded."""
    solved_from: float | None = None
    """The score from which the credit is 1, and below which 0; None if the score is the credit."""
    answers_qms: NDArray[np.int32] | None = None
    """Extracted answers as indices into `answers`, -1 for none; None if there are no answers."""
    answers: tuple[str, ...] = ()
    texts: ReplyTexts | None = None
    """The replies; None if they were not recorded or not loaded."""
    usage: RecordedUsage | None = None
    """None if nothing is known."""
    version: str = ""
    """A digest of the outcomes file; empty for a published set, which does not change."""
    incomplete: int = 0
    """Number of questions that were left out because not every model answered them."""
    is_drawn_by_id: bool = False
    """Whether splits depend on the ids instead of the texts, because texts may be missing."""
    positions: Mapping[str, tuple[int, ...]] = field(init=False)
    """Indices of the questions by stripped text; several if the record repeats a question."""

    def __post_init__(self) -> None:
        shape = (len(self.tasks), len(self.models))
        if self.scores_qms.shape[:2] != shape or len(self.families) != shape[0]:
            raise ValueError(
                f"scores of shape {self.scores_qms.shape} and {len(self.families)} families do not "
                f"fit {shape[0]} questions and {shape[1]} models"
            )
        positions: dict[str, tuple[int, ...]] = {}
        for q, task in enumerate(self.tasks):
            text = task.question.strip()
            positions[text] = (*positions.get(text, ()), q)
        object.__setattr__(self, "positions", positions)

    def __repr__(self) -> str:
        q, m, s = self.scores_qms.shape
        return f"Recorded({self.name!r}, {q} questions, {m} models, {s} samples)"

    @property
    def unread(self) -> tuple[str, ...]:
        """The benchmarks of the questions with missing texts."""
        ids = (str(task.id) for task in self.tasks if task.question == task.id)
        return tuple(dict.fromkeys(id_.partition("/")[0] for id_ in ids))

    @property
    def credit_qms(self) -> NDArray[np.float32]:
        """The credit of each answer, in [0, 1]; NaN without a score."""
        if self.solved_from is None:
            return self.scores_qms
        solved = (self.scores_qms >= self.solved_from).astype(np.float32)
        return np.where(np.isnan(self.scores_qms), np.float32(np.nan), solved)

    def credit_qm(self, sample: int | None = 0) -> NDArray[np.float32]:
        """Return the credit of one sample of each model; with None, the mean over samples.

        A missing score has credit 0. The mean is over the known scores, and 0 if there are none.
        """
        if sample is not None:
            return np.nan_to_num(self.credit_qms[:, :, sample])
        known = ~np.isnan(self.scores_qms)
        total = np.nan_to_num(self.credit_qms).sum(axis=2)
        return (total / np.maximum(known.sum(axis=2), 1)).astype(np.float32)

    def select(
        self, questions: Integers | Sequence[int] | None = None, models: Iterable[str] | None = None
    ) -> RecordedOutcomes:
        """Return the record of these questions and models, in this order; None keeps all.

        Raises:
            SourceError: a model is not in the record.
        """
        rows = np.arange(len(self.tasks)) if questions is None else np.asarray(questions, int)
        names = self.models if models is None else tuple(models)
        for name in names:
            if name not in self.models:
                known = suggest_names(name, self.models)
                raise SourceError(f"{self.name} has no model {name!r}; {known}")
        columns = [self.models.index(name) for name in names]
        index = np.ix_(rows, np.asarray(columns, int))
        return replace(
            self,
            tasks=tuple(self.tasks[row] for row in rows),
            families=tuple(self.families[row] for row in rows),
            models=names,
            scores_qms=self.scores_qms[index],
            answers_qms=None if self.answers_qms is None else self.answers_qms[index],
            texts=self.texts and self.texts.select(index),
            usage=self.usage and self.usage.select(index),
        )

    def answered_share(self) -> float:
        """Return the share of the samples with credit that have a known answer, in [0, 1].

        The share is 0 if the record has no answers, else 1 if no sample has credit. Samples without
        credit do not count, since they may have given no answer.
        """
        if self.answers_qms is None:
            return 0.0
        with_credit = np.nan_to_num(self.credit_qms) > 0
        known = self.answers_qms[with_credit] >= 0
        return float(known.mean()) if with_credit.any() else 1.0

    def drop_incomplete(self) -> RecordedOutcomes:
        """Return the record of the questions of which every model has a score for sample 0."""
        missing = np.isnan(self.scores_qms[:, :, 0]).sum(axis=1)
        return self.select(np.flatnonzero(missing == 0))

    def with_texts(self, replies: Iterable[ReplyRow]) -> RecordedOutcomes:
        """Return the record with the texts of the replies to its questions by its models."""
        q_of = {task.id: q for q, task in enumerate(self.tasks)}
        m_of = {model: m for m, model in enumerate(self.models)}
        depth = self.scores_qms.shape[2]
        starts, ends = (np.zeros(self.scores_qms.shape, np.int64) for _ in range(2))
        blob = bytearray()
        for id_, model, sample, text in replies:
            q, m = q_of.get(TaskId(id_)), m_of.get(model)
            if q is None or m is None or sample >= depth or ends[q, m, sample]:
                continue
            starts[q, m, sample] = len(blob)
            blob += text.encode()
            ends[q, m, sample] = len(blob)
        return replace(self, texts=ReplyTexts(bytes(blob), starts, ends))

    def pool(self, calibration: Integers | Sequence[int] | None = None) -> Pool:
        """Return the models as workers of unknown price.

        Their strengths are the mean credits on the questions at the indices in `calibration`; None
        leaves the strengths unknown.
        """
        rows = None if calibration is None else np.asarray(calibration, int)
        measured = None if rows is None else self.credit_qm(None)[rows].mean(axis=0)
        return Pool(
            tuple(
                Worker(
                    id=WorkerId(model),
                    model=model,
                    tags=("recorded",),
                    strength=None if measured is None else float(measured[m]),
                )
                for m, model in enumerate(self.models)
            )
        )

    def recorded_samples(self, q: int, m: int) -> list[int]:
        """Return the indices of the samples of a question and model that have a score."""
        scores: list[float] = self.scores_qms[q, m].tolist()
        return [s for s, score in enumerate(scores) if not math.isnan(score)]

    def answer(self, index: SampleIndex) -> str | None:
        """Return the extracted answer at question, model and sample; None if there is none."""
        if self.answers_qms is None:
            return None
        code = int(self.answers_qms[index])
        return self.answers[code] if code >= 0 else None

    def reply(self, index: SampleIndex) -> str:
        """Return the reply at question, model and sample, or a substitute if its text is missing.

        Equal replies may have different credits, as after a conversation with tools. A prefix then
        makes the replies differ, so that `grade` finds the credit of each.
        """
        text = self.plain_reply(index)
        credit = self.credit_at(index)
        first = _first_credits(self, index[0]).get(hash(text.strip()), credit)
        if first == credit or math.isnan(credit):
            return text
        return f"[{self._sample_name(index)}]\n{text}"

    def plain_reply(self, index: SampleIndex) -> str:
        """Return the reply without a prefix: its text, else its answer, else a description."""
        text = self.texts.at(index) if self.texts else None
        if text and text.strip():
            return text
        if answer := self.answer(index):
            return f"Answer: {answer}"
        return f"[the text of this answer was not recorded: {self._sample_name(index)}]"

    def _sample_name(self, index: SampleIndex) -> str:
        q, m, s = index
        return f"{self.name}, {self.tasks[q].id}, {self.models[m]}, sample {s}"

    def grade(self, task: Task, answer: str) -> Grade:
        """Return the recorded grade of a reply of this record; other texts are undecided."""
        stated = answer.strip()
        for q in self.positions.get(task.question.strip(), ()):
            index = _reply_positions(self, q).get(hash(stated))
            if index is not None and self.reply(index).strip() == stated:
                return Grade(self.credit_at(index), self.answer(index))
        return Grade(None, None, "this text is not a recorded answer to this question")

    def credit_at(self, index: SampleIndex) -> float:
        """Return the credit of the answer at question, model and sample.

        Without a score it is NaN, or 0 if the record has a threshold.
        """
        score = float(self.scores_qms[index])
        return score if self.solved_from is None else float(score >= self.solved_from)


@lru_cache(maxsize=2**14)
def _reply_positions(record: RecordedOutcomes, q: int) -> dict[int, SampleIndex]:
    """Return the index of each distinct reply to the question, by hash; the first of equal ones."""
    found: dict[int, SampleIndex] = {}
    for m in range(len(record.models)):
        for s in record.recorded_samples(q, m):
            found.setdefault(hash(record.reply((q, m, s)).strip()), (q, m, s))
    return found


@lru_cache(maxsize=2**14)
def _first_credits(record: RecordedOutcomes, q: int) -> dict[int, float]:
    """Return the credit of the first of equal replies to the question, by their hash."""
    found: dict[int, float] = {}
    for m in range(len(record.models)):
        for s in record.recorded_samples(q, m):
            digest = hash(record.plain_reply((q, m, s)).strip())
            found.setdefault(digest, record.credit_at((q, m, s)))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScores:
    """The number of questions and models, and mean credits in [0, 1]."""

    questions: int
    models: int
    best_model: str
    best: float
    """The mean credit of `best_model`."""
    vote: float | None
    """The plurality vote; None if the record has no answers to count."""
    oracle: float
    """The mean of each question's highest credit of any model."""


def reference_scores(record: RecordedOutcomes, sample: int | None = 0) -> ReferenceScores:
    """Compute the scores of one sample per model; with None, of the mean over samples.

    The vote always counts one sample, with None the first.
    """
    credit_qm = record.credit_qm(sample)
    by_model = credit_qm.mean(axis=0)
    best = int(by_model.argmax())
    vote = (
        None if record.answers_qms is None else float(plurality_credit(record, sample or 0).mean())
    )
    return ReferenceScores(
        questions=len(record.tasks),
        models=len(record.models),
        best_model=record.models[best],
        best=float(by_model[best]),
        vote=vote,
        oracle=float(credit_qm.max(axis=1).mean()),
    )


def rank_models(record: RecordedOutcomes) -> tuple[int, ...]:
    """Return the indices of the models by decreasing mean credit."""
    by_model = record.credit_qm(None).mean(axis=0)
    return tuple(int(m) for m in np.argsort(-by_model, kind="stable"))


def plurality_credit(record: RecordedOutcomes, sample: int = 0) -> NDArray[np.float32]:
    """Return the credit of the answer that most models give to each question.

    Answers are compared as they were recorded. Ties go to the answer of the model with the highest
    mean credit in this record; a question without answers has credit 0.

    Raises:
        ValueError: the record has no answers.
    """
    order = list(rank_models(record))
    if record.answers_qms is None:
        raise ValueError(f"{record.name} has no answers to vote with")
    answers_qm = record.answers_qms[:, order, sample]
    credit_qm = record.credit_qm(sample)[:, order]
    same_qmm = (answers_qm[:, :, None] == answers_qm[:, None, :]) & (answers_qm >= 0)[:, :, None]
    chosen = same_qmm.sum(axis=2).argmax(axis=1)
    credit_q = np.take_along_axis(credit_qm, chosen[:, None], axis=1)[:, 0]
    return np.where((answers_qm >= 0).any(axis=1), credit_q, np.float32(0))
