"""Tricky answers with the verdict of a careful person: exact numbers of misses and false accepts."""

import json
from collections import Counter
from pathlib import Path

import pytest

from batuta.tasks.graders import Choice, FreeForm, Maths
from batuta.tasks.graders.latex import plain

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
    counts, wrong = await verdicts(rows, lambda _: Maths(pool))
    assert counts == {"right": 277}, wrong


async def test_choice_reads_every_answer_and_guesses_none():
    rows = cases("choice")
    assert len(rows) == 103
    counts, wrong = await verdicts(rows, lambda row: Choice(row.get("options", ())))
    assert counts == {"right": 103}, wrong


async def test_freeform_decides_what_can_be_decided(pool):
    rows = cases("freeform")
    assert len(rows) == 92
    assert Counter(row["score"] for row in rows) == {1: 51, 0: 27, None: 14}
    counts, wrong = await verdicts(rows, lambda _: FreeForm(pool))
    assert counts == {"right": 92}, wrong


async def test_every_target_of_maths_is_right_as_an_answer(pool):
    for row in cases("maths"):
        target = row["target"]
        grade = await Maths(pool).grade(f"It is $\\boxed{{{target}}}$.", target)
        assert grade.score == 1, target


@pytest.mark.parametrize("name", ["maths", "freeform"])
def test_one_spelling_stays_as_it_is(name):
    for row in cases(name):
        once = plain(row["target"])
        assert plain(once) == once, row["target"]
