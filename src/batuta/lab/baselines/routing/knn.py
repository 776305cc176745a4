"""k nearest questions, with a guard: another worker than the best only for good reason.

Li, "Rethinking Predictive Modeling for LLM Routing: When Simple kNN Beats Complex Learned Routers"
(arXiv 2505.12601): a worker's credit on the k training questions that are most similar to the new
one estimates its credit on it. LLMRouterBench (arXiv 2601.07206) finds such simple routers among
the strongest.

Deviations
- The guard is ours. Without it kNN takes the highest of m noisy means, and is below the best single
  worker where the text tells little. Here a worker is chosen only if its paired advantage over the
  best single worker, on the same k questions, is `confidence` standard errors above 0; among those
  that are, the one with the greatest advantage.
- The embedding is `HashedNgrams`, not a pretrained sentence encoder.
"""

from __future__ import annotations

import numpy as np

from batuta.conductors.features import Features
from batuta.lab.baselines.routing.arrays import Floats
from batuta.lab.baselines.routing.router import Router, fit_embedding
from batuta.lab.learners.history import History

NEIGHBOURS = 50
CONFIDENCE = 1.645
"""Standard errors: 5 % of a normal distribution are above."""


def fit_knn(
    history: History,
    *,
    seed: int = 0,  # noqa: ARG001 - every fit has one
    k: int = NEIGHBOURS,
    confidence: float = CONFIDENCE,
    features: Features | None = None,
) -> Router:
    """The router; nothing in it is left to chance.

    Args:
        history: what to learn from.
        seed: not used.
        k: neighbours.
        confidence: of the guard, in standard errors.
        features: of the questions, not fitted yet.

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
    """The advantage over the best single worker of whoever surely has one; 0 for the best.

    Whoever has none is below 0, in the order of the overall means: (…, m).

    Args:
        scores_km: of the neighbours, (…, k, m); NaN: unknown.
        best: the best single worker's place.
        confidence: standard errors by which an advantage must be above 0.
        mean_m: each worker's credit on all questions, in [0, 1].
    """
    ahead_km = scores_km - scores_km[:, [best]]
    known_km = ~np.isnan(ahead_km)
    count_m = np.maximum(known_km.sum(axis=0), 1)
    lead_m = np.where(known_km, ahead_km, 0).sum(axis=0) / count_m
    square_km = np.where(known_km, (ahead_km - lead_m) ** 2, 0)
    # The second term is for neighbours that agree: three of them alone prove little.
    error_m = np.sqrt((square_km.sum(axis=0) / count_m + 1 / count_m) / count_m)
    scores_m: Floats = np.where(lead_m > confidence * error_m, lead_m, mean_m - 2)
    scores_m[best] = 0
    return scores_m
