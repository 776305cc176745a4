"""Smoothie: without labels, takes the answer of the worker nearest to all other workers.

The method is that of Guha et al., "Smoothie: Label Free Language Model Routing" (arXiv 2412.04692),
section 4. Answers are embedded, and D_ij is the mean squared distance between the answers of
workers i and j. The estimate delta_i is the mean over pairs j, k of (D_ij + D_ik - D_jk) / 2, and
theta_i = d / (2 delta_i) is the weight of worker i in d dimensions. The answer of the worker with
the greatest theta is taken. The global form takes D over all questions, the local form over the 20
nearest questions; both call every worker on every question. No score is read.

Extracted answers are compared in two ways: "answers" tells only equal from different answers (one
dimension for each answer, squared distance 0 or 2); "embeddings" compares their vectors.

Deviations
- D comes from the answers in a history and to the new question, which counts as one of the 20; the
  paper has all questions before it estimates. Without answers in the history there is only the new
  question, and the form "answers" becomes a vote.
- The embedded text is a reply's extracted answer, not the whole reply, and the embedding is
  `HashedNgrams`, not SentenceBERT.
- The worker with the least delta is chosen, which has the greatest theta unless a delta is below 0.
  Ties go to the first worker of the history.

A central answer need not be correct: if one worker is far stronger than the others, the others'
common mistakes are central.

Axes: q questions, m workers, d dimensions of the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from batuta.conductors import best_single_worker
from batuta.conductors.features import Features
from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.core import Question, Reply, Run, WorkerId
from batuta.engine.solver import SolverContext, round_replies, run_conductor, with_final_reply
from batuta.errors import ConfigError
from batuta.lab.baselines.answers import AnswerExtractor, find_final_answer, normalize_answer
from batuta.lab.baselines.parallel_answers import ask_workers_in_parallel
from batuta.lab.baselines.routing.arrays import Floats, Masks
from batuta.lab.baselines.routing.router import fit_embedding
from batuta.lab.learners.history import History

AnswerForm = Literal["answers", "embeddings"]
NEIGHBOURS = 20
"""The number of questions in the mean D of the local form, the new question included."""
MIN_WORKERS = 3
"""Minimum number of workers, because delta needs a triangle of distances."""
_DIFFERENT_DISTANCE = 2.0
"""The squared distance of two different answers."""

DistanceFunction = Callable[[Sequence[str | None]], Floats]
"""Returns the squared distances between the workers' answers to a question: (m, m)."""


def extract_final_answer(_: Question, reply: Reply) -> str | None:
    """Return the answer that the reply marks, else its last line; None for an empty reply."""
    return find_final_answer(reply.text)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Smoothie:
    """Asks every worker, and takes the reply of the worker with the least delta."""

    name: str
    workers: tuple[WorkerId, ...]
    distances: DistanceFunction
    neighbour_sums: Callable[[str], tuple[Floats, Floats]]
    """Returns, for a question's text, the sums of squared distances over its neighbours, and the
    numbers of neighbours in each sum: (m, m) each."""
    extract: AnswerExtractor = extract_final_answer

    @property
    def calls(self) -> int:
        """The number of workers, each of which is called once."""
        return len(self.workers)

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Ask the pool's workers that are in `workers`; the answer is the most central reply.

        If there are none, the pool's best worker answers.
        """
        who = [worker.id for worker in context.pool.ranked() if worker.id in self.workers]
        if not who:
            return await run_conductor(
                question, best_single_worker(), context=context, seed=seed, max_steps=1
            )
        run = await ask_workers_in_parallel(
            self.name, question, context=context.restrict_to(*who), seed=seed, workers=who
        )
        replies = {
            self.workers.index(who[index]): reply for index, reply in round_replies(run).items()
        }
        if not replies:
            return run
        answers_m = [
            self.extract(question, replies[m]) if m in replies else None for m in range(self.calls)
        ]
        present_m = np.isin(np.arange(self.calls), list(replies))
        delta_m = self.estimate_question_deltas(question.text, answers_m, present_m)
        return with_final_reply(run, replies[min(sorted(replies), key=lambda m: delta_m[m])])

    def estimate_question_deltas(
        self, text: str, answers_m: Sequence[str | None], present_m: Masks
    ) -> Floats:
        """Return each worker's delta for the question `text`, (m,).

        `answers_m` has None where a worker gave no answer; `present_m` is the mask of workers that
        replied.
        """
        sums_mm, counts_mm = self.neighbour_sums(text)
        both_mm = present_m[:, None] & present_m
        own_mm = np.where(both_mm, self.distances(answers_m), 0)
        counts_mm = counts_mm + both_mm
        known_mm = counts_mm > 0
        return estimate_deltas(
            np.where(known_mm, (sums_mm + own_mm) / np.maximum(counts_mm, 1), _DIFFERENT_DISTANCE)
        )


def estimate_deltas(distances_mm: Floats) -> Floats:
    """Return delta_i, the mean over pairs j < k of (D_ij + D_ik - D_jk) / 2: (m,)."""
    m = len(distances_mm)
    mine_m = distances_mm.sum(axis=1)
    others_m = distances_mm.sum() / 2 - mine_m
    return mine_m / (m - 1) - others_m / ((m - 1) * (m - 2))


def fit_smoothie(
    history: History,
    *,
    seed: int = 0,  # noqa: ARG001 - every fit has one
    k: int | None = None,
    form: AnswerForm = "answers",
    features: Features | None = None,
) -> Smoothie:
    """Fit the method to questions and answers; the scores are not used.

    D is a mean over `k` questions, the new question included; None: over all. `form` is the way in
    which answers are compared. `features` find the nearest questions; None: `HashedNgrams`.

    Raises:
        ConfigError: there are fewer than three workers.
    """
    if len(history.workers) < MIN_WORKERS:
        raise ConfigError(
            f"Smoothie compares at least {MIN_WORKERS} workers, not {len(history.workers)}"
        )
    answers = history.answers or ()
    distances = _equality_distances if form == "answers" else _embedding_distances(answers)
    local = "" if k is None else f"-local@{k}"
    name = f"smoothie{local}/{form}"
    sums_nearby = _neighbour_sums(history, distances, k, features)
    return Smoothie(
        name=name, workers=history.workers, distances=distances, neighbour_sums=sums_nearby
    )


def _neighbour_sums(
    history: History, distances: DistanceFunction, k: int | None, features: Features | None
) -> Callable[[str], tuple[Floats, Floats]]:
    size = len(history.workers)
    if not history.answers:
        nothing_mm = np.zeros((size, size))
        return lambda _: (nothing_mm, nothing_mm)
    apart_qmm = np.stack([distances(answers_m) for answers_m in history.answers]).astype(np.float32)
    asked_qm = history.runs_qm > 0
    both_qmm = asked_qm[:, :, None] & asked_qm[:, None, :]
    apart_qmm *= both_qmm
    if k is None:
        sums = apart_qmm.sum(axis=0, dtype=np.float64), both_qmm.sum(axis=0)
        return lambda _: sums
    embed, known_qd = fit_embedding(history, features)

    def sums_nearby(text: str) -> tuple[Floats, Floats]:
        near = np.argsort(-(known_qd @ embed([text])[0]), kind="stable")[: k - 1]
        return apart_qmm[near].sum(axis=0), both_qmm[near].sum(axis=0)

    return sums_nearby


def _equality_distances(answers_m: Sequence[str | None]) -> Floats:
    """Return 0 for equal and 2 for different answers, (m, m); a missing answer equals no other."""
    codes: dict[str, int] = {}
    numbers = [
        -1 - m if answer is None else codes.setdefault(normalize_answer(answer), len(codes))
        for m, answer in enumerate(answers_m)
    ]
    codes_m = np.asarray(numbers)
    return np.where(codes_m[:, None] == codes_m, 0.0, _DIFFERENT_DISTANCE)


def _embedding_distances(answers: Sequence[Sequence[str | None]]) -> DistanceFunction:
    known = [answer for answers_m in answers for answer in answers_m if answer]
    embed = HashedNgrams(buckets=1024, dimensions=None).fit(known or [""])

    def distances(answers_m: Sequence[str | None]) -> Floats:
        points_md = embed([normalize_answer(answer or "") for answer in answers_m])
        cosines_mm = points_md @ points_md.T
        present_m = np.asarray([answer is not None for answer in answers_m])
        apart_mm = np.where(present_m[:, None] & present_m, 2 - 2 * cosines_mm, _DIFFERENT_DISTANCE)
        np.fill_diagonal(apart_mm, 0.0)
        return np.maximum(apart_mm, 0)

    return distances
