"""Each worker's expected credit on a question, computed from the question's text.

Credit is the score in [0, 1] of a worker's answer, minus its weighted cost if training weighs cost.
The expected credit is the weighted mean of two estimates, both shrunk towards the worker's mean:
ridge regression on the question's features, and the credit on similar training questions, weighted
by similarity. Both have closed forms. A worker that joins later is modelled as a mixture of the
known workers: its few scores are regressed on their main components, so that nothing else is fitted
again.
`batuta.lab.learners.selector_training` fits the estimates.

Axes: n training questions, q questions, d features, m known workers, j joined workers, k similar
training questions, c main components.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.selector.newcomers import (
    DOUBT,
    PRIOR_OUTCOMES,
    NewcomerPosterior,
    main_directions,
)
from batuta.core import WorkerId
from batuta.errors import SourceError

Floats = NDArray[np.float32]

NEIGHBOURS = 60
"""Maximum number of similar training questions used for an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing:
    """The strength of shrinkage, and the weights of the two estimates."""

    ridge: float = 0.3
    """The ridge penalty; features have length 1."""
    sharpness: float = 10.0
    """A neighbour's weight is proportional to exp(sharpness * cosine)."""
    prior: float = 3.0
    """The weight of the worker's mean, in pseudo-observations (scores)."""
    neighbours: float = 0.5
    """The weight of the neighbours' estimate, in [0, 1]; the ridge estimate has the rest."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ValueModel:
    """Expected credit by question and worker."""

    workers: tuple[WorkerId, ...]
    """The known workers, then the joined ones."""
    smoothing: Smoothing
    mean_m: Floats
    """The mean credit of each known worker."""
    memory_nd: Floats
    """The features of the training questions."""
    credit_nm: Floats
    """Credit minus the worker's mean; 0 if unknown."""
    known_nm: Floats
    """1 if the credit is known, else 0."""
    linear_dm: Floats
    """The ridge regression's coefficients."""
    mean_j: Floats
    """Each joined worker's fitted mean credit, minus `DOUBT` standard errors."""
    mixture_mj: Floats
    """A joined worker's coefficients on each known worker's difference from its mean."""

    def __call__(self, features_qd: Floats) -> tuple[Floats, Floats]:
        """Return expected credits (q, m + j) and cosines to the closest training questions (q,)."""
        return self._blend_estimates(features_qd, features_qd @ self.memory_nd.T)

    def _blend_estimates(self, features_qd: Floats, close_qn: Floats) -> tuple[Floats, Floats]:
        share, count = self.smoothing.neighbours, min(NEIGHBOURS, close_qn.shape[1])
        near_qk = np.argpartition(-close_qn, count - 1, axis=1)[:, :count]
        cosine_qk = np.take_along_axis(close_qn, near_qk, axis=1)
        close_q = cosine_qk.max(axis=1)
        weight_qk = np.exp(self.smoothing.sharpness * (cosine_qk - close_q[:, None]))
        total_qm = np.einsum("qk,qkm->qm", weight_qk, self.credit_nm[near_qk])
        count_qm = np.einsum("qk,qkm->qm", weight_qk, self.known_nm[near_qk])
        local_qm = total_qm / (count_qm + self.smoothing.prior)
        deviation_qm = share * local_qm + (1 - share) * (features_qd @ self.linear_dm)
        joined_qj = self.mean_j + deviation_qm @ self.mixture_mj
        values_q = np.concatenate([self.mean_m + deviation_qm, joined_qj], axis=1)
        return values_q.astype(np.float32), close_q.astype(np.float32)

    def _deviation_from_mean(self, features_qd: Floats) -> Floats:
        """Return each known worker's expected credit minus its mean: (q, m)."""
        return self(features_qd)[0][:, : len(self.mean_m)] - self.mean_m

    def add_worker(self, worker: str, features_qd: Floats, scores_q: Floats) -> ValueModel:
        """Return the model with one more worker, given its scores on a few questions.

        Args:
            worker: the id of the worker.
            features_qd: the features of the questions that the worker was asked, known or new.
            scores_q: the worker's score on each question, in [0, 1].

        Raises:
            SourceError: the worker exists already, or has no score.
        """
        if worker in self.workers:
            raise SourceError(f"{worker} is already one of the selector's workers")
        if not len(scores_q):
            raise SourceError(f"{worker} has no score: ask it at least one question")
        basis_mc = main_directions(self._deviation_from_mean(self.memory_nd))
        deviation_qc = self._deviation_from_mean(features_qd) @ basis_mc
        penalty_c = [PRIOR_OUTCOMES] * deviation_qc.shape[1]
        prior_mean = float(self.mean_m.mean())
        posterior = NewcomerPosterior.fit(deviation_qc, scores_q, prior_mean, penalty_c)
        mean = posterior.mean - DOUBT * posterior.typical_error()
        mixture_m = (basis_mc @ posterior.weights_d).astype(np.float32)
        return replace(
            self,
            workers=(*self.workers, WorkerId(worker)),
            mean_j=np.append(self.mean_j, np.float32(mean)),
            mixture_mj=np.column_stack([self.mixture_mj, mixture_m]).astype(np.float32),
        )
