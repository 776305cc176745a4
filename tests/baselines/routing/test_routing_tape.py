"""Gradients are those of the function; Adam goes down."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from routing_made import unhurried

from batuta.baselines.routing import masrouter, routellm_mf, routerdc
from batuta.baselines.routing.autodiff import (
    Adam,
    Variable,
    log_sigmoid,
    log_softmax,
    normalize_rows,
)
from batuta.baselines.routing.collaboration_modes import MODES

STEP = 1e-5


def assert_gradient(loss_of, parameters):
    """Every gradient agrees with the slope of the loss along some random directions."""
    loss_of().backward()
    rng = np.random.default_rng(0)
    gradients = {name: node.gradient.copy() for name, node in parameters.items()}
    for name, node in parameters.items():
        still = node.value
        direction = rng.standard_normal(still.shape)
        node.value = still + STEP * direction
        above = float(loss_of().value)
        node.value = still - STEP * direction
        below = float(loss_of().value)
        node.value = still
        slope = (above - below) / (2 * STEP)
        found = float((gradients[name] * direction).sum()) if gradients[name].size else 0.0
        assert found == pytest.approx(slope, rel=1e-4, abs=1e-6), name


OPERATIONS = {
    "sum of products": lambda a, b: a * b + a,
    "difference": lambda a, b: a - b,
    "matrix product": lambda a, b: a @ b.transpose,
    "constant matrix": lambda a, b: (
        a.premultiply(np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]])) * b[:2]
    ),
    "one row for all": lambda a, b: a + b[0] * b[1],
    "one column for all": lambda a, b: a * b[:, [0]],
    "rows more than once": lambda a, b: a[np.array([0, 0, 1])] * b[np.array([1, 0, 0])],
    "exponential": lambda a, b: a.multiply(0.3).exp() * b,
    "constants": lambda a, b: a.multiply(np.array([[2.0], [3.0], [1.0]])).add(1.5) * b,
    "sum over an axis": lambda a, b: a.sum(axis=1) * b.sum(axis=0)[0],
    "unit rows": lambda a, b: normalize_rows(a) @ normalize_rows(b).transpose,
    "log softmax": lambda a, b: log_softmax(a * b)[:, [0, -1]],
    "log sigmoid": lambda a, b: log_sigmoid(a * b),
}


@pytest.mark.parametrize("name", OPERATIONS)
@unhurried
@example(seed=109, columns=1)  # a row nearly as short as what keeps zeros from being divided by
@given(seed=st.integers(0, 999), columns=st.integers(1, 5))
def test_a_gradient_is_the_slope(name, seed, columns):
    rng = np.random.default_rng(seed)
    a, b = (Variable(rng.standard_normal((3, columns))) for _ in range(2))
    weights = rng.standard_normal(OPERATIONS[name](a, b).value.shape)
    assert_gradient(lambda: OPERATIONS[name](a, b).multiply(weights).sum(), {"a": a, "b": b})


def test_a_hidden_logit_has_no_gradient():
    logits = Variable(np.array([[1.0, 2.0, 3.0]]))
    hidden = logits.add(np.array([[0.0, 0.0, -np.inf]]))
    log_softmax(hidden)[:, 0].sum().backward()
    assert np.isfinite(logits.gradient).all() and logits.gradient[0, 2] == 0


def test_what_a_node_is_used_for_twice_counts_twice():
    node = Variable(np.array([3.0]))
    (node * node + node).sum().backward()
    assert node.gradient.tolist() == [7.0]


@unhurried
@given(seed=st.integers(0, 99))
def test_adam_goes_down_to_the_minimum(seed):
    rng = np.random.default_rng(seed)
    target = rng.standard_normal(4)
    point = Variable(rng.standard_normal(4))
    unused = Variable(np.ones(2))
    adam = Adam({"point": point, "unused": unused}, 0.05)
    for _ in range(400):
        away = point.add(-target)
        adam.step((away * away).sum())
    assert np.abs(point.value - target).max() < 0.02
    assert unused.value.tolist() == [1.0, 1.0]


def test_weights_decay_where_the_loss_is_flat():
    point = Variable(np.ones(1))
    adam = Adam({"point": point}, 0.1, decay=0.5)
    adam.step(point.multiply(0.0).sum())
    assert point.value[0] == pytest.approx(0.95)


def test_the_loss_of_routellm():
    rng = np.random.default_rng(1)
    model = {
        "workers": Variable(rng.standard_normal((4, 6))),
        "projection": Variable(rng.standard_normal((5, 6))),
        "bias": Variable(rng.standard_normal(6)),
        "last": Variable(rng.standard_normal(6)),
    }
    points, won, lost = rng.standard_normal((3, 5)), np.array([0, 1, 1]), np.array([3, 0, 2])
    assert_gradient(lambda: routellm_mf.batch_loss(model, points, won, lost), model)


def test_the_loss_of_routerdc():
    rng = np.random.default_rng(2)
    model = {
        "encoder": Variable(rng.standard_normal((5, 8))),
        "models": Variable(rng.standard_normal((6, 8))),
    }
    points, scores, lots = rng.standard_normal((4, 5)), rng.random((4, 6)), rng.random((4, 6))
    scores[0, 1] = np.nan
    near, far = np.array([1, 0, 3, -1]), np.array([[2, 3], [3, 2], [0, 1], [0, 1]])
    assert_gradient(
        lambda: routerdc.batch_loss(
            model, points, scores_bm=scores, lots_bm=lots, near_b=near, far_bh=far
        ),
        model,
    )


def test_the_loss_of_masrouter():
    rng = np.random.default_rng(3)
    model = masrouter.first_weights(5, 2, 4, rng)
    for node in model.values():  # single precision is too coarse for slopes
        node.value = node.value.astype(np.float64)
    points, classes, utility = rng.standard_normal((6, 5)), np.array([0, 1] * 3), rng.random(6)
    everyone = np.ones(4, bool)

    def loss():
        noise, lots = np.random.default_rng(4), np.random.default_rng(5)

        def choose(log_p):  # at random, and the same whatever the weights are
            return lots.integers(log_p.shape[1], size=len(log_p))

        draw = masrouter.choose_systems(
            model, points, choose=choose, modes=MODES, there_m=everyone, noise=noise
        )
        return masrouter.batch_loss(draw, classes, utility)

    assert_gradient(loss, {name: node for name, node in model.items() if name != "number"})
