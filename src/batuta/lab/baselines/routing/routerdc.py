"""RouterDC: a question's vector is near the vectors of the models that answer it well.

The method is that of Chen et al., "RouterDC: Query-Based Router by Dual Contrastive Learning for
Assembling Large Language Models" (arXiv 2409.19886), section 3. Each model has a trainable vector,
and its logit is the cosine with the encoded question. The sample-model loss (3.2) sums, over the 3
models with the highest scores, the -log softmax of the logit against the logits of the 3 models
with the lowest scores. The sample-sample loss (3.3), with weight 1, is the -log softmax of the
cosine with one question of the same cluster in the batch, against 3 questions of other clusters;
k-means makes 8 clusters. The model with the highest logit is called.

Deviations
- The encoder is a trained linear map of `HashedNgrams` to 768 dimensions, not the pretrained
  mDeBERTaV3-base; this is the largest deviation. The learning rate is therefore 1e-3, not 5e-5.
- A fifth of the questions is held out and evaluated every 50 steps; the best weights are used, as
  the model overfits these features before 1,000 steps.
- The clusters are those of the features, reduced by a truncated SVD, not of a t-SNE projection.
- As in the authors' training, negatives with a score above 0.5 are left out, and so are positives
  whose score is 0 or unknown. With fewer than 6 workers at most half are positives. Ties are broken
  at random, because our scores are often just 0 or 1.
- A question is skipped if the batch has no other question of its cluster, or fewer than 3 questions
  of other clusters.

Axes: b questions of a batch, q questions, m models, d dimensions of the features, h of the
encoding, k positives or negatives, c clusters.
"""

# torch leaves most types unknown:
# pyright: basic

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from batuta.conductors.features import Features
from batuta.lab.baselines.routing.router import Router, fit_embedding, linear_router
from batuta.lab.learners.clustering import k_means_centres, nearest_centre
from batuta.lab.learners.history import History

WIDTH = 768
INITIAL_SCALE = 0.78
"""The standard deviation of the entries of the models' initial vectors."""
CONTRASTED_WORKERS = 3
"""Maximum number of positive models, and of negative models."""
FAR_QUESTIONS = 3
"""Number of questions of other clusters with which a question is compared."""
CLUSTERS = 8
STEPS = 1000
BATCH = 64
HOLDOUT_EVERY = 5
"""One question in this many is held out of training."""
VALIDATE_EVERY = 50
"""Steps between two evaluations of the weights."""
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.01
_NEGATIVE_LIMIT = 0.5
"""Maximum score of a negative model."""


class DualContrastiveRouter(nn.Module):
    """The network: a linear map of the questions' features, and a vector for each model."""

    def __init__(self, dimensions: int, workers: int, random: torch.Generator) -> None:
        super().__init__()
        scale = WIDTH**-0.5
        self.encoder = nn.Parameter(scale * torch.randn(dimensions, WIDTH, generator=random))
        self.models = nn.Parameter(INITIAL_SCALE * torch.randn(workers, WIDTH, generator=random))

    def encode(self, points_bd: torch.Tensor) -> torch.Tensor:
        """Return the questions' vectors, (b, h), scaled to length 1."""
        return functional.normalize(points_bd @ self.encoder, dim=1)

    def forward(self, points_bd: torch.Tensor) -> torch.Tensor:
        """Return the cosine of every question and every model, (b, m)."""
        return self.encode(points_bd) @ functional.normalize(self.models, dim=1).T


def fit_routerdc(
    history: History, *, seed: int = 0, steps: int = STEPS, features: Features | None = None
) -> Router:
    """Fit the router with torch; its ranking is linear in the features, so numpy serves it.

    Raises:
        ConfigError: the history has no questions.
    """
    embed, points_qd = fit_embedding(history, features)
    rng, random = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    centres_cd = k_means_centres(points_qd, CLUSTERS, rng)
    labels_q = torch.from_numpy(nearest_centre(points_qd, centres_cd))
    points, scores = torch.from_numpy(points_qd), torch.from_numpy(history.scores_qm)
    model = DualContrastiveRouter(points.shape[1], len(history.workers), random)
    adam = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    order = torch.randperm(len(points), generator=random)
    held, taught = order.tensor_split([len(order) // HOLDOUT_EVERY])
    best, kept = -np.inf, copy.deepcopy(model.state_dict())
    for step in range(1, steps + 1):
        batch = taught[torch.randperm(len(taught), generator=random)[:BATCH]]
        questions_bh = model.encode(points[batch])
        logits_bm = questions_bh @ functional.normalize(model.models, dim=1).T
        loss = sample_model_loss(logits_bm, scores[batch], random)
        loss = loss + sample_sample_loss(questions_bh @ questions_bh.T, labels_q[batch], random)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % VALIDATE_EVERY == 0 or step == steps:
            with torch.no_grad():
                chosen = model(points[held]).argmax(dim=1, keepdim=True)
            earned = float(scores[held].gather(1, chosen).nansum())
            if earned > best:
                best, kept = earned, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    with torch.no_grad():  # scaling the question's vector does not change the ranking
        weights_dm = model.encoder @ functional.normalize(model.models, dim=1).T
    return linear_router("routerdc", history, embed, weights_dm.numpy())


def sample_model_loss(
    logits_bm: torch.Tensor, scores_bm: torch.Tensor, random: torch.Generator
) -> torch.Tensor:
    """Return the loss of section 3.2, averaged over the batch.

    Args:
        logits_bm: the cosines of questions and models.
        scores_bm: the models' scores; NaN if unknown.
        random: breaks ties between models of equal score.
    """
    ends = min(CONTRASTED_WORKERS, scores_bm.shape[1] // 2)
    drawn_bm = torch.rand(scores_bm.shape, generator=random).argsort(dim=1)
    scores, logits = scores_bm.gather(1, drawn_bm), logits_bm.gather(1, drawn_bm)
    best = scores.nan_to_num(-torch.inf).argsort(dim=1, descending=True, stable=True)[:, :ends]
    worst = scores.nan_to_num(torch.inf).argsort(dim=1, stable=True)[:, :ends]
    counts_bk = scores.gather(1, best) > 0
    is_none_bk = ~(scores.gather(1, worst) <= _NEGATIVE_LIMIT)
    negatives = logits.gather(1, worst).masked_fill(is_none_bk, -torch.inf)
    positives = logits.gather(1, best)
    all_bk = torch.logaddexp(positives, negatives.logsumexp(dim=1, keepdim=True))
    return ((all_bk - positives) * counts_bk).sum() / len(scores)


def sample_sample_loss(
    cosines_bb: torch.Tensor, labels_b: torch.Tensor, random: torch.Generator
) -> torch.Tensor:
    """Return the loss of section 3.3, averaged over the questions that are not skipped.

    `labels_b` has the cluster of each question; `random` draws the questions to compare with.
    """
    same_bb = labels_b[:, None] == labels_b
    random_bb = torch.rand(same_bb.shape, generator=random)
    others_bb = same_bb & ~torch.eye(len(labels_b), dtype=torch.bool)
    has_both = others_bb.any(dim=1) & ((~same_bb).sum(dim=1) >= FAR_QUESTIONS)
    if not has_both.any():
        return cosines_bb.new_zeros(())
    near = random_bb.masked_fill(~others_bb, -1).argmax(dim=1, keepdim=True)
    far = random_bb.masked_fill(same_bb, -1).topk(FAR_QUESTIONS, dim=1).indices
    against = cosines_bb.gather(1, torch.cat([near, far], dim=1))
    return -functional.log_softmax(against[has_both], dim=1)[:, 0].mean()
