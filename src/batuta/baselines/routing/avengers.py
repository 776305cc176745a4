"""Avengers-Pro: clusters of questions, a ranking of the workers in each.

Zhang et al., "Beyond GPT-5: Making LLMs Cheaper and Better via Performance-Efficiency Optimized
Routing" (arXiv 2508.12631), section 2; with alpha = 1 it is the Avengers of arXiv 2505.19797. The
training questions are embedded and clustered by k-means (25); in each cluster the workers are
ranked by alpha * accuracy + (1 - alpha) * (1 - cost), both scaled to [0, 1] there. A new question
takes its 3 nearest clusters with the weights softmax(-9 * distance), and each worker the sum of
weight / (rank + 1), where the first has rank 0.

Deviations
- The embedding is `HashedNgrams`, not a pretrained encoder of 4,096 dimensions.
- alpha is 1 unless it is set: accuracy alone, which is what the other routers are fitted for.
- A worker that has no score in a cluster is ranked there by its accuracy on all questions.
- Dollars are a cost only if they are known of every worker in every cluster; alpha < 1 needs that.
"""

from __future__ import annotations

import numpy as np

from batuta.baselines.routing.arrays import Floats, Indices
from batuta.baselines.routing.router import Router, compute_utilities, fit_embedding
from batuta.errors import ConfigError
from batuta.solvers.clustering import k_means_centres, nearest_centre
from batuta.solvers.features import Features
from batuta.solvers.history import History
from batuta.solvers.selector.rivals import CLUSTERS, ClusterRanking, cluster_means, rank_merits


def fit_avengers(
    history: History,
    *,
    seed: int = 0,
    alpha: float = 1.0,
    clusters: int = CLUSTERS,
    features: Features | None = None,
) -> Router:
    """The router.

    Args:
        history: what to learn from.
        seed: of the first centres.
        alpha: the weight of accuracy against cost, in [0, 1].
        clusters: at most.
        features: of the questions, not fitted yet.

    Raises:
        ConfigError: the history has no questions, alpha is not in [0, 1], or costs are wanted
            that the history does not know.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha is the weight of accuracy, in [0, 1], not {alpha}")
    scores_qm = compute_utilities(history)
    embed, points_qd = fit_embedding(history, features)
    centres_cd = k_means_centres(points_qd, clusters, np.random.default_rng(seed))
    labels_q = nearest_centre(points_qd, centres_cd)
    merit_cm = _scale_per_cluster(cluster_means(scores_qm, labels_q, len(centres_cd)))
    if alpha < 1:
        costs_cm = _cluster_costs(history, labels_q, len(centres_cd))
        merit_cm = alpha * merit_cm + (1 - alpha) * (1 - _scale_per_cluster(costs_cm))
    ranking = ClusterRanking(centres_cd, rank_merits(merit_cm))

    def score(text: str) -> Floats:
        return ranking(embed([text]))[0]

    return Router(f"avengers-pro/{alpha:g}", history.workers, score)


def _cluster_costs(history: History, labels_q: Indices, clusters: int) -> Floats:
    inside_cq = (labels_q == np.arange(clusters)[:, None]).astype(np.float64)
    if not (inside_cq @ ~np.isnan(history.usd_qm) > 0).all():
        raise ConfigError("the history does not know what every worker costs: leave alpha at 1")
    return cluster_means(history.usd_qm, labels_q, clusters)


def _scale_per_cluster(values_cm: Floats) -> Floats:
    """From 0 for the least of each cluster to 1 for the greatest; all 0 if they are equal."""
    least_c1 = values_cm.min(axis=1, keepdims=True)
    range_c1 = values_cm.max(axis=1, keepdims=True) - least_c1
    return (values_cm - least_c1) / np.where(range_c1 > 0, range_c1, 1)
