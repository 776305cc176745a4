"""Intervals and differences: laws, and how often they are right."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core.intervals import wilson_interval
from batuta.lab.evals.stats import (
    bootstrap_interval,
    correct_p_values,
    mcnemar_p_value,
    mean_or_none,
    paired_difference,
    score_interval,
)

shares = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
scores = st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=3), min_size=1, max_size=40)  # fmt: skip
few = settings(max_examples=25, deadline=None)
slow = settings(deadline=None)
"""On a busy machine."""


@slow
@given(shares)
def test_wilson_holds_the_share_and_never_leaves_it_certain(share):
    right, n = share
    low, high = wilson_interval(right, n)
    assert 0 <= low <= right / n <= high <= 1
    assert high > low
    assert wilson_interval(n - right, n) == pytest.approx((1 - high, 1 - low))


@slow
@given(st.integers(0, 50))
def test_wilson_narrows_with_more_questions(right):
    low, high = wilson_interval(right, 50)
    lower, higher = wilson_interval(4 * right, 200)
    assert higher - lower < high - low


@pytest.mark.parametrize(("right", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_what_is_no_share_is_refused(right, n):
    with pytest.raises(ValueError, match="not a proportion"):
        wilson_interval(right, n)


def test_wilson_by_the_book():
    assert wilson_interval(15, 100) == pytest.approx((0.0931, 0.2328), abs=5e-4)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.85])
def test_wilson_covers_the_truth_as_often_as_it_says(share):
    rng, n, hits, draws = Random(7), 60, 0, 4000
    for _ in range(draws):
        low, high = wilson_interval(sum(rng.random() < share for _ in range(n)), n)
        hits += low <= share <= high
    assert 0.93 < hits / draws < 0.98


def test_the_bootstrap_covers_the_truth_of_several_runs_a_question():
    rng, hits, draws = Random(3), 0, 120
    for seed in range(draws):
        groups = []
        for _ in range(40):
            skill = rng.random()
            groups.append([float(rng.random() < skill) for _ in range(3)])
        low, high = bootstrap_interval(groups, seed)
        hits += low <= 0.5 <= high
    assert 0.88 < hits / draws <= 1


@few
@given(scores)
def test_an_interval_is_in_bounds_repeatable_and_holds_the_mean(groups):
    low, high = score_interval(groups, 5)
    assert (low, high) == score_interval(groups, 5)
    average = mean_or_none([score for group in groups for score in group])
    assert 0 <= low <= average + 1e-9 and average - 1e-9 <= high <= 1


def test_several_runs_of_a_question_are_not_several_questions():
    once = [[1.0], [0.0]] * 20
    thrice = [[1.0] * 3, [0.0] * 3] * 20
    width = score_interval(once)[1] - score_interval(once)[0]
    assert score_interval(thrice)[1] - score_interval(thrice)[0] == pytest.approx(width, rel=0.15)


def test_where_all_are_right_the_interval_still_has_a_width():
    low, high = score_interval([[1.0, 1.0]] * 10)
    assert high == 1 and low < 0.8


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        score_interval([])
    assert mean_or_none([]) is None


def once(scores):
    """Each question run once."""
    return {(question, 0): score for question, score in scores.items()}


pairs = st.dictionaries(st.sampled_from("abcdefghij"), st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1)  # fmt: skip


@few
@given(pairs)
def test_a_difference_is_the_other_ones_negative(both):
    ours, theirs = (once({k: v[i] for k, v in both.items()}) for i in (0, 1))
    there, back = paired_difference(ours, theirs, seed=2), paired_difference(theirs, ours, seed=2)
    assert there.mean == pytest.approx(-back.mean)
    assert there.low == pytest.approx(-back.high)
    assert 0 < there.p <= 1
    assert there.low - 1e-9 <= there.mean <= there.high + 1e-9


def test_a_difference_counts_common_questions_only():
    found = paired_difference(
        once({"a": 1.0, "b": 0.0, "x": 1.0}), once({"a": 0.0, "b": 0.0, "y": 1.0})
    )
    assert found.questions == 2 and found.mean == 0.5
    assert paired_difference(once({"a": 1.0}), once({"b": 1.0})) is None


def test_a_difference_weighs_runs_as_the_table_does_and_resamples_questions():
    """Question a was drawn four times, b once: 4 of 5 runs against 1 of 5 are 60 points."""
    ours = {**{("a", seed): 1.0 for seed in range(4)}, ("b", 0): 0.0}
    theirs = {**{("a", seed): 0.0 for seed in range(4)}, ("b", 0): 1.0}
    found = paired_difference(ours, theirs)
    assert found.mean == pytest.approx(
        mean_or_none(list(ours.values())) - mean_or_none(list(theirs.values()))
    )
    assert (found.questions, found.test) == (2, "paired bootstrap")
    assert (found.low, found.high) == (-1, 1)


def test_equal_systems_do_not_differ_and_unequal_ones_do():
    same = {str(n): float(n % 2) for n in range(50)}
    assert paired_difference(once(same), once(same)).p == 1
    better = {**same, **{str(n): 1.0 for n in range(40)}}
    found = paired_difference(once(better), once(same))
    assert found.p < 0.01 and found.low > 0


@slow
@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemars_test_is_symmetric_and_a_chance(wins, losses):
    p = mcnemar_p_value(wins, losses)
    assert 0 < p <= 1 and p == pytest.approx(mcnemar_p_value(losses, wins))
    assert mcnemar_p_value(wins + 1, losses) <= p or wins < losses


def test_mcnemar_by_the_book():
    assert mcnemar_p_value(0, 5) == pytest.approx(2 / 32)
    assert mcnemar_p_value(59, 6) == pytest.approx(4.965e-12, rel=0.001)
    assert mcnemar_p_value(7, 7) == 1


@few
@given(st.integers(1, 20))
def test_asking_few_questions_again_proves_no_more_than_their_exact_test(count):
    """Otherwise two questions of two runs each would show a difference with p = 0.0002."""
    once = {(f"q{n}", 0): 1.0 for n in range(count)}
    again = once | {(question, 1): 1.0 for question, _ in once}
    known = paired_difference(once, dict.fromkeys(once, 0.0))
    found = paired_difference(again, dict.fromkeys(again, 0.0))
    assert (known.test, found.test) == ("McNemar", "paired bootstrap")
    assert found.p >= known.p * (1 - 1e-9)
    families = {question: question for question, _ in once}
    grouped = paired_difference(once, dict.fromkeys(once, 0.0), families)
    assert grouped is None or grouped.p >= known.p * (1 - 1e-9)


def test_right_and_wrong_questions_are_tested_by_mcnemar_and_others_by_the_bootstrap():
    right, wrong = (once(dict.fromkeys("abcdef", score)) for score in (1.0, 0.0))
    assert paired_difference(right, wrong).test == "McNemar"
    assert paired_difference(right, wrong).p == pytest.approx(2 / 64)
    assert paired_difference({**right, ("a", 0): 0.5}, wrong).test == "paired bootstrap"
    assert paired_difference(right, wrong, {q: q for q in "abcdef"}).test == "paired bootstrap"
    assert paired_difference(right, wrong, dict.fromkeys("abcdef", "one family")) is None


def test_questions_of_one_family_are_not_independent():
    rng = Random(1)
    families = {str(n): str(n // 20) for n in range(200)}
    gain = {family: rng.choice([-1.0, 1.0]) for family in set(families.values())}
    ours = {question: gain[family] for question, family in families.items()}
    theirs = dict.fromkeys(families, 0.0)
    alone, together = (
        paired_difference(once(ours), once(theirs), groups) for groups in (None, families)
    )
    assert together.mean == pytest.approx(alone.mean)
    assert together.high - together.low > 3 * (alone.high - alone.low)


def test_holm_corrects_the_smallest_for_all_and_never_turns_the_order():
    one = paired_difference(once({"a": 1.0}), once({"a": 0.0}))
    found = correct_p_values(
        {n: replace(one, p=p) for n, p in {"x": 0.01, "y": 0.04, "z": 0.03}.items()}  # pyright: ignore[reportArgumentType]
    )
    assert {n: d.p_corrected for n, d in found.items()} == pytest.approx(
        {"x": 0.03, "y": 0.06, "z": 0.06}
    )
