"""Reasoning Gym as a source."""

import random
from decimal import getcontext, localcontext

import pytest

from batuta.errors import SourceError
from batuta.lab.tasks.datasets import load_tasks, reasoning_gym

pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")

FAMILIES = ("leg_counting", "chain_sum", "word_sorting", "sudoku", "tower_of_hanoi")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_tasks_and_the_gold_answer_is_right(family):
    tasks = reasoning_gym.generate_tasks(family, 3, seed=5)
    assert tasks == reasoning_gym.generate_tasks(family, 3, seed=5)
    assert {task.id for task in tasks}.isdisjoint(
        {task.id for task in reasoning_gym.generate_tasks(family, 3, seed=6)}
    )
    for task in tasks:
        assert task.grader == reasoning_gym.NAME
        assert reasoning_gym.score_answer(task, task.target).score == 1.0
        assert reasoning_gym.score_answer(task, "surely not this").score < 0.5


def test_by_name():
    tasks = load_tasks("reasoning-gym:chain_sum", size=4, seed=1)
    assert tasks == reasoning_gym.generate_tasks("chain_sum", 4, 1)
    assert tasks[0].id.startswith("reasoning-gym/chain_sum/")


def test_parameters_are_the_generators_own():
    (short,) = reasoning_gym.generate_tasks("chain_sum", 1, 1, {"min_terms": 2, "max_terms": 2})
    assert short.question.count("+") + short.question.count("-") == 1
    with pytest.raises(SourceError, match="refuses chain_sum"):
        reasoning_gym.generate_tasks("chain_sum", 1, 1, {"no_such": 1})


def test_unknown_and_left_out_families_are_refused():
    for family in ("nope", "composite", "arc_agi", "countdown", "game_of_life_halting"):
        assert family not in reasoning_gym.generator_names()
        with pytest.raises(SourceError, match="has no generator"):
            reasoning_gym.generate_tasks(family, 1)


def test_what_cannot_be_repeated_is_tagged():
    assert "unrepeatable" in reasoning_gym.generate_tasks("word_ladder", 1)[0].tags
    assert "unrepeatable" not in reasoning_gym.generate_tasks("chain_sum", 1)[0].tags


def test_the_shared_random_numbers_are_left_alone():
    random.seed(3)
    expected = random.random()
    random.seed(3)
    reasoning_gym.generate_tasks("sudoku", 1, 1)
    assert random.random() == expected


def test_every_question_of_a_generator_becomes_a_task():
    assert len(reasoning_gym.generate_tasks("gsm_symbolic", 60)) == 60


@pytest.mark.parametrize("answer", ["1e30000000", " -1E999999999", ".5e+99999"])
def test_a_number_that_nobody_could_write_out_is_wrong_at_once(answer):
    (task,) = reasoning_gym.generate_tasks("coin_flip", 1)
    assert reasoning_gym.score_answer(task, answer).score == 0
    assert reasoning_gym.score_answer(task, "1e-999").score < 1


@pytest.mark.slow
@pytest.mark.parametrize("family", reasoning_gym.generator_names())
def test_no_scorer_calls_every_answer_right(family):
    for task in reasoning_gym.generate_tasks(family, 3, 1):
        assert reasoning_gym.score_answer(task, "surely not this").score < 1


@pytest.mark.slow
@pytest.mark.parametrize("family", reasoning_gym.generator_names())
def test_no_scorer_hangs_or_runs_what_an_answer_says(tmp_path, family):
    mark = tmp_path / "mark"
    touch = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    (task,) = reasoning_gym.generate_tasks(family, 1, 1)
    for answer in ("", "(((", "9**9**9**9", "1e99999999", touch, f"[{touch}]", f"x = {touch}"):
        assert 0.0 <= reasoning_gym.score_answer(task, answer).score <= 1.0
    assert not mark.exists()


def test_dollars_keep_their_digits_while_and_after_decimals_are_drawn():
    with localcontext(prec=28):
        (task,) = reasoning_gym.generate_tasks("decimal_arithmetic", 1, 1)
        reasoning_gym.score_answer(task, task.target)
        assert getcontext().prec == 28
