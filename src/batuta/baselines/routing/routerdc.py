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
  equal scores the models that count are drawn by lot, since ours are often just right or wrong.
- A batch that has no second question of a cluster, or none of another, drops that question there.
- With `rate`, scores are less `rate` times dollars, as in the paper's experiment on RouterBench.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from batuta.baselines.routing.arrays import Floats, Places
from batuta.baselines.routing.clusters import k_means, nearest
from batuta.baselines.routing.router import Router, embedding, utilities
from batuta.baselines.routing.tape import Adam, Node, log_softmax, unit
from batuta.solvers.features import Features
from batuta.solvers.history import History

WIDTH = 768
SPREAD = 0.78
"""Of the models' first vectors."""
ENDS = 3
"""Models that are positives, and negatives."""
OTHERS = 3
"""Questions of other clusters."""
CLUSTERS = 8
STEPS = 1000
BATCH = 64
HELD = 5
"""One question in so many is kept from training."""
CHECK = 50
"""Steps after which the weights are measured."""
RATE = 1e-3
DECAY = 0.01
_GOOD = 0.5
"""A score above it is no negative."""


def fit(
    history: History,
    *,
    seed: int = 0,
    rate: float = 0.0,
    steps: int = STEPS,
    features: Features | None = None,
) -> Router:
    """The router.

    Args:
        history: what to learn from.
        seed: of the first weights, the clusters and the batches.
        rate: what a dollar takes from a score.
        steps: of AdamW.
        features: of the questions, not fitted yet.

    Raises:
        ConfigError: the history has no questions, or a rate is given and dollars are unknown.
    """
    scores_qm = utilities(history, rate)
    embed, points_qd = embedding(history, features)
    rng = np.random.default_rng(seed)
    model = {
        "encoder": Node(rng.standard_normal((points_qd.shape[1], WIDTH), np.float32) / WIDTH**0.5),
        "models": Node(SPREAD * rng.standard_normal((len(history.workers), WIDTH), np.float32)),
    }
    _learn(model, points_qd, scores_qm, rng, steps)

    def score(text: str) -> Floats:
        return logits(model, embed([text]))[0]

    return Router("routerdc", history.workers, score)


def logits(model: Mapping[str, Node], points_qd: Floats) -> Floats:
    """The cosine of every question and every model: (q, m)."""
    questions_qh = unit(Node(points_qd @ model["encoder"].value)).value
    return questions_qh @ unit(model["models"]).value.T


def _learn(
    model: dict[str, Node],
    points_qd: Floats,
    scores_qm: Floats,
    rng: np.random.Generator,
    steps: int,
) -> None:
    """Changes the weights to the best that were met."""
    labels_q = nearest(points_qd, k_means(points_qd, CLUSTERS, rng))
    order = rng.permutation(len(points_qd))
    held, taught = np.split(order, [len(order) // HELD])
    adam = Adam(model, RATE, DECAY)
    best, kept = -np.inf, {name: node.value for name, node in model.items()}
    for step in range(1, steps + 1):
        batch = rng.choice(taught, min(BATCH, len(taught)), replace=False)
        near, far = _companions(labels_q[batch], rng)
        lots = rng.random((len(batch), scores_qm.shape[1]))
        adam.step(loss_of(model, points_qd[batch], scores_qm[batch], lots, near, far))
        if step % CHECK and step != steps:
            continue
        chosen = logits(model, points_qd[held]).argmax(axis=1)
        earned = float(np.nan_to_num(scores_qm[held, chosen]).sum())
        if earned > best:
            best, kept = earned, {name: node.value for name, node in model.items()}
    for name, node in model.items():
        node.value = kept[name]


def loss_of(
    model: Mapping[str, Node],
    points_bd: Floats,
    scores_bm: Floats,
    lots_bm: Floats,
    near_b: Places,
    far_bh: Places,
) -> Node:
    """Both losses of a batch, each the mean over its questions.

    Args:
        model: the encoder and the models' vectors.
        points_bd: the questions' features.
        scores_bm: their scores; NaN: unknown.
        lots_bm: who stands first among models of equal score.
        near_b: for each question another one of its cluster, -1: none.
        far_bh: for each question others of other clusters, -1: none.
    """
    questions_bh = unit(model["encoder"].mapping(points_bd))
    logits_bm = questions_bh @ unit(model["models"]).transposed
    cosines_bb = questions_bh @ questions_bh.transposed
    return _sample_model(logits_bm, scores_bm, lots_bm) + _sample_sample(cosines_bb, near_b, far_bh)


def _sample_model(logits_bm: Node, scores_bm: Floats, lots_bm: Floats) -> Node:
    """The loss of section 3.2."""
    ends = min(ENDS, scores_bm.shape[1] // 2)
    rows_b1 = np.arange(len(scores_bm))[:, None]
    best_bk = np.lexsort((lots_bm, -np.nan_to_num(scores_bm, nan=-np.inf)))[:, :ends]
    worst_bk = np.lexsort((lots_bm, np.nan_to_num(scores_bm, nan=np.inf)))[:, :ends]
    kept_bk = np.nan_to_num(scores_bm[rows_b1, best_bk]) > 0
    hidden_bk = ~(scores_bm[rows_b1, worst_bk] <= _GOOD)
    total = Node(0.0)
    for place in range(ends):
        against = np.concatenate([best_bk[:, [place]], worst_bk], axis=1)
        out = np.concatenate([np.zeros((len(hidden_bk), 1), bool), hidden_bk], axis=1)
        chosen = log_softmax(logits_bm[rows_b1, against].plus(np.where(out, -np.inf, 0.0)))[:, 0]
        total += chosen.times(kept_bk[:, place]).sum()
    return total.times(-1 / len(scores_bm))


def _sample_sample(cosines_bb: Node, near_b: Places, far_bh: Places) -> Node:
    """The loss of section 3.3."""
    there = np.flatnonzero((near_b >= 0) & (far_bh >= 0).all(axis=1))
    if not len(there):
        return Node(0.0)
    against = np.concatenate([near_b[there, None], far_bh[there]], axis=1)
    chosen = log_softmax(cosines_bb[there[:, None], against])[:, 0]
    return chosen.sum().times(-1 / len(there))


def _companions(labels_b: Places, rng: np.random.Generator) -> tuple[Places, Places]:
    """Drawn for each question: another of its cluster, and `OTHERS` of other clusters."""
    size = len(labels_b)
    lots_bb = rng.random((size, size))
    same_bb = labels_b[:, None] == labels_b
    others_bb = same_bb & ~np.eye(size, dtype=bool)
    near_b = np.where(others_bb.any(axis=1), np.where(others_bb, lots_bb, -1).argmax(axis=1), -1)
    far_bb = np.argsort(np.where(same_bb, -1, lots_bb), axis=1)[:, ::-1][:, :OTHERS]
    enough = (~same_bb).sum(axis=1) >= OTHERS
    return near_b, np.where(enough[:, None], far_bb, -1)
