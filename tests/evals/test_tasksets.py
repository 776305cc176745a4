"""What is asked: names, files, bad lines, grades."""

import json

import pytest

from batuta.core import Task, TaskId
from batuta.errors import ConfigError
from batuta.evals import open_tasks
from batuta.evals.marking import mark
from batuta.evals.tasksets import family, read_tasks
from batuta.rehearsal import FAMILIES

pytestmark = pytest.mark.anyio


class TestRehearsal:
    @pytest.mark.parametrize(
        ("name", "families", "held_out"),
        [
            ("rehearsal", set(FAMILIES), False),
            ("rehearsal:held-out", set(FAMILIES), True),
            ("rehearsal:facts", {"facts"}, False),
            ("rehearsal:mixed:held-out", {"mixed"}, True),
        ],
    )
    def test_names(self, name, families, held_out):
        found = open_tasks(name, 30, 40)
        assert len(found.tasks) == 30
        assert {family(task) for task in found.tasks} == families
        assert all(("held-out wording" in task.tags) == held_out for task in found.tasks)
        assert not any("held-out wording" in task.tags for task in found.calibration)

    def test_calibration_is_of_training_families_and_of_other_questions(self):
        found = open_tasks("rehearsal:mixed", 40, 60)
        assert {family(task) for task in found.calibration} == set(FAMILIES)
        own = open_tasks("rehearsal:lists", 300, 300)
        assert {family(task) for task in own.calibration} == {"lists"}
        assert not {t.id for t in own.tasks} & {t.id for t in own.calibration}

    def test_every_question_is_there_once_and_the_same_again(self):
        found = open_tasks("rehearsal", 500, 10)
        assert len({task.id for task in found.tasks}) == 500
        assert open_tasks("rehearsal", 500, 10).tasks == found.tasks
        assert open_tasks("rehearsal", 20, 10, seed=1).tasks != found.tasks[:20]
        assert open_tasks("rehearsal", 20, 10).tasks == found.tasks[:20]

    @pytest.mark.parametrize("name", ["rehearsal:opera", "rehearsal:facts:lists", "rehearsal:"])
    def test_an_unknown_family_is_told_with_the_known_ones(self, name):
        with pytest.raises(ConfigError, match=r"there are no tasks .* arithmetic"):
            open_tasks(name, 5, 5)

    async def test_its_own_grade(self):
        found = open_tasks("rehearsal", 1, 1)
        task = found.tasks[0]
        assert (await found.grade(task, f"Answer: {task.target}")).score == 1
        assert (await found.grade(task, "Answer: something else")).score == 0


def write(tmp_path, *lines):
    path = tmp_path / "own.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return path


class TestFiles:
    def test_a_file(self, tmp_path):
        path = write(
            tmp_path,
            {"question": "Two and two?", "answer": 4},
            "",
            {
                "id": "q2",
                "question": "Capital?",
                "answer": "Paris",
                "grader": "contains",
                "tags": ["geo"],
                "difficulty": 2,
            },
            {"question": "A half?", "answer": "0.5"},
        )
        one, two, three = read_tasks(path)
        assert (one.target, one.grader, one.tags, one.difficulty) == ("4", "integer", (), None)
        assert two == Task(TaskId("q2"), "Capital?", "Paris", "contains", ("geo",), 2.0)
        assert three.grader == "exact"
        assert one.id and one.id == read_tasks(path)[0].id
        assert (family(one), family(two)) == ("all", "geo")

    def test_questions_past_the_limit_are_for_calibration(self, tmp_path):
        path = write(tmp_path, *({"question": f"{n}?", "answer": n} for n in range(10)))
        found = open_tasks(str(path), 6, 3)
        assert [t.target for t in found.tasks] == list("012345")
        assert [t.target for t in found.calibration] == list("678")
        assert open_tasks(str(path), 10, 3).calibration == ()
        assert found.name == "own.jsonl"

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("{", "line 2: Invalid JSON"),
            ("[1]", "line 2: "),
            ('{"question": "q"}', "line 2: answer: Field required"),
            ('{"question": "", "answer": "a"}', "line 2: question: "),
            ('{"question": "q", "answer": ""}', "line 2: the answer is empty"),
            ('{"question": "q", "answer": null}', "line 2: answer: "),
            ('{"question": "q", "answer": true}', "line 2: answer: "),
            ('{"question": "q", "answer": "a", "grader": "vibes"}', "line 2: grader: "),
            (
                '{"question": "q", "answer": "a", "grader": "integer"}',
                "line 2: the answer 'a' is no integer",
            ),
            ('{"question": "q", "answer": "a", "dificulty": 2}', "line 2: dificulty: "),
            ('{"question": "q", "answer": "a", "tags": "x"}', "line 2: tags: "),
            ('{"question": "first", "answer": "a"}', "line 2: a task with the id"),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path, line, words):
        path = write(tmp_path, {"question": "first", "answer": "1"}, line)
        with pytest.raises(ConfigError) as caught:
            read_tasks(path)
        assert words in str(caught.value) and str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_no_file_no_text_no_questions(self, tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            open_tasks(str(tmp_path / "none.jsonl"), 5, 5)
        with pytest.raises(ConfigError, match="has no questions"):
            read_tasks(write(tmp_path, "", " "))
        (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match="not UTF-8"):
            read_tasks(tmp_path / "bytes.jsonl")


@pytest.mark.parametrize(
    ("grader", "target", "answer", "score"),
    [
        ("integer", "1200", "So it is 1,200.\nAnswer: 1,200", 1),
        ("integer", "42", "Answer: 42.0", 1),
        ("integer", "42", "The answer is 42 apples.", 1),
        ("integer", "-3", "Answer: -3", 1),
        ("integer", "42", "Answer: 4.2", 0),
        ("integer", "42", "Answer: none", 0),
        ("integer", "42", "42 or so\nAnswer: 41", 0),
        ("exact", "Paris", "Thinking…\nAnswer: paris.", 1),
        ("exact", "0.5", "0.5", 1),
        ("exact", "Paris", "Answer: Paris, France", 0),
        ("contains", "Paris", "It is PARIS, of course.", 1),
        ("contains", "Paris", "It is Lyon.", 0),
        ("exact", "x", "  ", 0),
    ],
)  # fmt: skip
async def test_grades(grader, target, answer, score):
    task = Task(TaskId("t"), "q", target, grader)
    assert (await mark(task, answer)).score == score
