"""What is asked: names, files, bad lines, grades."""

import json

import pytest

from batuta.clients import ScriptedClient
from batuta.core import Task, TaskId
from batuta.errors import ConfigError, SourceError
from batuta.lab.evals import open_tasks
from batuta.lab.evals.grading import grade_by_task, open_answer_grader
from batuta.lab.evals.task_sets import task_family
from batuta.lab.worlds import TRAINING_FAMILIES

pytestmark = pytest.mark.anyio


class TestRehearsal:
    @pytest.mark.parametrize(
        ("name", "families", "held_out"),
        [
            ("rehearsal", set(TRAINING_FAMILIES), False),
            ("rehearsal:held-out", set(TRAINING_FAMILIES), True),
            ("rehearsal:facts", {"facts"}, False),
            ("rehearsal:mixed:held-out", {"mixed"}, True),
        ],
    )
    def test_names(self, name, families, held_out):
        found = open_tasks(name, 30, 40)
        assert len(found.tasks) == 30
        assert {task_family(task) for task in found.tasks} == families
        assert all(("held-out wording" in task.tags) == held_out for task in found.tasks)
        assert not any("held-out wording" in task.tags for task in found.calibration)

    def test_calibration_is_of_training_families_and_of_other_questions(self):
        found = open_tasks("rehearsal:mixed", 40, 60)
        assert {task_family(task) for task in found.calibration} == set(TRAINING_FAMILIES)
        own = open_tasks("rehearsal:lists", 300, 300)
        assert {task_family(task) for task in own.calibration} == {"lists"}
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


def write(path, *lines):
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


class TestFiles:
    def test_questions_past_the_limit_are_for_calibration(self, tmp_path):
        lines = ({"question": f"{n}?", "answer": n} for n in range(10))
        path = write(tmp_path / "own.jsonl", *lines)
        found = open_tasks(str(path), 6, 3)
        assert [t.target for t in found.tasks] == list("012345")
        assert [t.target for t in found.calibration] == list("678")
        assert open_tasks(str(path), 10, 3).calibration == ()
        assert found.name == "own.jsonl" and found.uses_task_graders

    def test_what_is_measured_does_not_calibrate_in_other_letters_either(self, tmp_path):
        texts = ("Add 1 and 2.", "Add 3 and 4.", "ADD 1 AND 2!", "add  3 and 4", "Add 5 and 6.")
        path = write(tmp_path / "own.jsonl", *({"question": q, "answer": 1} for q in texts))
        found = open_tasks(str(path), 2, 2)
        assert [task.question for task in found.calibration] == ["Add 5 and 6."]

    def test_a_family_is_the_first_tag(self, tmp_path):
        lines = ({"question": "a?", "answer": 1}, {"question": "b?", "answer": 1, "tags": ["geo"]})
        found = open_tasks(str(write(tmp_path / "own.jsonl", *lines)), 2, 0)
        assert [found.family(task) for task in found.tasks] == ["all", "geo"]

    @pytest.mark.parametrize("name", ["none.jsonl", "no-such-benchmark", "gsm8k:no-such-split"])
    def test_what_is_not_there_is_told_in_a_sentence(self, name):
        with pytest.raises(SourceError, match=r"no file|no source|no split"):
            open_tasks(name, 5, 5)

    def test_a_line_that_is_no_task_is_named(self, tmp_path):
        path = write(tmp_path / "own.jsonl", {"question": "q", "answer": 1}, {"question": "q"})
        with pytest.raises(SourceError, match=r"task 2 of .*own.jsonl cannot be used"):
            open_tasks(str(path), 5, 5)


class TestBenchmarks:
    @pytest.fixture
    def copy(self, tmp_path):
        rows = [
            {"question": f"What is {n} and {n}?", "answer": f"So.\n#### {2 * n}"} for n in range(40)
        ]
        return write(tmp_path / "gsm8k.jsonl", *rows)

    def test_from_ones_own_copy_some_by_lot_and_others_to_calibrate(self, copy):
        found = open_tasks("gsm8k", 10, 20, files=[copy])
        asked, others = ({task.id for task in part} for part in (found.tasks, found.calibration))
        assert (len(asked), len(others)) == (10, 20) and not asked & others
        assert open_tasks("gsm8k", 10, 20, files=[copy]).tasks == found.tasks
        assert open_tasks("gsm8k", 10, 20, seed=1, files=[copy]).tasks != found.tasks
        assert open_tasks("gsm8k", 100, 20, files=[copy]).calibration == ()

    def test_what_is_measured_does_not_calibrate_in_other_letters_either(self, tmp_path):
        texts = [f"{word} {n} and {n}." for n in range(20) for word in ("Add", "ADD")]
        rows = [{"question": text, "answer": "So.\n#### 1"} for text in texts]
        found = open_tasks("gsm8k", 20, 20, files=[write(tmp_path / "gsm8k.jsonl", *rows)])
        asked, others = (
            {task.question.casefold() for task in part} for part in (found.tasks, found.calibration)
        )
        assert others and not asked & others

    def test_a_family_is_the_part_of_the_benchmark(self, tmp_path):
        row = {"question": "Which?", "choices": ["a", "b"], "answer": 0, "subject": "anatomy"}
        copy = write(tmp_path / "mmlu.jsonl", row)
        found = open_tasks("mmlu", 5, 0, files=[copy])
        assert [found.family(task) for task in found.tasks] == ["anatomy"]

    async def test_they_are_graded_by_the_grader_that_each_names(self, copy):
        found = open_tasks("gsm8k", 3, 0, files=[copy])
        async with open_answer_grader(found.tasks) as grade:
            for task in found.tasks:
                assert (await grade(task, f"The answer is {task.target}.")).score == 1
                assert (await grade(task, f"The answer is {int(task.target) + 1}.")).score == 0

    async def test_a_grader_that_cannot_be_had_is_told_before_anything_is_run(self):
        for grader, words in (("vibes", "choose among: "), ("judge", "name a worker as the judge")):
            with pytest.raises(ConfigError, match=words):
                async with open_answer_grader(
                    [Task(id=TaskId("t"), question="q", target="a", grader=grader)]
                ):
                    pass

    @pytest.mark.parametrize(
        ("grader", "target", "data"),
        [
            ("integer", "a dozen", ""),
            ("choice", "Paris", ""),
            ("choice", "C", '{"options": ["Rome", "Paris"]}'),
            ("json-schema", "", '{"type": "objectt"}'),
            ("instructions", "", '{"instructions": [{"id": "punctuation:no_comma"}]}'),
        ],
    )
    async def test_each_question_that_cannot_be_graded_is_named_before_anything_is_run(
        self, grader, target, data
    ):
        fits = {
            "integer": ("12 eggs", ""),
            "choice": ("(b)", ""),
            "json-schema": ("", "{}"),
            "instructions": (
                "",
                '{"instructions": [{"id": "punctuation:no_comma", "arguments": {}}]}',
            ),
        }
        bad = Task(id=TaskId("own/7"), question="q", target=target, grader=grader, data=data)
        well, given = fits[grader]
        good = Task(id=TaskId("own/8"), question="q", target=well, grader=grader, data=given)
        async with open_answer_grader([good]):
            pass
        with pytest.raises(SourceError, match="own/7"):
            async with open_answer_grader([bad, good]):
                pass

    async def test_programs_run_in_a_sandbox(self):
        data = json.dumps({"tests": "assert double(4) == 8"})
        task = Task(
            id=TaskId("t"), question="Write double.", target="", grader="code-assert", data=data
        )
        async with open_answer_grader([task], backend="none") as grade:
            for body, score in (("2 * x", 1), ("x", 0)):
                answer = f"```python\ndef double(x):\n    return {body}\n```"
                assert (await grade(task, answer)).score == score

    async def test_a_judge_grades_what_no_rule_decides(self):
        task = Task(id=TaskId("t"), question="Why?", target="because", grader="judge")
        async with open_answer_grader([task], ScriptedClient(["GRADE: 1"])) as grade:
            assert (await grade(task, "for that reason")).score == 1


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
        ("exact", "x", "  ", 0),
    ],
)  # fmt: skip
async def test_grades(grader, target, answer, score):
    task = Task(id=TaskId("t"), question="q", target=target, grader=grader)
    assert (await grade_by_task(task, answer)).score == score
