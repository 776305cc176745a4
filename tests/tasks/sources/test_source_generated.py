"""Reasoning Gym as a source."""

import random

import pytest

from batuta.errors import SourceError
from batuta.tasks.sources import generated, load

pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")

FAMILIES = ("leg_counting", "chain_sum", "word_sorting", "sudoku", "tower_of_hanoi")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_tasks_and_the_gold_answer_is_right(family):
    tasks = generated.generate(family, 3, seed=5)
    assert tasks == generated.generate(family, 3, seed=5)
    assert {task.id for task in tasks}.isdisjoint(
        {task.id for task in generated.generate(family, 3, seed=6)}
    )
    for task in tasks:
        assert task.grader == generated.NAME
        assert generated.score(task, task.target).score == 1.0
        assert generated.score(task, "surely not this").score < 0.5


def test_by_name():
    tasks = load("reasoning-gym:chain_sum", size=4, seed=1)
    assert tasks == generated.generate("chain_sum", 4, 1)
    assert tasks[0].id.startswith("reasoning-gym/chain_sum/")


def test_parameters_are_the_generators_own():
    (short,) = generated.generate("chain_sum", 1, 1, {"min_terms": 2, "max_terms": 2})
    assert short.question.count("+") + short.question.count("-") == 1
    with pytest.raises(SourceError, match="refuses chain_sum"):
        generated.generate("chain_sum", 1, 1, {"no_such": 1})


def test_unknown_and_left_out_families_are_refused():
    for family in ("nope", "composite", "arc_agi", "countdown"):
        assert family not in generated.families()
        with pytest.raises(SourceError, match="has no generator"):
            generated.generate(family, 1)


def test_what_cannot_be_repeated_is_tagged():
    assert "unrepeatable" in generated.generate("word_ladder", 1)[0].tags
    assert "unrepeatable" not in generated.generate("chain_sum", 1)[0].tags


def test_the_shared_random_numbers_are_left_alone():
    random.seed(3)
    expected = random.random()
    random.seed(3)
    generated.generate("sudoku", 1, 1)
    assert random.random() == expected


@pytest.mark.parametrize("family", generated.families())
def test_no_scorer_hangs_or_runs_what_an_answer_says(tmp_path, family):
    mark = tmp_path / "mark"
    touch = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    (task,) = generated.generate(family, 1, 1)
    for answer in ("", "(((", "9**9**9**9", touch, f"[{touch}]", f"x = {touch}"):
        assert 0.0 <= generated.score(task, answer).score <= 1.0
    assert not mark.exists()
