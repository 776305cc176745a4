"""Ridge and logistic regression with penalties towards given weights.

Ridge regression is solved in closed form, logistic regression by Newton's method.

Axes: n questions, k draws, r rows, f and g inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

_NEWTON_STEPS = 12
_HALVINGS = 8
_TOLERANCE = 1e-6
"""The fit has converged if a step reduces the loss by less than this for each row."""
_MAX_LOG_ODDS = 30.0
"""Log-odds beyond which a probability counts as 0 or 1."""


def fit_linear(state_ng: Floats, win_n: Floats, centre_g: Floats, penalty: float) -> Floats:
    """Return the weights, (g,), of a ridge regression of `win_n` on the state.

    `penalty` is the weight of the squared distance from `centre_g`.
    """
    ridge = penalty * np.eye(state_ng.shape[1])
    rest_n = win_n - state_ng @ centre_g
    return centre_g + np.linalg.solve(state_ng.T @ state_ng + ridge, state_ng.T @ rest_n)


def fit_logistic(
    inputs_nkf: Floats, credit_nk: Floats, centre_f: Floats, penalty_f: Floats
) -> Floats:
    """Return the weights, (f,), of a logistic regression of credit, in [0, 1], on the inputs.

    `penalty_f` is the weight of half the squared distance from `centre_f`. Newton steps that
    increase the loss are halved.
    """
    x_rf = inputs_nkf.reshape(-1, inputs_nkf.shape[2])
    y_r = credit_nk.reshape(-1)

    def loss(weights_f: Floats) -> float:
        odds_r = x_rf @ weights_f
        shrinkage = penalty_f @ (weights_f - centre_f) ** 2 / 2
        return float(np.logaddexp(0, odds_r).sum() - odds_r @ y_r + shrinkage)

    weights_f, least = centre_f.copy(), loss(centre_f)
    for _ in range(_NEWTON_STEPS):
        prob_r = apply_logistic(x_rf @ weights_f)
        gradient_f = x_rf.T @ (prob_r - y_r) + penalty_f * (weights_f - centre_f)
        hessian_ff = (x_rf * (prob_r * (1 - prob_r))[:, None]).T @ x_rf + np.diag(penalty_f)
        step_f = np.linalg.solve(hessian_ff, gradient_f)
        for _ in range(_HALVINGS):
            found = loss(weights_f - step_f)
            if found <= least:
                break
            step_f = step_f / 2
        else:
            break
        weights_f = weights_f - step_f
        done = least - found < _TOLERANCE * len(y_r)
        least = found
        if done:
            break
    return weights_f


def apply_logistic(x: Floats) -> Floats:
    """Return the probabilities of these log-odds."""
    return 1 / (1 + np.exp(-np.clip(x, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)))
