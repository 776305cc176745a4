"""RouteLLM's matrix factorisation: a latent score of each worker on each question.

The method is that of Ong et al., "RouteLLM: Learning to Route LLMs with Preference Data" (arXiv
2406.18665), section 4.2. A score is delta(m, q) = w . (v_m * (W q + b)), where v_m has length 1 and
128 dimensions. The probability that one worker beats another is the sigmoid of the difference of
their scores. The scores are fitted by cross-entropy on pairs of a winner and a loser, with Gaussian
noise on the question's embedding.

Deviations
- A win is a difference in measured credit, not a person's preference; equal credit is not a win.
- There may be any number of workers: every pair with a winner is used for training. The worker with
  the highest score is called, which for two workers is the paper's threshold at 1/2.
- The embedding is `HashedNgrams`, not text-embedding-3-small. The noise has the paper's size (0.1
  in each dimension); the numbers of steps and of pairs in a batch are ours.

Axes: b pairs of a batch, n all pairs, q questions, m workers, d dimensions of the embedding, h of
the latent.
"""

# torch leaves most types unknown:
# pyright: basic

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from batuta.conductors.features import Features
from batuta.errors import ConfigError
from batuta.lab.baselines.routing.router import Router, fit_embedding, linear_router
from batuta.lab.learners.history import History

WIDTH = 128
NOISE = 0.1
LEARNING_RATE = 3e-4
WEIGHT_DECAY = 1e-5
STEPS = 3000
BATCH = 128


class MatrixFactorization(nn.Module):
    """The latent score of each worker on a question."""

    def __init__(self, dimensions: int, workers: int, random: torch.Generator) -> None:
        super().__init__()
        edge, inner = dimensions**-0.5, WIDTH**-0.5

        def uniform(most: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-most, most, generator=random))

        self.workers = nn.Parameter(torch.randn(workers, WIDTH, generator=random))
        self.projection = uniform(edge, dimensions, WIDTH)
        self.bias = uniform(edge, WIDTH)
        self.last = uniform(inner, WIDTH)

    def forward(self, points_bd: torch.Tensor) -> torch.Tensor:
        """Return the score delta of every worker on every question, (b, m)."""
        hidden_bh = points_bd @ self.projection + self.bias
        return (hidden_bh * self.last) @ functional.normalize(self.workers, dim=1).T


def fit_routellm(
    history: History, *, seed: int = 0, steps: int = STEPS, features: Features | None = None
) -> Router:
    """Fit the router with torch; its scores are linear in the embedding, so numpy serves them.

    Raises:
        ConfigError: there are no questions, or no pair of workers has a winner.
    """
    embed, points_qd = fit_embedding(history, features)
    wins = np.argwhere(history.scores_qm[:, :, None] > history.scores_qm[:, None, :])
    if not len(wins):
        raise ConfigError("the history has no question on which one worker beats another")
    random = torch.Generator().manual_seed(seed)
    model = MatrixFactorization(points_qd.shape[1], len(history.workers), random)
    adam = torch.optim.Adam(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    points, wins_n3 = torch.from_numpy(points_qd), torch.from_numpy(wins)
    for _ in range(steps):
        asked_b, won_b, lost_b = wins_n3[
            torch.randint(len(wins_n3), (BATCH,), generator=random)
        ].unbind(1)
        noise_bd = NOISE * torch.randn(BATCH, points.shape[1], generator=random)
        delta_bm = model(points[asked_b] + noise_bd)
        each_b = torch.arange(BATCH)
        adam.zero_grad()
        ahead_b = delta_bm[each_b, won_b] - delta_bm[each_b, lost_b]
        (-functional.logsigmoid(ahead_b).mean()).backward()
        adam.step()
    with torch.no_grad():
        bias_m = model(torch.zeros_like(points[:1]))
        weights_dm = model(torch.eye(points.shape[1])) - bias_m
    return linear_router(
        "routellm-mf", history, embed, weights_dm.numpy(), bias_m=bias_m[0].numpy()
    )
