"""Which of two systems is nominated: what the search expected, and what paired questions say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.lab.tune.selection import prefer_simpler
from batuta.lab.tune.stages import TuneStage, stage_ends

GAINS = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=8, max_size=80)


def test_forty_questions_outweigh_an_expectation_that_says_nearly_nothing():
    lost = [-1.0] * 8 + [1.0] * 2 + [0.0] * 30  # 15 points fewer right
    assert not prefer_simpler(lost, 0.005)
    won = [-gain for gain in lost]
    assert prefer_simpler(won, 0.005) and prefer_simpler(won, 0.03)


def test_without_enough_questions_the_finer_one_stays():
    assert not prefer_simpler([1.0] * 7, -0.1)


def test_where_both_did_the_same_the_simpler_one_needs_no_lead_to_be_preferred():
    assert prefer_simpler([0.0] * 20, 0.01)
    assert not prefer_simpler([0.0] * 20, 0.05)


def test_one_question_of_twenty_does_not_outweigh_what_the_search_expects():
    assert not prefer_simpler([1.0] + [0.0] * 19, 0.077)
    assert prefer_simpler([1.0] * 4 + [0.0] * 36, 0.077)


@pytest.mark.parametrize("last", list(TuneStage))
@pytest.mark.parametrize("rewrites", [False, True])
def test_nothing_is_kept_back_for_stages_after_the_last(last, rewrites):
    whole = stage_ends(1600, judgement=88, rewrites=rewrites)
    ends = stage_ends(1600, judgement=88, rewrites=rewrites, last=last)
    assert list(ends) == list(TuneStage)[: len(ends)] and list(ends)[-1] is last
    assert list(ends.values()) == sorted(ends.values())
    assert ends[last] == whole[TuneStage.JUDGE]


@given(GAINS, st.floats(-0.2, 0.2), st.floats(0, 0.2))
def test_whoever_expects_more_of_the_finer_one_never_prefers_the_simpler_one_sooner(
    gains, lead, more
):
    spread = max(lead / 2, 0.03)
    if lead + more <= 2 * spread and prefer_simpler(gains, lead + more):  # the same spread
        assert prefer_simpler(gains, lead)
