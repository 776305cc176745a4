"""Sampling as functions of logits and chance."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import Sampling
from batuta.embedded.client import create_generator, keep_top_p, sample_token, softmax

LOGITS = np.random.default_rng(5).normal(0, 2, 40).astype(np.float32)
# The 99.9 % points of the chi-square distribution for 5 to 40 degrees of freedom are below these.
CHI_SQUARE = {n: n + 3.3 * math.sqrt(2 * n) + 8 for n in range(1, 41)}


def drawn(sampling, count=20_000):
    rng = create_generator(7)
    return np.bincount([sample_token(LOGITS, sampling, rng) for _ in range(count)], minlength=40)


def chi_square(counts, probabilities):
    """The statistic and its degrees of freedom, over the tokens expected at least five times."""
    expected = probabilities * counts.sum()
    big = expected >= 5
    rest = counts[~big].sum() - expected[~big].sum()
    parts = (counts[big] - expected[big]) ** 2 / expected[big]
    return parts.sum() + rest**2 / max(expected[~big].sum(), 5), int(big.sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature):
    powers = [math.exp(float(x) / temperature) for x in LOGITS]
    probabilities = np.array(powers) / sum(powers)
    assert np.allclose(softmax(LOGITS, temperature), probabilities)
    statistic, freedom = chi_square(drawn(Sampling(temperature=temperature)), probabilities)
    assert statistic < CHI_SQUARE[freedom]
    flat = np.full(40, 1 / 40)
    statistic, freedom = chi_square(drawn(Sampling(temperature=temperature)), flat)
    assert statistic > CHI_SQUARE[freedom], "the test would see other frequencies"


def test_the_nucleus_is_the_fewest_tokens_that_reach_top_p():
    weights = np.array([0.1, 0.4, 0.2, 0.3])
    assert keep_top_p(weights, 0.7).tolist() == [0, 0.4, 0, 0.3]
    assert keep_top_p(weights, 0.71).tolist() == [0, 0.4, 0.2, 0.3]
    assert keep_top_p(weights, 0.0).tolist() == [0, 0.4, 0, 0]
    assert keep_top_p(weights, 1.0).tolist() == weights.tolist()
    counts = drawn(Sampling(temperature=1.0, top_p=0.5), 2000)
    assert set(np.flatnonzero(counts)) == set(np.flatnonzero(keep_top_p(softmax(LOGITS, 1.0), 0.5)))


@given(seed=st.integers(-(2**70), 2**70), temperature=st.sampled_from([0.0, 1e-300, 1e-9, None]))
def test_cold_or_unasked_it_is_greedy(seed, temperature):
    assert (
        sample_token(LOGITS, Sampling(temperature=temperature), create_generator(seed))
        == LOGITS.argmax()
    )


def test_nearly_cold_is_greedy_too():
    counts = drawn(Sampling(temperature=1e-3), 500)
    assert counts[LOGITS.argmax()] == 500


def test_a_seed_repeats_its_numbers_and_none_does_not():
    assert create_generator(3).random() == create_generator(3).random() == 0.08564916714362436
    assert create_generator(-1).random() != create_generator(1).random()
    assert create_generator(None).random() != create_generator(None).random()


@given(
    logits=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30),
    temperature=st.floats(0, 100),
    top_p=st.floats(0, 1),
    seed=st.integers(0, 100),
)
def test_any_logits_give_a_token_that_has_a_chance(logits, temperature, top_p, seed):
    values = np.array(logits, np.float32)
    token = sample_token(
        values, Sampling(temperature=temperature, top_p=top_p), create_generator(seed)
    )
    assert 0 <= token < len(logits)
    assert temperature > 1e-5 or values[token] == values.max()
