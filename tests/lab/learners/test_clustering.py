"""k-means finds what is apart."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.lab.learners.clustering import k_means_centres, nearest_centre, squared_distances

unhurried = settings(deadline=None, max_examples=25)


def points(seed, count, dimensions=3):
    return np.random.default_rng(seed).standard_normal((count, dimensions))


@unhurried
@given(st.integers(0, 99), st.integers(1, 30), st.integers(1, 8))
def test_every_centre_is_the_mean_of_its_points(seed, count, k):
    cloud = points(seed, count)
    centres = k_means_centres(cloud, k, np.random.default_rng(seed))
    labels = nearest_centre(cloud, centres)
    assert 1 <= len(centres) <= min(k, count)
    for place in set(labels.tolist()):
        np.testing.assert_allclose(centres[place], cloud[labels == place].mean(axis=0), atol=1e-9)


@unhurried
@given(st.integers(0, 99))
def test_heaps_that_are_far_apart_are_told_apart(seed):
    heaps = np.repeat(100.0 * np.eye(3), 7, axis=0)
    cloud = heaps + points(seed, len(heaps))
    labels = nearest_centre(cloud, k_means_centres(cloud, 3, np.random.default_rng(seed))).reshape(
        3, 7
    )
    assert (labels == labels[:, :1]).all() and len(set(labels[:, 0].tolist())) == 3


def test_equal_points_are_one_cluster():
    assert len(k_means_centres(np.ones((5, 2)), 3, np.random.default_rng(0))) == 1


@unhurried
@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 9))
def test_distances_are_the_squares_of_the_differences(seed, n, k):
    a, b = points(seed, n), points(seed + 1, k)
    np.testing.assert_allclose(
        squared_distances(a, b), ((a[:, None] - b) ** 2).sum(axis=2), atol=1e-9
    )
