"""Gradients are those of the function; Adam goes down."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_made import unhurried

from batuta.baselines.routing import masrouter, routellm_mf, routerdc
from batuta.baselines.routing.modes import MODES
from batuta.baselines.routing.tape import Adam, Node, log_sigmoid, log_softmax, unit

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
    "matrix product": lambda a, b: a @ b.transposed,
    "constant matrix": lambda a, b: (
        a.mapping(np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]])) * b[:2]
    ),
    "one row for all": lambda a, b: a + b[0] * b[1],
    "one column for all": lambda a, b: a * b[:, [0]],
    "rows more than once": lambda a, b: a[np.array([0, 0, 1])] * b[np.array([1, 0, 0])],
    "exponential": lambda a, b: a.times(0.3).exp() * b,
    "constants": lambda a, b: a.times(np.array([[2.0], [3.0], [1.0]])).plus(1.5) * b,
    "sum over an axis": lambda a, b: a.sum(axis=1) * b.sum(axis=0)[0],
    "unit rows": lambda a, b: unit(a) @ unit(b).transposed,
    "log softmax": lambda a, b: log_softmax(a * b)[:, [0, -1]],
    "log sigmoid": lambda a, b: log_sigmoid(a * b),
}


@pytest.mark.parametrize("name", OPERATIONS)
@unhurried
@given(seed=st.integers(0, 999), columns=st.integers(1, 5))
def test_a_gradient_is_the_slope(name, seed, columns):
    rng = np.random.default_rng(seed)
    a, b = (Node(rng.standard_normal((3, columns))) for _ in range(2))
    weights = rng.standard_normal(OPERATIONS[name](a, b).value.shape)
    assert_gradient(lambda: OPERATIONS[name](a, b).times(weights).sum(), {"a": a, "b": b})


def test_a_hidden_logit_has_no_gradient():
    logits = Node(np.array([[1.0, 2.0, 3.0]]))
    hidden = logits.plus(np.array([[0.0, 0.0, -np.inf]]))
    log_softmax(hidden)[:, 0].sum().backward()
    assert np.isfinite(logits.gradient).all() and logits.gradient[0, 2] == 0


def test_what_a_node_is_used_for_twice_counts_twice():
    node = Node(np.array([3.0]))
    (node * node + node).sum().backward()
    assert node.gradient.tolist() == [7.0]


@unhurried
@given(seed=st.integers(0, 99))
def test_adam_goes_down_to_the_minimum(seed):
    rng = np.random.default_rng(seed)
    target = rng.standard_normal(4)
    point = Node(rng.standard_normal(4))
    unused = Node(np.ones(2))
    adam = Adam({"point": point, "unused": unused}, 0.05)
    for _ in range(400):
        away = point.plus(-target)
        adam.step((away * away).sum())
    assert np.abs(point.value - target).max() < 0.02
    assert unused.value.tolist() == [1.0, 1.0]


def test_weights_decay_where_the_loss_is_flat():
    point = Node(np.ones(1))
    adam = Adam({"point": point}, 0.1, decay=0.5)
    adam.step(point.times(0.0).sum())
    assert point.value[0] == pytest.approx(0.95)


def test_the_loss_of_routellm():
    rng = np.random.default_rng(1)
    model = {
        "workers": Node(rng.standard_normal((4, 6))),
        "projection": Node(rng.standard_normal((5, 6))),
        "bias": Node(rng.standard_normal(6)),
        "last": Node(rng.standard_normal(6)),
    }
    points, won, lost = rng.standard_normal((3, 5)), np.array([0, 1, 1]), np.array([3, 0, 2])
    assert_gradient(lambda: routellm_mf.loss_of(model, points, won, lost), model)


def test_the_loss_of_routerdc():
    rng = np.random.default_rng(2)
    model = {
        "encoder": Node(rng.standard_normal((5, 8))),
        "models": Node(rng.standard_normal((6, 8))),
    }
    points, scores, lots = rng.standard_normal((4, 5)), rng.random((4, 6)), rng.random((4, 6))
    scores[0, 1] = np.nan
    near, far = np.array([1, 0, 3, -1]), np.array([[2, 3], [3, 2], [0, 1], [0, 1]])
    assert_gradient(lambda: routerdc.loss_of(model, points, scores, lots, near, far), model)


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

        draw = masrouter.walk(model, points, choose, MODES, everyone, noise)
        return masrouter.loss_of(draw, classes, utility)

    assert_gradient(loss, {name: node for name, node in model.items() if name != "number"})
