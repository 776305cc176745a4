"""Reference scores of a record: best single model, plurality vote, oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batuta.lab.tasks.recorded.outcomes import RecordedOutcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScores:
    """Shares of right answers, in [0, 1]."""

    questions: int
    models: int
    best_model: str
    best: float
    vote: float | None
    """None if the record has no answers to count."""
    oracle: float


def reference_scores(record: RecordedOutcomes, sample: int | None = 0) -> ReferenceScores:
    """Compute the scores of one sample per model, or of the mean over samples."""
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
    """Return the indices of the models, the one with the most credit first."""
    by_model = record.credit_qm(None).mean(axis=0)
    return tuple(int(place) for place in np.argsort(-by_model, kind="stable"))


def plurality_credit(record: RecordedOutcomes, sample: int = 0) -> NDArray[np.float32]:
    """Return the credit of the answer that most models give to each question.

    Answers are compared as they were recorded. Ties go to the answer of the model with the most
    credit in this record.
    """
    order = list(rank_models(record))
    if record.answers_qms is None:
        raise ValueError(f"{record.name} has no answers to vote with")
    answers_qm = record.answers_qms[:, order, sample]
    credit_qm = record.credit_qm(sample)[:, order]
    same_qmm = (answers_qm[:, :, None] == answers_qm[:, None, :]) & (answers_qm >= 0)[:, :, None]
    chosen = same_qmm.sum(axis=2).argmax(axis=1)
    right = np.take_along_axis(credit_qm, chosen[:, None], axis=1)[:, 0]
    return np.where((answers_qm >= 0).any(axis=1), right, np.float32(0))
