"""Ridge and logistic regression towards given weights, in closed form and by Newton's method.

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
"""Loss of a row by which a step must be better than the last one."""
_FAR = 30.0
"""Log-odds beyond which a probability is 0 or 1."""


def fit_linear(state_ng: Floats, win_n: Floats, centre_g: Floats, penalty: float) -> Floats:
    """Ridge regression of what was won, towards the centre: (g,)."""
    ridge = penalty * np.eye(state_ng.shape[1])
    rest_n = win_n - state_ng @ centre_g
    return centre_g + np.linalg.solve(state_ng.T @ state_ng + ridge, state_ng.T @ rest_n)


def fit_logistic(
    inputs_nkf: Floats, credit_nk: Floats, centre_f: Floats, penalty_f: Floats
) -> Floats:
    """Logistic regression of credit, with ridge towards the centre, by Newton's method: (f,).

    A step that does not lessen the loss is halved.
    """
    x_rf = inputs_nkf.reshape(-1, inputs_nkf.shape[2])
    y_r = credit_nk.reshape(-1)

    def loss(weights_f: Floats) -> float:
        odds_r = x_rf @ weights_f
        drawn = penalty_f @ (weights_f - centre_f) ** 2 / 2
        return float(np.logaddexp(0, odds_r).sum() - odds_r @ y_r + drawn)

    weights_f, least = centre_f.copy(), loss(centre_f)
    for _ in range(_NEWTON_STEPS):
        sure_r = apply_logistic(x_rf @ weights_f)
        slope_f = x_rf.T @ (sure_r - y_r) + penalty_f * (weights_f - centre_f)
        curve_ff = (x_rf * (sure_r * (1 - sure_r))[:, None]).T @ x_rf + np.diag(penalty_f)
        step_f = np.linalg.solve(curve_ff, slope_f)
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
    """The probability with these log-odds."""
    return 1 / (1 + np.exp(-np.clip(x, -_FAR, _FAR)))
