"""A row of each benchmark, in the form of the local folders and in that of the hub.

All rows are made up here; none is of a benchmark.
"""

import ast
import base64
import json
import pickle
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from batuta.errors import SourceError
from batuta.lab.tasks.datasets import MultipleChoiceQuestion, coding, load_tasks
from batuta.lab.tasks.datasets.maths import boxed_solution
from batuta.lab.tasks.datasets.rows import MAX_ROW_BYTES
from batuta.lab.tasks.datasets.short_answers import convert_gpqa, convert_mmlu, convert_mmlu_pro


def tasks_of(tmp_path, name, *rows, seed=0, folder="plain"):
    path = tmp_path / folder / "rows.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return load_tasks(name, files=[path], seed=seed)


@pytest.mark.parametrize(
    ("name", "local", "hub"),
    [
        (
            "math",
            {"problem": "What is  1+1?", "answer": "2", "level": "Level 1", "subject": "Algebra", "in_math500": False},
            {"problem": "What is 1+1?", "solution": "It is $\\boxed{2}$.", "level": "Level 1", "type": "Algebra"},
        ),
        (
            "math-500",
            {"id": "test/algebra/1.json", "problem": "p", "answer": "2", "level": 3, "subject": "Algebra"},
            {"unique_id": "test/algebra/1.json", "problem": "p", "answer": "2", "level": 3, "subject": "Algebra"},
        ),
        (
            "aime-2024",
            {"task_id": "aime_2024_II_4", "year": 2024, "problem": "p", "gold_answer": 33},
            {"id": 84, "year": "2024", "problem": "p", "answer": "033", "url": "https://x/2024_AIME_II_Problems/Problem_4"},
        ),
        (
            "aime-2025",
            {"id": "aime25/II-2", "problem": "p", "answer": "49"},
            {"problem_idx": 17, "problem": "p", "answer": 49, "problem_type": []},
        ),
        (
            "gsm8k",
            {"problem": "How many?", "answer": "1200", "solution": "…#### 1,200"},
            {"question": "How many?", "answer": "So 1,200.\n#### 1,200"},
        ),
        (
            "olympiadbench",
            {"id": "olympiad/7", "problem": "p", "answer": ["$1$,$2$"], "unit": None, "subject": "Algebra"},
            {"id": 7, "question": "p", "final_answer": ["$1$,$2$"], "unit": None, "subfield": "Algebra"},
        ),
        (
            "theoremqa",
            {"question": "q", "answer": True, "answer_type": "bool", "picture": None},
            {"Question": "q", "Answer": "True", "Answer_type": "bool", "Picture": None},
        ),
        (
            "mmlu",
            {"question": "q", "choices": ["w", "x", "y", "z"], "answer": "C", "subject": "law"},
            {"question": "q", "choices": ["w", "x", "y", "z"], "answer": 2, "subject": "law"},
        ),
        (
            "mmlu-pro",
            {"query_id": "70", "question": "q", "options": ["w", "x", "y"], "answer": "B", "category": "law"},
            {"question_id": 70, "question": "q", "options": ["w", "x", "y", "N/A"], "answer": "B", "category": "law"},
        ),
        (
            "mbpp:train",
            {"task_id": 601, "text": "Add.", "test_list": ["assert add(1, 2) == 3"], "test_setup_code": "", "challenge_test_list": [], "split": "train"},
            {"task_id": 601, "text": "Add.", "test_list": ["assert add(1, 2) == 3"], "test_setup_code": "", "challenge_test_list": []},
        ),
        (
            "bigcodebench",
            {"task_id": "BigCodeBench/9", "instruction": "Do it.", "libs": ["numpy", "os"], "test": "class TestCases: ..."},
            {"task_id": "BigCodeBench/9", "instruct_prompt": "Do it.", "libs": "['numpy', 'os']", "test": "class TestCases: ..."},
        ),
    ],
)  # fmt: skip
def test_both_forms_give_the_same_task(tmp_path, name, local, hub):
    first = tasks_of(tmp_path, name, local, folder="a")
    second = tasks_of(tmp_path, name, hub, folder="b")
    assert len(first) == len(second) == 1
    for field in ("id", "target", "grader", "data", "difficulty"):
        assert getattr(first[0], field) == getattr(second[0], field), field
    assert first[0].question.split() == second[0].question.split()


def test_aime_is_named_by_contest_and_problem(tmp_path):
    (task,) = tasks_of(tmp_path, "aime-2025", {"problem_idx": 15, "problem": "p", "answer": 5})
    assert task.id == "aime-2025/I-15"
    assert (task.target, task.grader) == ("5", "integer")


def test_bbh_takes_the_family_from_the_folder(tmp_path):
    row = {"input": "Which?\nOptions:\n(A) a\n(B) b", "target": "(B)"}
    (task,) = tasks_of(tmp_path, "bbh", row, folder="snarks")
    assert task.tags == ("bbh", "snarks")
    assert (task.target, task.grader) == ("B", "choice")


@pytest.mark.parametrize(
    ("target", "grader"),
    [("(C)", "choice"), ("-35", "integer"), ("] )", "exact"), ("Yes", "exact")],
)
def test_bbh_is_graded_by_the_kind_of_its_answer(tmp_path, target, grader):
    row = {"task": "t", "question": "q", "answer": target}
    assert tasks_of(tmp_path, "bbh", row)[0].grader == grader


def test_rlpr_is_taken_out_of_its_chat(tmp_path):
    row = {
        "prompt": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "Rules. User: What is it? Assistant: <think>"},
        ],
        "reward_model": {"ground_truth": "4 m/s", "style": "rule"},
        "ability": "physics",
    }
    (task,) = tasks_of(tmp_path, "rlpr", row)
    assert task.question.startswith("What is it?\n")
    assert "Assistant" not in task.question
    assert (task.target, task.grader) == ("4 m/s", "freeform")


def test_rlpr_is_divided_by_its_questions_and_no_row_is_on_both_sides(tmp_path):
    rows = [
        {
            "prompt": [{"role": "user", "content": f"User: What is {n} m in cm? Assistant:"}],
            "reward_model": {"ground_truth": f"{100 * n} cm"},
        }
        for n in range(600)
    ]
    parts = {
        name: {task.id for task in tasks_of(tmp_path, f"rlpr:{name}", *rows)}
        for name in ("train", "learn", "held-out")
    }
    assert parts["learn"] | parts["held-out"] == parts["train"] and len(parts["train"]) == 600
    assert not parts["learn"] & parts["held-out"]
    assert 1 <= len(parts["held-out"]) <= 20, "about one in a hundred"
    back = {t.id for t in tasks_of(tmp_path, "rlpr:held-out", *reversed(rows))}
    assert back == parts["held-out"], "whatever the order of the file"


def test_the_new_problems_of_livecodebench_are_those_of_its_last_file():
    from batuta.lab.tasks.datasets.catalog import DATASETS

    splits = DATASETS["livecodebench"].splits
    assert splits["v6-new"].hub == ("test6.jsonl",)
    assert {*splits["v5"].hub, *splits["v6-new"].hub} == set(splits["v6"].hub)
    assert next(iter(splits)) == "v6", "what the bare name means stays"


def test_problems_without_an_answer_and_questions_with_a_picture_are_dropped(tmp_path):
    row = {"problem": "p", "answer": " ", "level": "Level 2", "subject": "Algebra"}
    assert tasks_of(tmp_path, "math", row) == ()
    row = {"question": "q", "answer": 1, "answer_type": "integer", "picture": "x.png"}
    assert tasks_of(tmp_path, "theoremqa", row) == ()


def test_a_repeated_question_keeps_an_id_of_its_own(tmp_path):
    row = {"problem": "How many?", "answer": "1"}
    first, second = tasks_of(tmp_path, "gsm8k", row, row)
    assert second.id == f"{first.id}#2"


def test_ids_do_not_depend_on_the_order_of_rows(tmp_path):
    rows = [{"problem": f"How many are {n}?", "answer": str(n)} for n in range(20)]
    one = tasks_of(tmp_path, "gsm8k", *rows)
    other = tasks_of(tmp_path, "gsm8k", *reversed(rows))
    assert {task.id: task for task in one} == {task.id: task for task in other}


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("so $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("\\boxed{1} then \\fbox{2}", "2"),
        ("\\boxed 5 is it", "5"),
        ("\\boxed{1", ""),
        ("none", ""),
    ],
)
def test_the_last_whole_box(text, box):
    assert boxed_solution(text) == box


QUESTION = {
    "question": "q",
    "choices": ["one", "two", "three", "four"],
    "answer": "A",
    "subject": "s",
}


def test_options_are_shuffled_by_a_stored_seed():
    item = convert_mmlu(QUESTION)
    assert isinstance(item, MultipleChoiceQuestion)
    targets = set()
    for seed in range(40):
        task = item.to_task(seed)
        data = json.loads(task.data)
        assert data["seed"] == seed
        assert [QUESTION["choices"][place] for place in data["order"]] == data["options"]
        assert data["options"]["ABCD".index(task.target)] == "one"
        for letter, option in zip("ABCD", data["options"], strict=True):
            assert f"\n{letter}. {option}" in task.question
        assert task == item.to_task(seed)
        targets.add(task.target)
    assert targets == set("ABCD")


def test_options_stay_as_published_without_a_seed_or_where_one_points_at_another():
    assert convert_mmlu(QUESTION).to_task(None).target == "A"
    for bound in ("All of the above", "Both A and B", "neither of the two", "(B) or (C)"):
        options = ["one", "two", "three", bound]
        task = convert_mmlu({**QUESTION, "choices": options, "answer": "D"}).to_task(3)
        assert task.target == "D", bound
        assert json.loads(task.data)["options"] == options


def test_the_order_of_options_is_the_same_in_another_process():
    code = (
        "from batuta.lab.tasks.datasets.short_answers import convert_mmlu; import sys;"
        f"sys.stdout.write(convert_mmlu({QUESTION!r}).to_task(11).data)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert done.stdout == convert_mmlu(QUESTION).to_task(11).data


def test_mmlu_pro_drops_empty_options():
    row = {
        "question_id": 1,
        "question": "q",
        "options": ["a", "N/A", "b"],
        "answer": "C",
        "category": "c",
    }
    assert convert_mmlu_pro(row).options == ("a", "b")
    assert convert_mmlu_pro(row).correct_index == 1


SECRET = {
    "Record ID": "rec1",
    "Question": "zanzibar?",
    "Correct Answer": "quicksilver",
    "Incorrect Answer 1": "wrong1",
    "Incorrect Answer 2": "wrong2",
    "Incorrect Answer 3": "wrong3",
    "High-level domain": "Physics",
}


def test_a_private_task_does_not_show_its_text():
    item = convert_gpqa(SECRET)
    task = item.to_task(0)
    assert "zanzibar?" in task.question
    for shown in (repr(item), repr(task), str(task), f"{[task]}"):
        assert "gpqa-diamond/rec1" in shown or "Choice" in shown
        assert not any(text in shown for text in ("zanzibar", "quicksilver", "wrong"))


def test_a_broken_private_row_does_not_show_its_text(tmp_path):
    row = {**SECRET, "Incorrect Answer 2": None}
    with pytest.raises(SourceError, match="not in the format of gpqa-diamond") as caught:
        tasks_of(tmp_path, "gpqa-diamond", row)
    assert "zanzibar" not in str(caught.value)
    assert "quicksilver" not in str(caught.value)


def live(tests, hidden, **more):
    return {
        "question_id": "q1",
        "question_content": "Read two numbers.",
        "platform": "atcoder",
        "contest_date": "2024-05-01T00:00:00",
        "difficulty": "hard",
        "starter_code": "",
        "metadata": "{}",
        "public_test_cases": json.dumps(tests),
        "private_test_cases": hidden,
        **more,
    }


def packed(value):
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_live_code_bench_has_public_and_hidden_tests(tmp_path):
    shown = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
    hidden = [{"input": "5 5\n", "output": "10\n", "testtype": "stdin"}]
    (task,) = tasks_of(tmp_path, "livecodebench:v1", live(shown, packed(json.dumps(hidden))))
    assert (task.grader, task.difficulty) == ("code-stdin", 3.0)
    assert json.loads(task.data) == {
        "tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5\n", "output": "10\n"}]
    }
    assert "date:2024-05-01" in task.tags
    assert "5 5" not in task.question


def test_live_code_bench_names_the_function(tmp_path):
    tests = [{"input": "[1]\n2", "output": "3", "testtype": "functional"}]
    row = live(tests, "[]", metadata='{"func_name": "solve"}', starter_code="class Solution:\n")
    (task,) = tasks_of(tmp_path, "livecodebench:v6", row)
    assert task.grader == "code-functional"
    assert json.loads(task.data)["entry"] == "Solution().solve"
    assert "class Solution:" in task.question


def test_a_pickle_that_names_a_function_is_refused(tmp_path):
    tests = [{"input": "", "output": "", "testtype": "stdin"}]
    with pytest.raises(SourceError, match="packed tests are not a pickled string"):
        tasks_of(tmp_path, "livecodebench:v1", live(tests, packed(Evil())))


def test_packed_tests_are_unpacked_so_far_as_a_row_may_be_long(tmp_path):
    tests = [{"input": "", "output": "", "testtype": "stdin"}]
    bomb = base64.b64encode(zlib.compress(bytes(MAX_ROW_BYTES + 1), 1)).decode()
    with pytest.raises(SourceError, match="packed tests are longer than 128 MiB"):
        tasks_of(tmp_path, "livecodebench:v1", live(tests, bomb))
    with pytest.raises(SourceError, match="packed tests are damaged"):
        tasks_of(tmp_path, "livecodebench:v1", live(tests, base64.b64encode(b"no").decode()))


class Evil:
    def __reduce__(self):
        import os

        return os.system, ("true",)


def run_with_tests(task, program):
    data = json.loads(task.data)
    source = f"{data['preamble']}\n{program}\n{data['tests']}"
    return subprocess.run([sys.executable, "-c", source], capture_output=True, check=False)


CODE = {
    "humaneval": (
        {"task_id": "HumanEval/9", "prompt": 'def inc(n):\n    """Adds one."""\n', "entry_point": "inc", "test": "def check(candidate):\n    assert candidate(1) == 2\n"},
        "def inc(n): return n + 1",
        "def inc(n): return n",
    ),
    "mbpp:test": (
        {"task_id": 11, "text": "Add.", "test_setup_code": "two = Two()", "test_list": ["assert two.value == 2"], "challenge_test_list": [], "split": "test"},
        "class Two: value = 2",
        "class Two: value = 3",
    ),
    "bigcodebench:v0.1.0": (
        {"task_id": "BigCodeBench/1", "instruction": "Do.", "libs": ["os"], "test": "import unittest\nclass TestCases(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(task_func(), 4)\n"},
        "def task_func(): return 4",
        "def task_func(): return 5",
    ),
    "leetcode:test": (
        {"task_id": "two-sum", "problem_description": "Add.", "starter_code": "class Solution:", "difficulty": "Easy", "prompt": "from typing import *\n", "entry_point": "Solution().add", "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"},
        "class Solution:\n    def add(self, a: Optional[int], b): return a + b",
        "class Solution:\n    def add(self, a: Optional[int], b): return a - b",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_the_tests_of_a_program_pass_and_fail(tmp_path, name):
    row, right, wrong = CODE[name]
    (task,) = tasks_of(tmp_path, name, row)
    assert task.grader == "code-assert"
    assert run_with_tests(task, right).returncode == 0
    assert run_with_tests(task, wrong).returncode != 0


def test_rows_of_another_benchmark_are_refused(tmp_path):
    with pytest.raises(SourceError, match=r"lacks the column .prompt. of humaneval"):
        tasks_of(tmp_path, "humaneval", {"question": "q", "answer": "a"})


def test_splits_of_one_file_are_kept_apart(tmp_path):
    row = CODE["mbpp:test"][0]
    assert len(tasks_of(tmp_path, "mbpp:test", row)) == 1
    assert tasks_of(tmp_path, "mbpp:train", row) == ()


def test_no_question_shows_an_example_of_an_answer():
    """Small models give the example back: 69 of 150 answers to CRUXEval were `[1, 2]`."""
    folder = Path(coding.__file__).parent
    trees = [ast.parse(path.read_text("utf-8")) for path in folder.glob("*.py")]
    texts = [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    asking = [
        text for text in texts if re.match(r"(What does|End with|The answer is|Answer )", text)
    ]
    assert len(asking) > 5
    assert not [text for text in asking if re.search(r"such as|for example|like `|e\.g\.", text)]
