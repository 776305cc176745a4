"""The regression is what dense algebra says it is, however its outcomes came."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batuta.lab.tune.logistic_regression import SAMPLES, LogisticRegression, apply_sigmoid
from batuta.lab.tune.sparse_design import Design, add_up, pair_within, solve_lower, solve_upper

VARIANCES = {"base": 2.0, "pair": 0.3, "level": 1.0, "own": 0.15}


def draw_rows(rng, many):
    """Features of some rows, some of them twice in a row, most with one that stands apart."""
    rows = []
    for _ in range(many):
        shared = [(("base", int(rng.integers(3))), 1.0), (("level", 0), float(rng.normal()))]
        shared += [(("pair", int(rng.integers(6))), 0.5) for _ in range(2)]
        own = [(("own", int(rng.integers(5))), 1.0)] if rng.random() < 0.8 else []
        rows.append([*shared, *own])
    return rows


def fit_densely(rows, offset, row, score):
    """Names, weights at the mode, and the precision there, by Newton's method, never downhill."""
    names = sorted({name for each in rows for name, _ in each}, key=repr)
    matrix = np.zeros((len(rows), len(names)))
    for at, each in enumerate(rows):
        for name, by in each:
            matrix[at, names.index(name)] += by
    prior = np.array([1 / VARIANCES[name[0]] for name in names])
    theta = np.zeros(len(names))

    def height(at):
        logit = (matrix @ at + offset)[row]
        return (score * logit - np.logaddexp(0, logit)).sum() - (prior * at**2).sum() / 2

    for _ in range(50):
        right = apply_sigmoid((matrix @ theta + offset)[row])
        spread = np.maximum(right * (1 - right), 0.01)
        weight = np.bincount(row, spread, len(rows))
        miss = np.bincount(row, score - right, len(rows))
        precision = (matrix * weight[:, None]).T @ matrix + np.diag(prior)
        step = np.linalg.solve(precision, matrix.T @ miss - prior * theta)
        while np.abs(step).max() > 1e-9 and height(theta + step) < height(theta):
            step = step / 2
        theta = theta + step
    return names, theta, precision


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(0, 12))
@example(4722, 4, 3)  # a whole Newton step leads far beyond the mode
@example(2177, 6, 6)
@settings(max_examples=settings().max_examples * 60 // 100, deadline=None)
def test_the_mode_is_that_of_dense_algebra_even_where_outcomes_came_later(seed, first, later):
    rng = np.random.default_rng(seed)
    rows = draw_rows(rng, first + later)
    offset = rng.normal(size=len(rows))
    found = LogisticRegression(VARIANCES, {"level"}, "own")
    for until in (first, first + later):
        row = rng.integers(until, size=3 * until)
        score = (rng.random(len(row)) < 0.6).astype(float)
        for at in range(until):
            assert found.row((at,), lambda at=at: rows[at], offset[at]) == at
        found.fit(row, score, 1)
    names, theta, _ = fit_densely(rows, offset, row, score)
    weights = [found.weight_of(name) for name in names]
    assert np.abs(np.array(weights) - theta).max() < 5e-3
    assert found.weight_of(("own", "nobody")) == 0.0


@given(st.integers(0, 10_000), st.integers(1, 30))
@settings(max_examples=settings().max_examples * 60 // 100, deadline=None)
def test_what_stands_apart_is_eliminated_exactly(seed, many):
    rng = np.random.default_rng(seed)
    shared, apart = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    there = rng.random((many, shared)) < 0.5
    value = np.where(there, rng.normal(size=(many, shared)), 0.0)
    own = rng.integers(-1, apart, size=many)
    row, column = np.nonzero(there)
    design = Design((row, column, value[row, column]), own, (shared, apart), pairs=pair_within(row))
    matrix = np.concatenate([value, own[:, None] == np.arange(apart)], axis=1)
    weight, prior = rng.random(many), rng.random(shared + apart) + 0.1
    precision = (matrix * weight[:, None]).T @ matrix + np.diag(prior)
    factor = design.factor(weight, prior[:shared], prior[shared:])
    wanted = rng.normal(size=shared + apart)
    solved = np.concatenate(design.solve(factor, wanted[:shared], wanted[shared:]))
    assert np.allclose(precision @ solved, wanted, atol=1e-8)
    some = rng.normal(size=shared + apart)
    assert np.allclose(design.multiply(some[:shared], some[shared:]), matrix @ some)
    assert np.allclose(np.concatenate(design.transpose(weight)), matrix.T @ weight)


def test_draws_have_the_mode_and_the_covariance_of_the_posterior():
    rng = np.random.default_rng(3)
    rows = draw_rows(rng, 40)
    row = rng.integers(40, size=160)
    score = (rng.random(160) < 0.7).astype(float)
    found = LogisticRegression(VARIANCES, {"level"}, "own")
    for at, each in enumerate(rows):
        found.row((at,), lambda each=each: each, 0.0)
    names, theta, precision = fit_densely(rows, np.zeros(40), row, score)
    draws = []
    for seed in range(200):
        found.fit(row, score, seed)
        found.draw()
        plain, slope = found.predict([[(name, 1.0)] for name in names])
        draws.append(plain + slope)
    draw = np.concatenate(draws, axis=1)
    assert draw.shape == (len(names), 200 * SAMPLES)
    covariance = np.linalg.inv(precision)
    assert np.abs(draw.mean(axis=1) - theta).max() < 0.05
    assert np.abs(np.cov(draw) - covariance).max() < 0.06 * np.diag(covariance).max()


def test_features_without_outcomes_are_drawn_from_their_priors_and_stay_as_drawn():
    found = LogisticRegression(VARIANCES, {"level"}, "own")
    found.fit(np.zeros(0, np.intp), np.zeros(0), 1)
    found.draw()
    wanted = [[(("own", number), 2.0)] for number in range(300)]
    plain, slope = found.predict(wanted)
    assert np.abs(plain.std() - 2 * 0.15**0.5) < 0.02 and not slope.any()
    assert (found.predict(wanted[:7])[0] == plain[:7]).all()
    both, _ = found.predict([[*wanted[3], *wanted[5]]])
    assert np.allclose(both[0], plain[3] + plain[5])


@given(st.integers(0, 10_000), st.integers(1, 300))
@settings(max_examples=20, deadline=None)
def test_triangles_of_any_size_are_solved(seed, size):
    rng = np.random.default_rng(seed)
    lower = np.tril(rng.normal(size=(size, size))) / size + np.eye(size) * 2
    wanted = rng.normal(size=(size, 3))
    assert np.allclose(lower @ solve_lower(lower, wanted), wanted)
    assert np.allclose(lower.T @ solve_upper(lower, wanted), wanted)


def test_pairs_and_sums():
    left, right = pair_within(np.array([0, 0, 2]))
    assert list(zip(left, right, strict=True)) == [(0, 0), (1, 0), (1, 1), (2, 2)]
    nothing = np.zeros(0, np.intp)
    assert add_up(nothing, np.zeros(0), 2).tolist() == [0.0, 0.0]
