"""Inputs that describe how far answers agree, without naming the workers that gave them.

Sixteen numbers describe each answer after some draws, such as the strength of the workers that gave
the answer and of the workers that gave another answer, and whether a worker repeats itself. None of
them names a worker, so their weights can be learned on other pools and questions. A pool's own
weights are shrunk towards those of `agreement_prior.json`, which were fitted on recorded pools
(`recipes/selector/fit_prior.py`).

Axes: n questions, k draws, m workers, f inputs, g inputs of the stopping rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.signedinteger[Any]]

PRIOR_FILE = "agreement_prior.json"
AGREEMENT_INPUTS = (
    "one", "support", "rival support", "other dissent", "best supporter", "best dissenter",
    "repeated by a supporter", "share without answer", "unanimous", "different answers",
    "mean worker", "is no answer", "collisions x support", "collisions x rival",
    "given by the best worker", "best worker repeats it",
)  # fmt: skip
"""Names of the inputs that `agreement_inputs` returns, in order."""
STOPPING_INPUTS = (
    "one", "leader", "leader squared", "rival", "leader x rival", "best worker", "next worker",
    "next worker x leader", "next was drawn before", "cost", "cost x leader",
)  # fmt: skip
"""Names of the inputs that `stopping_inputs` returns, in order."""
_MISSING_WORKER = -4.0
"""The log-odds used in place of a missing worker's."""


def agreement_inputs(
    worker_nk: Integers, answer_nk: Integers, odds_nm: Floats, collisions: float
) -> Floats:
    """Return the inputs of each draw's answer, (n, k, f).

    Args:
        worker_nk: the worker of each draw; -1 if there was no draw.
        answer_nk: codes of the answers, equal for equal answers; -1 for no answer.
        odds_nm: each worker's expected credit, as log-odds.
        collisions: the rate at which two wrong answers are equal, in [0, 1].
    """
    rows = np.arange(len(worker_nk))[:, None]
    drawn_nk = worker_nk >= 0
    odds_nk = np.where(drawn_nk, odds_nm[rows, worker_nk], _MISSING_WORKER)
    alike_nkk = (worker_nk[:, :, None] == worker_nk[:, None, :]) & drawn_nk[:, :, None]
    times_nk = np.maximum(alike_nkk.sum(axis=2), 1)
    same_nkk = (answer_nk[:, :, None] == answer_nk[:, None, :]) & (answer_nk >= 0)[:, :, None]
    said_nk = np.where(answer_nk >= 0, np.log1p(np.exp(odds_nk)) / times_nk, 0)
    support_nk = np.einsum("nij,nj->ni", same_nkk, said_nk)
    rival_nk = np.where(same_nkk, 0, support_nk[:, None, :]).max(axis=2)
    dissent_nk = said_nk.sum(axis=1, keepdims=True) - support_nk
    best_nk = np.where(same_nkk, odds_nk[:, None, :], _MISSING_WORKER).max(axis=2)
    against_nkk = ~same_nkk & (answer_nk >= 0)[:, None, :]
    dissenter_nk = np.where(against_nkk, odds_nk[:, None, :], _MISSING_WORKER).max(axis=2)
    repeats_nk = np.einsum("nij,nj->ni", same_nkk, 1 - 1 / times_nk)
    leads_nk = drawn_nk & (odds_nk >= odds_nm.max(axis=1, keepdims=True))
    best_said_nk = np.einsum("nij,nj->ni", same_nkk, leads_nk.astype(np.float64))
    answered_n1 = (answer_nk >= 0).sum(axis=1, keepdims=True)
    count_n1 = np.maximum(drawn_nk.sum(axis=1, keepdims=True), 1)
    first_nk = ~(np.tril(same_nkk, -1).any(axis=2)) & (answer_nk >= 0)
    full_nk = np.ones(answer_nk.shape)
    columns = (
        full_nk,
        support_nk,
        rival_nk,
        dissent_nk - rival_nk,
        best_nk,
        dissenter_nk,
        repeats_nk,
        full_nk * (1 - answered_n1 / count_n1),
        (same_nkk.sum(axis=2) == answered_n1) & (answer_nk >= 0),
        full_nk * first_nk.sum(axis=1, keepdims=True) / count_n1,
        full_nk * odds_nm.mean(axis=1, keepdims=True),
        answer_nk < 0,
        collisions * support_nk,
        collisions * rival_nk,
        best_said_nk > 0,
        np.maximum(best_said_nk - 1, 0),
    )
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=2)


def stopping_inputs(
    prob_n: Floats,
    rival_n: Floats,
    odds_nm: Floats,
    *,
    next_n: Integers,
    cost_n: Floats,
    again_n: Any,
) -> Floats:
    """Return the inputs of the decision to draw again, (n, g).

    Args:
        prob_n: the probability that the leading answer is correct.
        rival_n: the probability of the likeliest other answer.
        odds_nm: each worker's expected credit, as log-odds.
        next_n: the worker of the next draw.
        cost_n: the cost of that draw, in credit.
        again_n: whether that worker was drawn before.
    """
    next_odds_n = odds_nm[np.arange(len(prob_n)), next_n]
    return np.column_stack(
        [
            np.ones(len(prob_n)),
            prob_n,
            prob_n**2,
            rival_n,
            prob_n * rival_n,
            odds_nm.max(axis=1),
            next_odds_n,
            next_odds_n * prob_n,
            again_n,
            cost_n,
            cost_n * prob_n,
        ]
    )


@dataclass(frozen=True, slots=True, eq=False)
class AgreementPrior:
    """Weights of agreement and of the stopping rule that were fitted on other pools."""

    weights_kf: Floats
    """Weights of `AGREEMENT_INPUTS`, a row for each number of draws from one."""
    onward_kg: Floats
    """Weights of `STOPPING_INPUTS`, a row for each number of draws from one."""

    def __post_init__(self) -> None:
        shapes = (self.weights_kf.shape[1:], self.onward_kg.shape[1:])
        if shapes != ((len(AGREEMENT_INPUTS),), (len(STOPPING_INPUTS),)):
            raise ValueError(f"a prior of shapes {shapes} does not fit its inputs")

    def weights(self, count: int) -> Floats:
        """Return the weights after `count` draws, (f,); the last row also serves more draws."""
        return self.weights_kf[min(count, len(self.weights_kf)) - 1]

    def onward(self, count: int) -> Floats:
        """Return the stopping rule's weights after `count` draws, (g,), in the same way."""
        return self.onward_kg[min(count, len(self.onward_kg)) - 1]

    def to_json(self) -> dict[str, Any]:
        """Return the weights by the names of their inputs."""
        return {
            "draws": len(self.weights_kf),
            "agreement": dict(zip(AGREEMENT_INPUTS, self.weights_kf.T.tolist(), strict=True)),
            "stopping": dict(zip(STOPPING_INPUTS, self.onward_kg.T.tolist(), strict=True)),
        }

    @staticmethod
    def from_json(card: dict[str, Any]) -> AgreementPrior:
        """Restore what `to_json` returned."""
        return AgreementPrior(
            np.array([card["agreement"][name] for name in AGREEMENT_INPUTS], np.float64).T,
            np.array([card["stopping"][name] for name in STOPPING_INPUTS], np.float64).T,
        )


@cache
def load_shipped_prior() -> AgreementPrior:
    """Load the prior that comes with the package."""
    source = resources.files("batuta.conductors.selector") / PRIOR_FILE
    return AgreementPrior.from_json(orjson.loads(source.read_bytes()))
