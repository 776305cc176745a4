"""Tricky answers with the verdict of a careful person: exact numbers of misses and false accepts."""

import json
from collections import Counter
from pathlib import Path

import pytest

from batuta.core import Task, TaskId
from batuta.lab.tasks.graders import ChoiceGrader, FreeFormGrader, MathsGrader
from batuta.lab.tasks.graders.latex import normalize_latex

pytestmark = pytest.mark.anyio

CASES = Path(__file__).parents[1] / "cases"


def cases(name):
    lines = (CASES / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


async def verdicts(rows, grader_of):
    """How many cases ended how, and the traps of those that ended wrongly."""
    counts, wrong = Counter(), []
    for row in rows:
        grade = await grader_of(row).grade(row["answer"], row["target"])
        assert grade.score is None or 0 <= grade.score <= 1
        assert grade.reason
        if grade.score == row["score"]:
            counts["right"] += 1
        else:
            kind = {1: "false accept", 0: "miss", None: "undecided"}[grade.score]
            counts[kind] += 1
            wrong.append((kind, row["trap"], row["answer"], row["target"]))
    return counts, wrong


async def test_maths_misses_none_and_accepts_no_wrong_answer(pool):
    rows = cases("maths")
    assert len(rows) == 277
    counts, wrong = await verdicts(rows, lambda _: MathsGrader(pool))
    assert counts == {"right": 277}, wrong


async def test_choice_reads_every_answer_and_guesses_none():
    rows = cases("choice")
    assert len(rows) == 103
    counts, wrong = await verdicts(rows, lambda row: ChoiceGrader(row.get("options", ())))
    assert counts == {"right": 103}, wrong


async def test_freeform_decides_what_can_be_decided(pool):
    rows = cases("freeform")
    assert len(rows) == 92
    assert Counter(row["score"] for row in rows) == {1: 51, 0: 27, None: 14}
    counts, wrong = await verdicts(rows, lambda _: FreeFormGrader(pool))
    assert counts == {"right": 88, "undecided": 4}, wrong


async def test_every_target_of_maths_is_right_as_an_answer(pool):
    for row in cases("maths"):
        target = row["target"]
        grade = await MathsGrader(pool).grade(f"It is $\\boxed{{{target}}}$.", target)
        assert grade.score == 1, target


@pytest.mark.parametrize("name", ["maths", "freeform"])
def test_one_spelling_stays_as_it_is(name):
    for row in cases(name):
        once = normalize_latex(row["target"])
        assert normalize_latex(once) == once, row["target"]


HOSTILE = {
    "maths": (964, {"polar", "permutation"}),
    "choice": (547, {"text of the option"}),
    "freeform": (844, None),
}
"""How many there are, and the traps where one answer or another is missed; a judge decides what is undecided."""


def is_as_wanted(score, wanted):
    return score in wanted if isinstance(wanted, list) else score == wanted


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_answers_are_never_wrongly_accepted_and_seldom_missed(pool, name):
    rows, (size, missed) = cases(f"hostile_{name}"), HOSTILE[name]
    assert len(rows) == size
    makers = {
        "maths": lambda _: MathsGrader(pool),
        "choice": lambda row: ChoiceGrader(row.get("options", ())),
        "freeform": lambda _: FreeFormGrader(pool),
    }
    wrong = []
    for row in rows:
        grade = await makers[name](row).grade(row["answer"], row["target"])
        if not is_as_wanted(grade.score, row["score"]):
            wrong.append((grade.score, row["trap"], row["answer"], row["target"]))
    assert [case for case in wrong if case[0] == 1] == []
    if missed is None:
        assert {score for score, *_ in wrong} <= {None}, wrong
        assert len(wrong) <= 191
        return
    assert {trap for _, trap, *_ in wrong} <= missed, wrong
    assert len(wrong) <= size // 100, wrong


@pytest.mark.parametrize(
    ("said", "answer", "score"),
    [
        ("Give the pair (a, b) in any order.", "(2, 1)", 1),
        ("List the roots as (a, b); order does not matter.", r"\{2, 1\}", 1),
        ("List the roots as (a, b); order doesn't matter.", "2, 1", 1),
        ("Give the pair (a, b) in any order.", "(2, 3)", 0),
        ("Give the pair (a, b) in any order.", "(1, 2, 2)", 0),
        ("Give the ordered pair (a, b).", "(2, 1)", 0),
        ("", "(2, 1)", 0),
    ],
)
async def test_a_tuple_has_no_order_where_the_question_says_so(graders, said, answer, score):
    task = Task(id=TaskId("t"), question=said, target="(1, 2)", grader="math")
    grade = await graders.grader_for(task).grade(f"$\\boxed{{{answer}}}$", task.target)
    assert grade.score == score
