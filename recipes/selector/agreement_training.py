"""What agreement is worth, learned over many pools at once.

Axes: n questions, k draws, f and g inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.lab.learners.agreement import (
    AGREEMENT_INPUTS,
    STOPPING_INPUTS,
    AgreementPrior,
)
from batuta.lab.learners.answer_posterior import TrainingDraws, find_leading_answer
from batuta.lab.learners.regression import apply_logistic, fit_linear, fit_logistic

Floats = NDArray[np.floating[Any]]

_PENALTY = 3.0
"""Ridge of the regressions, in questions."""


def fit_agreement_prior(worlds: Sequence[TrainingDraws]) -> AgreementPrior:
    """The prior that these draws teach; each question of each world counts the same.

    Args:
        worlds: draws of different pools on different questions, all of one length, at least one.
    """
    most = worlds[0].credit_nk.shape[1]
    inputs = [
        [one.draws.posterior_inputs(k, named=False) for one in worlds] for k in _draw_counts(most)
    ]
    weights_kf = np.stack(
        [
            fit_logistic(
                np.concatenate([part.reshape(-1, part.shape[2]) for part in parts])[None],
                np.concatenate([one.credit_nk[:, :k].reshape(-1) for one in worlds])[None],
                np.zeros(len(AGREEMENT_INPUTS)),
                np.full(len(AGREEMENT_INPUTS), _PENALTY),
            )
            for k, parts in zip(_draw_counts(most), inputs, strict=True)
        ]
    )
    onward_kg = np.zeros((most, len(STOPPING_INPUTS)))
    later = [
        _find_leader(one, inputs[-1][w], weights_kf[-1], most)[0] for w, one in enumerate(worlds)
    ]
    for k in reversed(_draw_counts(most - 1)):
        found = [
            _find_leader(one, inputs[k - 1][w], weights_kf[k - 1], k)
            for w, one in enumerate(worlds)
        ]
        costs = [one.draw_costs_nk()[:, k] for one in worlds]
        win_n = np.concatenate(
            [after - cost - now for after, cost, (now, _) in zip(later, costs, found, strict=True)]
        )
        onward_kg[k - 1] = fit_linear(
            np.concatenate([state for _, state in found]),
            win_n,
            np.zeros(len(STOPPING_INPUTS)),
            _PENALTY,
        )
        later = [
            np.where((state @ onward_kg[k - 1] > 0) & (one.next_n(k) >= 0), after - cost, now)
            for one, after, cost, (now, state) in zip(worlds, later, costs, found, strict=True)
        ]
    return AgreementPrior(weights_kf, onward_kg)


def _find_leader(
    one: TrainingDraws, inputs_nkf: Floats, weights_f: Floats, count: int
) -> tuple[Floats, Floats]:
    """What the leading answer earns after so many draws, and the state to stop in."""
    found = find_leading_answer(one.draws, apply_logistic(inputs_nkf @ weights_f), 0.0)
    earned_n = one.credit_nk[np.arange(len(found.draw_n)), found.draw_n]
    return earned_n, one.draws.stopping_state(found, count, one.next_n(count), named=False)


def _draw_counts(most: int) -> range:
    return range(1, most + 1)
