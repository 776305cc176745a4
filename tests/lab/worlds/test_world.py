"""Questions, their wordings and their answers; and what the world claims to be."""

import ast
import datetime as dt
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.lab.worlds import (
    HELD_OUT_FAMILY,
    TRAINING_FAMILIES,
    draw_tasks,
    grade_answer,
    hand_written_conductor,
    read_problem,
    rehearsal_pool,
    render_question,
)
from batuta.lab.worlds.grammar import HELD_OUT_STYLES, question_families
from batuta.lab.worlds.problem import (
    WORDINGS_PER_KIND,
    Problem,
    ProblemStep,
    format_value,
    misread_step,
    perturb_value,
    phrase_step,
    read_step,
    read_value,
    solve_problem,
    step_kinds,
)
from batuta.lab.worlds.profiles import PROFILES
from batuta.lab.worlds.world2.questions import read_world2_question
from lab.worlds import measurement, workflow_search

ALL = (*TRAINING_FAMILIES, HELD_OUT_FAMILY)


@given(st.sampled_from(ALL), st.integers(1, 6), st.integers(0, 10**9))
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_every_wording_reads_back(name, difficulty, seed):
    rng, problem = Random(seed), None
    while problem is None:
        problem = question_families()[name].draw(rng, difficulty)
    wording = [rng.randrange(WORDINGS_PER_KIND) for _ in problem.ops]
    for style in range(len(question_families()[name].styles)):
        assert (
            read_problem(render_question(problem, style))
            == read_problem(render_question(problem, style, wording))
            == problem
        )


@pytest.mark.parametrize("name", ALL)
def test_at_least_four_wordings_to_train_and_two_held_out(name):
    assert HELD_OUT_STYLES == 2
    assert len(question_families()[name].styles) >= 4 + HELD_OUT_STYLES


def test_every_step_has_words_that_read_back():
    rng = Random(1)
    for kind in step_kinds().values():
        op = kind.draw(rng)
        assert len(set(kind.phrases)) == WORDINGS_PER_KIND
        assert all(read_step(phrase_step(op, number)) == op for number in range(WORDINGS_PER_KIND))


def test_no_step_is_worded_in_training_as_it_is_held_out():
    for task in draw_tasks(None, 300, 2):
        for op in read_problem(task.question).ops:
            assert phrase_step(op, WORDINGS_PER_KIND - 1).lower() not in task.question.lower()


@given(st.text(max_size=80))
def test_any_text_is_a_problem_or_none(text):
    assert read_problem(text) is None or solve_problem(read_problem(text)) is not False  # pyright: ignore[reportArgumentType]


def test_values_read_back_and_slips_are_wrong():
    for task in draw_tasks(None, 200, 3):
        problem = read_problem(task.question)
        value = solve_problem(problem)  # pyright: ignore[reportArgumentType]
        assert read_value(format_value(value)) == value  # pyright: ignore[reportArgumentType]
        assert perturb_value(value, 0.5) != value  # pyright: ignore[reportArgumentType]
        before = solve_problem(replace(problem, ops=problem.ops[:-1]))  # pyright: ignore[reportArgumentType]
        if problem.family != "facts" and before is not None and problem.ops[:-1]:
            assert misread_step(problem.ops[-1], before, 0.3) != value


def test_arithmetic_by_independent_computation():
    for task in draw_tasks("arithmetic", 200, 5):
        problem = read_problem(task.question)
        expression = str(problem.start)
        forms = {
            "add": "({} + {})", "subtract": "({} - {})", "multiply": "({} * {})",
            "divide": "({} // {})", "remainder": "({} % {})",
            "square": "(({0}) ** 2)", "double": "({0} * 2)",
        }  # fmt: skip
        for op in problem.ops:
            expression = forms[op.kind].format(expression, *op.args)
        assert str(eval(expression)) == task.target  # noqa: S307


def test_known_answers():
    asked = {
        "Start with the list [3, 1, 2]. Reverse it. Add 2 to each item. What is the result?": "[4, 3, 5]",
        'Start with the text "amber anchor". Reverse the letters of every word. What text do you get?': "rebma rohcna",
        "Start from 28 February 2024. Go 2 days forward. Name the weekday. What do you get?": "Friday",
        "Start from 3 hours. Express it in minutes. Add 20 minutes. What do you get?": "200",
        "Start with 7. Add 3. What number do you get?": "10",
    }
    for question, answer in asked.items():
        assert format_value(solve_problem(read_problem(question))) == answer  # pyright: ignore[reportArgumentType]
    assert dt.date(2024, 3, 1).strftime("%A") == "Friday"


def test_tasks_are_fresh_and_repeatable():
    once, again, other = draw_tasks(None, 60, 1), draw_tasks(None, 60, 1), draw_tasks(None, 60, 2)
    assert once == again
    assert not {task.id for task in once if task.difficulty > 2} & {task.id for task in other}
    assert all(task.difficulty == 4 for task in draw_tasks("text", 9, 1, difficulty=4))
    assert {task.question for task in draw_tasks("lists", 30, 1, held_out=True)}.isdisjoint(
        task.question for task in draw_tasks("lists", 30, 1)
    )


TESTS = str(Path(__file__).parents[2])
PROGRAM = """
from batuta.lab.worlds import draw_tasks, rehearsal_pool
from lab.worlds.workflow_search import hand_written_writer, run_workflow
from hashlib import sha256
digest = sha256()
for task in draw_tasks(None, 40, 11):
    digest.update(repr(task).encode())
    digest.update(run_workflow(hand_written_writer(rehearsal_pool())(task), task).encode())
print(digest.hexdigest())
"""


def test_the_same_in_every_process():
    said = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": TESTS},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Step 1, add 3: 7 -> 10\nAnswer: 10", 1), ("**Answer: 10**", 1), ("the answer is 10.", 1),
        ("10", 1), ("Answer: 11", 0), ("", 0), ("Answer: 11\nAnswer: 10", 1), ("Answer: ten", 0),
    ],
)  # fmt: skip
def test_grading(answer, score):
    task = next(t for t in draw_tasks("arithmetic", 1, 1, difficulty=1))
    task = replace(task, target="10", grader="integer")
    assert grade_answer(task, answer).score == score


def test_grading_of_lists_names_and_texts():
    lists = next(t for t in draw_tasks("lists", 50, 1) if t.grader == "list")
    assert grade_answer(lists, f"Answer: {tuple(ast.literal_eval(lists.target))}").score == 1
    name = next(t for t in draw_tasks("facts", 50, 1) if t.grader == "name")
    assert grade_answer(name, f"It is so. Answer: the {name.target.upper()}.").score == 1
    text = next(t for t in draw_tasks("text", 50, 1) if t.grader == "exact")
    assert grade_answer(text, f'Answer: "{text.target}"').score == 1
    assert grade_answer(text, "").score == 0


@pytest.fixture(scope="module")
def asked():
    return measurement.draw_questions(24, 3)


@pytest.fixture(scope="module")
def singles(asked):
    return [
        measurement.measure_row(
            p.name,
            measurement.constant_writer(workflow_search.single_worker_workflow(p.name)),
            asked,
        )
        for p in PROFILES
    ]


@pytest.fixture(scope="module")
def others(asked, singles):
    best = max(singles, key=lambda row: row.overall).name
    rows = measurement.fixed_rows(best, asked) + measurement.conditioned_rows(singles, asked, 3)
    return {row.name: row for row in rows}


def test_no_worker_is_best_everywhere(singles):
    assert len({measurement.best_row_name(singles, family) for family in ALL}) >= 4
    assert 0.38 <= max(row.overall for row in singles) <= 0.6


def test_strength_is_as_measured(singles):
    for row in singles:
        assert rehearsal_pool()[row.name].strength == pytest.approx(row.overall, abs=0.08)


def test_looking_at_the_question_pays(singles, others):
    best = max(row.overall for row in singles)
    assert others["random workflows"].overall < best - 0.12
    assert others["router that knows the family"].overall > best + 0.05
    assert others["hand-written conductor"].overall > best + 0.15
    assert others["hand-written conductor"].overall > others["router that knows the family"].overall


def test_checking_oneself_does_not_help_much(singles, others):
    best = max(row.overall for row in singles)
    assert others["solve, then verify 4x, by the best"].overall < best + 0.07
    assert others["vote of 5 by the best"].overall < best + 0.08


def test_chains_that_make_no_sense_fail(others):
    assert others["plan as the last step"].overall < 0.05
    assert others["verify nothing"].overall < 0.05


def test_easy_questions_want_one_step_and_hard_ones_more(asked):
    easy = [t for t in asked["arithmetic", 0] + asked["calendar", 0] if t.difficulty <= 2]
    router = {
        "arithmetic": workflow_search.single_worker_workflow("cello"),
        "calendar": workflow_search.single_worker_workflow("viola"),
    }
    assert workflow_search.measure_accuracy(lambda t: router[t.tags[1]], easy) > 0.85
    hard = asked["calendar", 2]
    written = workflow_search.measure_accuracy(
        workflow_search.hand_written_writer(rehearsal_pool()), hard
    )
    assert (
        written
        > workflow_search.measure_accuracy(measurement.constant_writer(router["calendar"]), hard)
        + 0.2
    )


def test_on_hard_questions_a_third_step_pays_too():
    solve, check_it = (
        ("cello", hand_written_conductor.SOLVE_BY_PLAN, (0,)),
        ("piano", hand_written_conductor.REPAIR, (0, 1)),
    )
    plan = ("piano", hand_written_conductor.PLAN)
    hard = [t for d in (5, 6) for t in draw_tasks("arithmetic", 100, 9, difficulty=d)]
    flows = (
        workflow_search.single_worker_workflow("cello"),
        workflow_search.build_workflow(plan, solve),
        workflow_search.build_workflow(plan, solve, check_it),
    )
    one, two, three = (
        workflow_search.measure_accuracy(measurement.constant_writer(flow), hard) for flow in flows
    )
    assert two > one + 0.2
    assert three > two + 0.07


def test_on_long_chains_of_facts_every_look_up_pays():
    hard = [t for d in (4, 5, 6) for t in draw_tasks("facts", 100, 9, difficulty=d)]
    looks = [(name, hand_written_conductor.LOOK_UP) for name in ("tuba", "piano")]
    reached = [
        workflow_search.measure_accuracy(
            measurement.constant_writer(
                workflow_search.build_workflow(
                    *looks[:n], ("harp", hand_written_conductor.SOLVE_FROM_FACTS, tuple(range(n)))
                )
            ),
            hard,
        )
        for n in range(3)
    ]
    assert reached[1] > reached[0] + 0.15
    assert reached[2] > reached[1] + 0.05


def test_who_had_to_guess_says_so_first():
    task = draw_tasks("facts", 1, 9, difficulty=6)[0]
    said = {
        name: workflow_search.run_workflow(workflow_search.single_worker_workflow(name), task)
        for name in ("oboe", "flute")
    }
    assert "(a guess)" in said["oboe"]
    assert said["oboe"].startswith("I had to guess a fact.\n")
    assert "guess" not in said["flute"]


def test_search_finds_a_good_workflow():
    found = workflow_search.search_workflow(measurement.draw_questions(40, 5)["lists", 1], 1, 160)
    fresh = measurement.draw_questions(80, 6)["lists", 1]
    assert workflow_search.measure_accuracy(measurement.constant_writer(found), fresh) > 0.75
    assert (
        workflow_search.measure_accuracy(
            measurement.constant_writer(workflow_search.single_worker_workflow("harp")), fresh
        )
        < 0.6
    )


@pytest.mark.parametrize("count", [20, 100])
def test_a_number_that_outgrows_every_question_ends_the_working(count):
    began = time.process_time()
    squares = (ProblemStep("square"),) * count
    assert solve_problem(Problem("arithmetic", 45, squares)) is None
    of_items = (ProblemStep("squares"),) * count
    assert solve_problem(Problem("lists", (1, 20), of_items)) is None
    assert solve_problem(Problem("arithmetic", 45, squares[:8])) == 45**256
    assert time.process_time() - began < 1


def test_a_long_text_is_no_question_and_takes_no_time():
    began = time.process_time()
    assert read_problem("Compute the result: begin at " + "4; " * 30_000) is None
    assert read_world2_question("Encrypt " + "x with a Caesar shift of " * 30_000) is None
    assert time.process_time() - began < 1
