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

from batuta.baselines.routing.arrays import Floats
from batuta.baselines.routing.router import Router, compute_utilities, fit_embedding
from batuta.solvers.features import Features
from batuta.solvers.history import History
from batuta.solvers.selector.rivals import CONFIDENCE, NEIGHBOURS, lead_scores


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
    scores_qm = compute_utilities(history)
    embed, known_qd = fit_embedding(history, features)
    best = history.workers.index(history.best_worker())
    mean_m = np.nan_to_num(history.mean_m())

    def score(text: str) -> Floats:
        similar_q = known_qd @ embed([text])[0]
        near = np.argsort(-similar_q, kind="stable")[:k]
        return lead_scores(scores_qm[near], best, confidence, mean_m)

    return Router(f"knn/{k}", history.workers, score)
