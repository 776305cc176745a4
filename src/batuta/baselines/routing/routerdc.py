"""RouterDC: a query's vector near the vectors of the models that answer it well.

Chen et al., "RouterDC: Query-Based Router by Dual Contrastive Learning for Assembling Large
Language Models" (arXiv 2409.19886), section 3. One trainable vector a model; a model's logit is its
cosine with the encoded question. The sample-model loss (3.2): for each of the 3 models with the
highest scores, -log softmax of its logit against those of the 3 lowest. The sample-sample loss
(3.3), with weight 1: one question of the same cluster in the batch against 3 of other clusters,
-log softmax of their cosines; 8 clusters by k-means. The model with the highest logit is called.

Deviations
- The encoder is a trained linear map of `HashedNgrams` to 768 dimensions, not mDeBERTaV3-base: this
  is the largest one, since the paper's encoder has read text and ours has not. Its learning rate is
  therefore 1e-3, not the 5e-5 of a pretrained network.
- A fifth of the questions is kept from training, and every 50 steps it is measured on them; the
  best of those weights are used, since these features are learned by heart before 1,000 steps.
- The clusters are of the features, which a truncated SVD has reduced, not of t-SNE's plane.
- As in the authors' training a negative with a score above 0.5 is left out, and so is a positive
  with a score of 0 or an unknown one. Of fewer than 6 workers, half are positives at most. Of
  equal scores the models that count are drawn at random, since ours are often just right or wrong.
- A batch that has no second question of a cluster, or none of another, drops that question there.
- With `rate`, scores are less `rate` times dollars, as in the paper's experiment on RouterBench.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from batuta.baselines.routing.arrays import Floats, Indices
from batuta.baselines.routing.autodiff import Adam, Variable, log_softmax, normalize_rows
from batuta.baselines.routing.router import Router, compute_utilities, fit_embedding
from batuta.solvers.clustering import k_means_centres, nearest_centre
from batuta.solvers.features import Features
from batuta.solvers.history import History

WIDTH = 768
INITIAL_SCALE = 0.78
"""Of the models' first vectors."""
CONTRASTED_WORKERS = 3
"""Models that are positives, and negatives."""
FAR_QUESTIONS = 3
"""Questions of other clusters."""
CLUSTERS = 8
STEPS = 1000
BATCH = 64
HOLDOUT_EVERY = 5
"""One question in so many is kept from training."""
VALIDATE_EVERY = 50
"""Steps after which the weights are measured."""
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.01
_NEGATIVE_LIMIT = 0.5
"""A score above it is no negative."""


def fit_routerdc(
    history: History,
    *,
    seed: int = 0,
    dollar_rate: float = 0.0,
    steps: int = STEPS,
    features: Features | None = None,
) -> Router:
    """The router.

    Args:
        history: what to learn from.
        seed: of the first weights, the clusters and the batches.
        dollar_rate: what a dollar takes from a score.
        steps: of AdamW.
        features: of the questions, not fitted yet.

    Raises:
        ConfigError: the history has no questions, or a rate is given and dollars are unknown.
    """
    scores_qm = compute_utilities(history, dollar_rate)
    embed, points_qd = fit_embedding(history, features)
    rng = np.random.default_rng(seed)
    model = {
        "encoder": Variable(
            rng.standard_normal((points_qd.shape[1], WIDTH), np.float32) / WIDTH**0.5
        ),
        "models": Variable(
            INITIAL_SCALE * rng.standard_normal((len(history.workers), WIDTH), np.float32)
        ),
    }
    _train_weights(model, points_qd, scores_qm, rng, steps=steps)

    def score(text: str) -> Floats:
        return worker_cosines(model, embed([text]))[0]

    return Router("routerdc", history.workers, score)


def worker_cosines(model: Mapping[str, Variable], points_qd: Floats) -> Floats:
    """The cosine of every question and every model: (q, m)."""
    questions_qh = normalize_rows(Variable(points_qd @ model["encoder"].value)).value
    return questions_qh @ normalize_rows(model["models"]).value.T


def _train_weights(
    model: dict[str, Variable],
    points_qd: Floats,
    scores_qm: Floats,
    rng: np.random.Generator,
    *,
    steps: int,
) -> None:
    """Changes the weights to the best that were met."""
    labels_q = nearest_centre(points_qd, k_means_centres(points_qd, CLUSTERS, rng))
    order = rng.permutation(len(points_qd))
    held, taught = np.split(order, [len(order) // HOLDOUT_EVERY])
    adam = Adam(model, LEARNING_RATE, WEIGHT_DECAY)
    best, kept = -np.inf, {name: node.value for name, node in model.items()}
    for step in range(1, steps + 1):
        batch = rng.choice(taught, min(BATCH, len(taught)), replace=False)
        near, far = _draw_companions(labels_q[batch], rng)
        lots = rng.random((len(batch), scores_qm.shape[1]))
        adam.step(
            batch_loss(
                model,
                points_qd[batch],
                scores_bm=scores_qm[batch],
                lots_bm=lots,
                near_b=near,
                far_bh=far,
            )
        )
        if step % VALIDATE_EVERY and step != steps:
            continue
        chosen = worker_cosines(model, points_qd[held]).argmax(axis=1)
        earned = float(np.nan_to_num(scores_qm[held, chosen]).sum())
        if earned > best:
            best, kept = earned, {name: node.value for name, node in model.items()}
    for name, node in model.items():
        node.value = kept[name]


def batch_loss(
    model: Mapping[str, Variable],
    points_bd: Floats,
    scores_bm: Floats,
    lots_bm: Floats,
    *,
    near_b: Indices,
    far_bh: Indices,
) -> Variable:
    """Both losses of a batch, each the mean over its questions.

    Args:
        model: the encoder and the models' vectors.
        points_bd: the questions' features.
        scores_bm: their scores; NaN: unknown.
        lots_bm: who stands first among models of equal score.
        near_b: for each question another one of its cluster, -1: none.
        far_bh: for each question others of other clusters, -1: none.
    """
    questions_bh = normalize_rows(model["encoder"].premultiply(points_bd))
    logits_bm = questions_bh @ normalize_rows(model["models"]).transpose
    cosines_bb = questions_bh @ questions_bh.transpose
    return _sample_model_loss(logits_bm, scores_bm, lots_bm) + _sample_sample_loss(
        cosines_bb, near_b, far_bh
    )


def _sample_model_loss(logits_bm: Variable, scores_bm: Floats, lots_bm: Floats) -> Variable:
    """The loss of section 3.2."""
    ends = min(CONTRASTED_WORKERS, scores_bm.shape[1] // 2)
    rows_b1 = np.arange(len(scores_bm))[:, None]
    best_bk = np.lexsort((lots_bm, -np.nan_to_num(scores_bm, nan=-np.inf)))[:, :ends]
    worst_bk = np.lexsort((lots_bm, np.nan_to_num(scores_bm, nan=np.inf)))[:, :ends]
    kept_bk = np.nan_to_num(scores_bm[rows_b1, best_bk]) > 0
    hidden_bk = ~(scores_bm[rows_b1, worst_bk] <= _NEGATIVE_LIMIT)
    total = Variable(0.0)
    for place in range(ends):
        against = np.concatenate([best_bk[:, [place]], worst_bk], axis=1)
        out = np.concatenate([np.zeros((len(hidden_bk), 1), bool), hidden_bk], axis=1)
        chosen = log_softmax(logits_bm[rows_b1, against].add(np.where(out, -np.inf, 0.0)))[:, 0]
        total += chosen.multiply(kept_bk[:, place]).sum()
    return total.multiply(-1 / len(scores_bm))


def _sample_sample_loss(cosines_bb: Variable, near_b: Indices, far_bh: Indices) -> Variable:
    """The loss of section 3.3."""
    there = np.flatnonzero((near_b >= 0) & (far_bh >= 0).all(axis=1))
    if not len(there):
        return Variable(0.0)
    against = np.concatenate([near_b[there, None], far_bh[there]], axis=1)
    chosen = log_softmax(cosines_bb[there[:, None], against])[:, 0]
    return chosen.sum().multiply(-1 / len(there))


def _draw_companions(labels_b: Indices, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Drawn for each question: another of its cluster, and `OTHERS` of other clusters."""
    size = len(labels_b)
    lots_bb = rng.random((size, size))
    same_bb = labels_b[:, None] == labels_b
    others_bb = same_bb & ~np.eye(size, dtype=bool)
    near_b = np.where(others_bb.any(axis=1), np.where(others_bb, lots_bb, -1).argmax(axis=1), -1)
    far_bb = np.argsort(np.where(same_bb, -1, lots_bb), axis=1)[:, ::-1][:, :FAR_QUESTIONS]
    enough = (~same_bb).sum(axis=1) >= FAR_QUESTIONS
    return near_b, np.where(enough[:, None], far_bb, -1)
