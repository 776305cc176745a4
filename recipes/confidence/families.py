"""How far families differ beyond what probabilities say, and what calibration error even perfect ones would have then.

A family's log-odds of a right answer are those that the probabilities say, plus an effect of the family, normal with mean 0.
Of few families the effects do not cancel out: probabilities that are right on average over all families miss
on those that happen to be measured.

Axes: n answers, f families, d draws.
"""

from __future__ import annotations

import numpy as np

from batuta.lab.evals.confidence import measure_confidence

DRAWS = 200
_STEPS = 60
_INNER = 8
_SIDE = np.random.default_rng(0).standard_normal(400)
"""Draws of an effect in units of its spread, over which a probability is averaged."""


def logistic(odds):
    """The probability of log-odds."""
    return 1 / (1 + np.exp(-odds))


def family_variance(sure_n, right_n, family_n):
    """The variance of the families' effects on the log-odds, by expectation and maximisation (Laplace's approximation)."""
    names, place_n = np.unique(family_n, return_inverse=True)
    offset_n = np.log(sure_n / (1 - sure_n))
    effect_f, level, variance = np.zeros(len(names)), 0.0, 1.0
    for _ in range(_STEPS):
        for _ in range(_INNER):
            now_n = logistic(offset_n + level + effect_f[place_n])
            weight_f = np.bincount(place_n, now_n * (1 - now_n)) + 1 / variance
            rest_f = np.bincount(place_n, right_n - now_n) - effect_f / variance
            effect_f = effect_f + np.clip(rest_f / weight_f, -2, 2)
            level += effect_f.mean()
            effect_f = effect_f - effect_f.mean()
        now_n = logistic(offset_n + level + effect_f[place_n])
        weight_f = np.bincount(place_n, now_n * (1 - now_n)) + 1 / variance
        variance = max(1e-3, float((effect_f**2 + 1 / weight_f).mean()))
    return variance


def perfect_errors(sure_n, family_n, variance, seed=0):
    """The calibration errors of these probabilities in draws in which they are right on average over families: (d,)."""
    rng = np.random.default_rng(seed)
    names, place_n = np.unique(family_n, return_inverse=True)
    wanted_n = np.log(sure_n / (1 - sure_n))
    spread = np.sqrt(variance)
    odds_n = wanted_n.copy()
    for _ in range(8):  # the odds whose mean probability over effects is the one that is said
        mean_n = logistic(odds_n[:, None] + spread * _SIDE).mean(axis=1)
        odds_n += 1.5 * (wanted_n - np.log(mean_n / (1 - mean_n)))
    errors = []
    for _ in range(DRAWS):
        effect_n = rng.normal(0, spread, len(names))[place_n]
        right_n = (rng.random(len(sure_n)) < logistic(odds_n + effect_n)).astype(float)
        errors.append(measure_confidence(sure_n, right_n).calibration_error)
    return np.array(errors)
