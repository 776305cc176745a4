"""The test of drift keeps its rate of false alarms, and notices a worker that has changed."""

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import Skill, Worker, WorkerId
from batuta.store.drift import (
    FALSE_ALARM_VALUES,
    FIRST_SCORES,
    FIRST_SECONDS,
    SECONDS_SHARE,
    STAKES,
    DriftKind,
    DriftSide,
    Interval,
    begin_drift,
    card_interval,
    mean_evidence,
    observe_value,
    place_bet,
)

shares = st.floats(0.01, 0.99)
evidences = st.lists(st.floats(0, 1e4), min_size=len(STAKES), max_size=len(STAKES))


@given(evidences, shares, shares)
def test_while_the_claim_holds_evidence_grows_by_at_most_one_a_value_on_average(old, most, mean):
    """The law behind the stated rate, of every score that is right with a chance of at most `most`."""
    chance = min(mean, most)
    right, wrong = (mean_evidence(place_bet(old, value, most)) for value in (1.0, 0.0))
    assert chance * right + (1 - chance) * wrong <= mean_evidence(old) + 1 + 1e-6


@given(evidences, shares, st.floats(0, 1), st.floats(0, 1))
def test_more_is_never_less_evidence_of_being_above(old, most, one, other):
    low, high = sorted((one, other))
    assert place_bet(old, low, most) <= place_bet(old, high, most)
    assert all(each >= 0 for each in place_bet(old, low, most))


@given(st.lists(st.floats(-5, 5), max_size=60))
def test_any_values_leave_a_state_that_is_sound(values):
    state = begin_drift(DriftKind.RIGHT, Interval(0.4, 0.6))
    for at, value in enumerate(values):
        state = observe_value(state, value, at)
    assert state.count == len(values) and (state.recent is None) == (not values)
    assert state.has_left == (state.since is not None)


def first_alarm(share, interval, values, seed):
    draw = random.Random(seed)
    state = begin_drift(DriftKind.RIGHT, interval)
    for at in range(1, values + 1):
        state = observe_value(state, float(draw.random() < share), at)
        if state.has_left:
            return at, state.side
    return None


def test_false_alarms_at_the_interval_s_very_end_are_rarer_than_stated():
    seen = [first_alarm(0.7, Interval(0.7, 0.9), 2_000, seed) for seed in range(30)]
    alarms = sum(found is not None for found in seen)
    # 60,000 values: at most one alarm in 10,000, and then the first one ends a series.
    assert alarms <= 30 * 2_000 / FALSE_ALARM_VALUES + 3


def test_a_worker_that_became_worse_or_better_is_noticed_on_its_side():
    worse = [first_alarm(0.5, Interval(0.72, 0.86), 500, seed) for seed in range(10)]
    assert all(found and found[1] is DriftSide.BELOW for found in worse)
    assert fmean(found[0] for found in worse if found) < 100
    better = first_alarm(1.0, Interval(0.5, 0.7), 500, 1)
    assert better and better[1] is DriftSide.ABOVE


def test_an_alarm_ends_when_the_worker_has_recovered():
    draw, state = random.Random(3), begin_drift(DriftKind.RIGHT, Interval(0.72, 0.86))
    for at in range(300):
        state = observe_value(state, float(draw.random() < 0.4), at)
    assert state.side is DriftSide.BELOW and state.since is not None and state.since < 100
    for at in range(300, 800):
        state = observe_value(state, float(draw.random() < 0.8), at)
    assert state.side is DriftSide.WITHIN and state.since is None


def test_times_are_learned_from_the_first_calls_and_slower_ones_are_noticed():
    draw, state = random.Random(5), begin_drift(DriftKind.SECONDS)
    for at in range(FIRST_SECONDS):
        state = observe_value(state, draw.lognormvariate(0, 0.5), at)
    assert state.side is DriftSide.WITHIN and state.interval and not state.first
    for at in range(2_000):
        state = observe_value(state, draw.lognormvariate(0, 0.5), at)
        assert not state.has_left
    for at in range(100):
        state = observe_value(state, 3 * draw.lognormvariate(0, 0.5), at)
    assert state.side is DriftSide.ABOVE


def test_the_fifth_of_a_hundred_keeps_its_share_as_is_said():
    # P(Beta(5, 96) > x) = P(Binomial(100, x) < 5).
    from math import comb

    beyond = sum(
        comb(100, k) * SECONDS_SHARE**k * (1 - SECONDS_SHARE) ** (100 - k) for k in range(5)
    )
    assert beyond < 1 / 2_000


def test_without_a_measured_share_the_first_judgements_are_the_measure():
    state = begin_drift(DriftKind.RIGHT)
    for at in range(FIRST_SCORES):
        assert state.side is DriftSide.LEARNING
        state = observe_value(state, float(at % 2), at)
    assert state.interval and state.interval.low < 0.5 < state.interval.high
    assert state.count == 0


def worker(*skills):
    return Worker(id=WorkerId("a"), model="m", skills=skills)


def test_the_card_s_interval_is_of_what_was_measured_here_alone():
    measured = Skill(family="x", share=0.8, questions=100)
    board = Skill(family="y", share=0.1, questions=1000, board="some board")
    believed = Skill(family="z", share=0.2)
    interval = card_interval(worker(measured, board, believed))
    assert interval and interval.low < 0.8 < interval.high and interval.low > 0.65
    assert card_interval(worker(board, believed)) is None
    both = card_interval(worker(measured, Skill(family="w", share=0.4, questions=300)))
    assert both and both.low < 0.5 < both.high


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_card_of_nothing_or_everything_right_raises_no_alarm_by_itself(share):
    interval = card_interval(worker(Skill(family="x", share=share, questions=50)))
    state = begin_drift(DriftKind.RIGHT, interval)
    for at in range(1_000):
        state = observe_value(state, share, at)
    assert state.side is DriftSide.WITHIN
