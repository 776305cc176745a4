"""RouteLLM's matrix factorisation: a hidden score of each worker on each question.

Ong et al., "RouteLLM: Learning to Route LLMs with Preference Data" (arXiv 2406.18665), section 4.2:
delta(m, q) = w . (v_m * (W q + b)), with v_m of length 1 and 128 dimensions; the probability that
one worker beats another is the sigmoid of the difference of their scores, fitted by cross-entropy
on pairs of which one won, with Gaussian noise on the question's embedding. Between a strong and a
weak worker the strong one is called where its probability of winning is above a threshold, which is
calibrated to a wanted share of calls. Metrics of section 5: the share of the gap between weak and
strong that is recovered (PGR), its mean over all shares of strong calls (APGR), and the least share
that recovers x of the gap (CPT(x)).

Deviations
- The wins are differences in measured credit, not people's preferences; equal credit is no win.
- Any number of workers: every pair that has a winner is trained on. Without a threshold the worker
  with the highest score is called, which for two is a threshold of 1/2.
- The embedding is `HashedNgrams`, not text-embedding-3-small. Noise of the paper's size (0.1 in
  each dimension) is kept; steps and batch are ours.
- APGR is the mean over every share that can occur, not over ten.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from batuta.baselines.routing.arrays import Floats, Indices
from batuta.baselines.routing.autodiff import Adam, Variable, log_sigmoid, normalize_rows
from batuta.baselines.routing.router import Router, compute_utilities, fit_embedding
from batuta.errors import ConfigError
from batuta.solvers.features import Features
from batuta.solvers.history import History

WIDTH = 128
NOISE = 0.1
LEARNING_RATE = 3e-4
WEIGHT_DECAY = 1e-5
STEPS = 3000
BATCH = 128


def fit_routellm(
    history: History,
    *,
    seed: int = 0,
    share: float | None = None,
    steps: int = STEPS,
    features: Features | None = None,
) -> Router:
    """The router.

    Args:
        history: what to learn from.
        seed: of the first weights, the batches and the noise.
        share: calls that shall go to the strong worker, in [0, 1], the others to the weak one:
            the best and the worst single worker. None: whoever has the highest score.
        steps: of Adam.
        features: of the questions, not fitted yet.

    Raises:
        ConfigError: the history has no questions, no pair with a winner, or the share is none.
    """
    if share is not None and not 0 <= share <= 1:
        raise ConfigError(f"a share of calls is in [0, 1], not {share}")
    embed, points_qd = fit_embedding(history, features)
    rng = np.random.default_rng(seed)
    model = _first_weights(points_qd.shape[1], len(history.workers), rng)
    _train_weights(model, points_qd, _winning_pairs(compute_utilities(history)), rng, steps=steps)

    def score(text: str) -> Floats:
        return worker_scores(model, embed([text]))[0]

    if share is None:
        return Router("routellm-mf", history.workers, score)
    means_m = history.mean_m()
    pair = int(np.nanargmax(means_m)), int(np.nanargmin(means_m))
    known_qm = worker_scores(model, points_qd)
    margin = _share_threshold(known_qm[:, pair[0]] - known_qm[:, pair[1]], share)

    def between_two(text: str) -> Floats:
        delta_m = score(text)
        only_m = np.full(len(delta_m), -np.inf)
        only_m[list(pair)] = delta_m[pair[0]] - margin, delta_m[pair[1]]
        return only_m

    return Router(f"routellm-mf/{share:g}", history.workers, between_two)


def worker_scores(model: Mapping[str, Variable], points_qd: Floats) -> Floats:
    """The score of every worker on every question, (q, m)."""
    hidden_qh = points_qd @ model["projection"].value + model["bias"].value
    workers_mh = normalize_rows(model["workers"]).value
    return (hidden_qh * model["last"].value) @ workers_mh.T


def batch_loss(
    model: Mapping[str, Variable], points_bd: Floats, won_b: Indices, lost_b: Indices
) -> Variable:
    """The mean cross-entropy of the pairs, each of one question."""
    workers_mh = normalize_rows(model["workers"])
    each_m = np.arange(len(workers_mh.value))
    sides_bm = (won_b[:, None] == each_m) - (lost_b[:, None] == each_m).astype(points_bd.dtype)
    hidden_bh = model["projection"].premultiply(points_bd) + model["bias"]
    ahead_bh = workers_mh.premultiply(sides_bm) * hidden_bh * model["last"]
    return log_sigmoid(ahead_bh.sum(axis=1)).sum().multiply(-1 / len(points_bd))


def _first_weights(dimensions: int, workers: int, rng: np.random.Generator) -> dict[str, Variable]:
    edge, inner = dimensions**-0.5, WIDTH**-0.5
    first = {
        "workers": rng.standard_normal((workers, WIDTH)),
        "projection": rng.uniform(-edge, edge, (dimensions, WIDTH)),
        "bias": rng.uniform(-edge, edge, WIDTH),
        "last": rng.uniform(-inner, inner, WIDTH),
    }
    return {name: Variable(value.astype(np.float32)) for name, value in first.items()}


def _winning_pairs(scores_qm: Floats) -> Indices:
    """Question, winner, loser of every pair that has one: (n, 3).

    Raises:
        ConfigError: there is none.
    """
    wins = np.argwhere(scores_qm[:, :, None] > scores_qm[:, None, :])
    if not len(wins):
        raise ConfigError("the history has no question on which one worker beats another")
    return wins


def _train_weights(
    model: dict[str, Variable],
    points_qd: Floats,
    wins_n3: Indices,
    rng: np.random.Generator,
    *,
    steps: int,
) -> None:
    adam = Adam(model, LEARNING_RATE, WEIGHT_DECAY)
    for _ in range(steps):
        asked_b, won_b, lost_b = wins_n3[rng.integers(len(wins_n3), size=BATCH)].T
        noise_bd = NOISE * rng.standard_normal((BATCH, points_qd.shape[1]), np.float32)
        adam.step(batch_loss(model, points_qd[asked_b] + noise_bd, won_b, lost_b))


def _share_threshold(margins_q: Floats, share: float) -> float:
    """A margin that this share of the questions reaches."""
    wanted = round(share * len(margins_q))
    ordered = np.sort(margins_q)[::-1]
    if not wanted:
        return float("inf")
    return float(ordered[wanted - 1])


def pgr_curve(weak_q: Floats, strong_q: Floats, margins_q: Floats) -> Floats:
    """PGR with 0, 1, … n calls of the strong worker, those with the greatest margins: (n + 1,).

    Raises:
        ValueError: the two workers are equally good, so there is no gap.
    """
    gap = float(strong_q.mean() - weak_q.mean())
    if not gap:
        raise ValueError("the strong worker is no better than the weak one")
    order = np.argsort(-margins_q, kind="stable")
    gained = np.concatenate([[0.0], np.cumsum((strong_q - weak_q)[order])])
    return gained / len(order) / gap


def average_pgr(recovered_n: Floats) -> float:
    """The mean PGR over all shares, by trapezia; 0.5 at random."""
    return float((recovered_n[1:] + recovered_n[:-1]).mean() / 2)


def call_performance_threshold(recovered_n: Floats, wanted: float) -> float:
    """The least share of strong calls with a PGR of at least `wanted`; 1 if none has."""
    enough = np.flatnonzero(recovered_n >= wanted - 1e-9)
    return float(enough[0] / (len(recovered_n) - 1)) if len(enough) else 1.0
