"""Graders of integers, exact words, JSON and generated tasks."""

import json

import pytest

from batuta.core import Task, TaskId
from batuta.errors import SourceError
from batuta.lab.tasks.graders import ExactGrader, IntegerGrader, JsonSchemaGrader
from batuta.lab.tasks.graders.exact import ReasoningGymGrader
from schemas.hostile import branching, nested, towers

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("answer", "target", "score"),
    [
        ("#### 1,234", "1234", 1),
        ("#### $18.00", "18", 1),
        ("#### 18.5", "18", 0),
        ("#### Step 3\nIt is more.\n\\boxed{7}", "7", 1),
        ("\\boxed{073}", "73", 1),
        (f"Answer: **{'7' * 600}**", "7" * 600, 1),
        (f"Answer: {'7' * 600}8", "7" * 600, 0),
        ("\\boxed{-12}", "12", 0),
        ("\\boxed{x = 18}", "18", 1),
        ("\\boxed{18 \\text{ dollars}}", "18", 1),
        ("\\boxed{12, 18}", "18", 0),
        ("\\boxed{18", "18", 0),
        ("\\boxed{2^{10}}", "1024", 1),
        ("The answer is 18 because 3*6 = 18.", "18", 1),
        ("The answer is 17 or 18.", "18", 0),
        ("The answer is not 18.", "18", 0),
        ("So she pays $43 - $12 = $31 on this trip.", "31", 1),
        ("So she has 31 of the 43 left.", "31", 0),
        ("Sally has 9 books.", "9", 1),
        ("Sally has nine books.", "9", 0),
        ("", "9", 0),
        ("9" * 5000, "9", 0),
    ],
)
async def test_integers(answer, target, score):
    assert (await IntegerGrader().grade(answer, target)).score == score


@pytest.mark.parametrize(
    ("answer", "target", "score"),
    [
        ("I looked at it.\n\n**valid**", "valid", 1),
        ("Valid", "valid", 1),
        ("invalid", "valid", 0),
        ("The answer is: ] ) }", "] ) }", 1),
        ("[1,2]", "[1, 2]", 1),
        ("[2, 1]", "[1, 2]", 0),
        ("'abc'", "'abc'", 1),
        ('"abc"', "'abc'", 1),
        ("'ABC'", "'abc'", 0),
        ("abc", "'abc'", 0),
        ("True", "True", 1),
        ("1", "True", 0),
        ("(" * 5000, "()", 0),
        ("", "valid", 0),
    ],
)
async def test_exact(answer, target, score):
    assert (await ExactGrader().grade(answer, target)).score == score


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("answer", "score", "reason"),
    [
        ('{"name": "Ada", "age": 36}', 1, "fits"),
        ('```json\n{"name": "Ada"}\n```', 1, "fits"),
        ('{"name": "Ada", "age": -1}', 0, "$.age"),
        ('{"name": "Ada", "age": 1.5}', 0, "$.age"),
        ('{"age": 36}', 0, "name"),
        ('{"name": "Ada", "x": 1}', 0, "x"),
        ('Here it is: {"name": "Ada"}', 0, "not JSON"),
        ('{"name": "Ada"', 0, "not JSON"),
        ('{"name": NaN}', 0, "NaN"),
        ("[" * 100_000, 0, "too deep"),
        ("", 0, "not JSON"),
    ],
)
async def test_json(answer, score, reason):
    grade = await JsonSchemaGrader(SCHEMA).grade(answer, "")
    assert (grade.score, reason in grade.reason) == (score, True), grade.reason


def test_a_schema_that_refers_elsewhere_fetches_nothing():
    with pytest.raises(SourceError, match="cannot fetch"):
        JsonSchemaGrader({"$ref": "http://127.0.0.1:9/schema.json"})


async def test_a_schema_without_end_is_not_graded():
    with pytest.raises(SourceError, match="references"):
        JsonSchemaGrader(nested(7))
    with pytest.raises(SourceError, match="too long"):
        await JsonSchemaGrader(branching(7)).grade(towers(), "")


def test_what_is_no_schema_is_refused():
    with pytest.raises(SourceError, match="the JSON schema cannot be used"):
        JsonSchemaGrader({"type": "nothing"})


async def test_a_generated_task_is_scored_by_its_generator():
    pytest.importorskip("reasoning_gym")
    from batuta.lab.tasks.datasets.reasoning_gym import generate_tasks

    for task in generate_tasks("chain_sum", 3):
        grader = ReasoningGymGrader(task)
        assert (await grader.grade(f"<answer>{task.target}</answer>", task.target)).score == 1
        assert (await grader.grade("<answer>no</answer>", task.target)).score < 1
    empty = ReasoningGymGrader(
        Task(id=TaskId("x"), question="q", target="t", grader="reasoning-gym", data=json.dumps({}))
    )
    assert (await empty.grade("", "t")).score == 0
