"""kNN: scores workers on the nearest questions, and leaves the best worker only on evidence.

The method is that of Li, "Rethinking Predictive Modeling for LLM Routing: When Simple kNN Beats
Complex Learned Routers" (arXiv 2505.12601): a worker's mean credit on the k training questions most
similar to a new question estimates its credit on that question. LLMRouterBench (arXiv 2601.07206)
finds such simple routers among the strongest.

Deviations
- A guard is added. Without a guard kNN takes the highest of m noisy means, and is worse than the
  best single worker if the text is uninformative. Here a worker is a candidate only if its paired
  advantage over the best single worker on the same k questions is more than `confidence` standard
  errors above 0. The candidate with the greatest advantage is chosen.
- The embedding is `HashedNgrams`, not a pretrained sentence encoder.

Axes: q questions, k nearest questions, m workers, d dimensions of the embedding.
"""

from __future__ import annotations

import numpy as np

from batuta.conductors.features import Features
from batuta.lab.baselines.routing.arrays import Floats
from batuta.lab.baselines.routing.router import Router, fit_embedding
from batuta.lab.learners.history import History

NEIGHBOURS = 50
CONFIDENCE = 1.645
"""The guard's bound, in standard errors, which a normal variable exceeds with probability 0.05."""


def fit_knn(
    history: History,
    *,
    seed: int = 0,  # noqa: ARG001 - every fit has one
    k: int = NEIGHBOURS,
    confidence: float = CONFIDENCE,
    features: Features | None = None,
) -> Router:
    """Fit the router with `k` neighbours; `confidence` is the guard's bound in standard errors.

    Raises:
        ConfigError: the history has no questions.
        SourceError: the history has no scores.
    """
    scores_qm = history.scores_qm.astype(np.float64)
    embed, known_qd = fit_embedding(history, features)
    best = history.workers.index(history.best_worker())
    mean_m = np.nan_to_num(history.mean_m())

    def score(text: str) -> Floats:
        similar_q = known_qd @ embed([text])[0]
        near = np.argsort(-similar_q, kind="stable")[:k]
        return lead_scores(scores_qm[near], best, confidence, mean_m)

    return Router(f"knn/{k}", history.workers, score)


def lead_scores(scores_km: Floats, best: int, confidence: float, mean_m: Floats) -> Floats:
    """Return each worker's reliable advantage over the best single worker, in credit: (m,).

    The best single worker has the score 0. A worker without a reliable advantage has a score below
    0; such workers are ordered by their overall means.

    Args:
        scores_km: the scores on the nearest questions; NaN if unknown.
        best: the index of the best single worker.
        confidence: the standard errors by which an advantage must exceed 0.
        mean_m: each worker's mean credit on all questions, in [0, 1].
    """
    ahead_km = scores_km - scores_km[:, [best]]
    known_km = ~np.isnan(ahead_km)
    count_m = np.maximum(known_km.sum(axis=0), 1)
    lead_m = np.where(known_km, ahead_km, 0).sum(axis=0) / count_m
    square_km = np.where(known_km, (ahead_km - lead_m) ** 2, 0)
    # The term 1 / count is for questions without variance, which prove little if they are few.
    error_m = np.sqrt((square_km.sum(axis=0) / count_m + 1 / count_m) / count_m)
    scores_m: Floats = np.where(lead_m > confidence * error_m, lead_m, mean_m - 2)
    scores_m[best] = 0
    return scores_m
