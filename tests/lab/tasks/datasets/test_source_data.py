"""The benchmarks themselves, where BATUTA_DATA says they are."""

import re
from collections import Counter

import pytest

from batuta.lab.tasks.datasets import DATASETS, load_tasks, local_files
from batuta.lab.tasks.datasets.reasoning_gym import NAME
from data_folder import FOLDER, needs_data

pytestmark = needs_data("bench")

COUNTS = {
    "math:test": 4_999,
    "math:train": 7_496,
    "math:train-12k": 11_995,
    "math-500:test": 500,
    "aime-2024:test": 30,
    "aime-2025:test": 30,
    "gsm8k:test": 1_319,
    "gsm8k:train": 7_473,
    "olympiadbench:test": 675,
    "theoremqa:test": 747,
    "mmlu:test": 14_042,
    "mmlu:dev": 285,
    "mmlu-pro:test": 12_032,
    "bbh:test": 6_511,
    "humaneval:test": 164,
    "mbpp:test": 500,
    "mbpp:train": 374,
    "mbpp:validation": 90,
    "mbpp:prompt": 10,
    "bigcodebench:v0.1.0": 1_140,
    "livecodebench:v1-public": 400,
    "leetcode:test": 228,
    "leetcode:train": 1_890,
    "cruxeval:test": 800,
}
"""Of the official sizes, five rows of MATH have no answer and 53 of TheoremQA need a picture."""

GRADERS = {
    "integer", "math", "choice", "freeform", "exact",
    "code-stdin", "code-functional", "code-assert", NAME,
}  # fmt: skip


BENCHMARKS = sorted({re.split(r"[:-]", name)[0] for name in COUNTS})


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_split_is_whole(benchmark):
    for name in COUNTS:
        if re.split(r"[:-]", name)[0] == benchmark:
            check_split(name)


def check_split(name):
    tasks = load_tasks(name, folder=FOLDER)
    assert len(tasks) == COUNTS[name]
    assert len({task.id for task in tasks}) == len(tasks)
    for task in tasks:
        assert task.question.strip()
        assert task.grader in GRADERS
        assert task.target.strip() or task.data
        if task.grader == "integer":
            assert re.fullmatch(r"-?\d+", task.target), task.id
        if task.grader == "choice":
            assert re.fullmatch(r"[A-Z]", task.target), task.id


def test_every_split_that_is_here_is_counted():
    found = {
        f"{s.name}:{split}"
        for s in DATASETS.values()
        for split in s.splits
        if local_files(s, split, FOLDER)
    }
    assert found == set(COUNTS)


def test_the_training_split_of_12k_has_no_problem_of_math_500():
    held_out = {" ".join(task.question.split()) for task in load_tasks("math-500", folder=FOLDER)}
    trained = {
        " ".join(task.question.split()) for task in load_tasks("math:train-12k", folder=FOLDER)
    }
    assert len(held_out & trained) == 0
    everything = {
        " ".join(task.question.split()) for task in load_tasks("math:test", folder=FOLDER)
    }
    assert len(held_out & everything) > 450


def test_shuffling_spreads_the_right_letter():
    letters = Counter(task.target for task in load_tasks("mmlu", folder=FOLDER))
    assert all(0.23 < letters[letter] / 14_042 < 0.27 for letter in "ABCD")
