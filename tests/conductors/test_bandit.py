"""The bandit over ways to answer: its law, its caution, its memory of chances."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from batuta.conductors.bandit import ArmStats, choose_arm, find_best_arm

counts = st.integers(0, 200)
stats = st.builds(lambda right, wrong: ArmStats(right, right + wrong), counts, counts)


@given(st.lists(stats, min_size=1, max_size=6), st.floats(0, 1), st.integers(0, 99))
def test_a_choice_is_an_arm_and_its_chance_is_one(arms, share, seed):
    choice = choose_arm(arms, share, Random(seed))
    assert 0 <= choice.index < len(arms)
    assert 0 < choice.propensity <= 1 + 1e-9
    assert choice.explored == (choice.index != find_best_arm(arms))


@given(st.lists(stats, min_size=1, max_size=6), st.integers(0, 99))
def test_without_a_share_the_best_is_run_always(arms, seed):
    choice = choose_arm(arms, 0.0, Random(seed))
    assert (choice.index, choice.explored, choice.propensity) == (find_best_arm(arms), False, 1.0)


def test_another_takes_the_first_one_s_place_only_with_certainty():
    assert find_best_arm([ArmStats(), ArmStats(9, 9)]) == 0
    assert find_best_arm([ArmStats(5, 20), ArmStats(11, 20)]) == 1
    assert find_best_arm([ArmStats(10, 20), ArmStats(12, 20)]) == 0


def test_choices_come_as_often_as_is_said():
    arms, rng = [ArmStats(8, 10), ArmStats(7, 10), ArmStats(1, 10)], Random(5)
    drawn = [choose_arm(arms, 0.5, rng) for _ in range(200)]
    for place in range(3):
        said = [one.propensity for one in drawn if one.index == place]
        if said:
            assert abs(len(said) / 200 - sum(said) / len(said)) < 0.1
