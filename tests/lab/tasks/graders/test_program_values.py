"""What programs give: decimals within a tolerance, long whole numbers, values of numpy."""

import json

import pytest

from batuta.core import Task, TaskId
from batuta.errors import SandboxError, SourceError
from batuta.lab.tasks.graders import GraderRegistry
from batuta.lab.tasks.graders.code import is_same_output
from batuta.lab.tasks.graders.structured_data import is_same_value
from batuta.sandbox import Sandbox

pytestmark = pytest.mark.anyio

LONG = "7" * 6_000


@pytest.fixture
async def graders():
    try:
        async with Sandbox.open() as sandbox:
            with GraderRegistry(sandbox=sandbox) as found:
                yield found
    except SandboxError as error:
        pytest.skip(str(error))


async def score(graders, program, grader, data):
    task = Task(id=TaskId("t/1"), question="?", target="", grader=grader, data=json.dumps(data))
    return (await graders.grade(task, f"```python\n{program}\n```")).score


def returns(value, tolerance=None):
    data = {"entry": "f", "tests": [{"input": "1", "output": value}]}
    return data | ({"tolerance": tolerance} if tolerance else {})


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("import array\ndef f(n): return [array.array('i', [1, 2])]", "[[1, 2]]"),
        ("import numpy as np\ndef f(n): return np.int64(5)", "5"),
        ("import numpy as np\ndef f(n): return np.array([[1, 2], [3, 4]])", "[[1, 2], [3, 4]]"),
        (
            "import numpy as np\ndef f(n): return [np.bool_(True), (np.float64(0.5),)]",
            "[true, [0.5]]",
        ),
        (f"def f(n): return {LONG[:3000]} * 10**3000", LONG[:3000] + "0" * 3000),
        ("def f(n): return str(10**5000)", json.dumps("1" + "0" * 5000)),
    ],
)
async def test_a_function_may_return_what_it_worked_with(graders, program, value):
    if "numpy" in program and not await score(
        graders, "import numpy\ndef f(n): return n", "code-functional", returns("1")
    ):
        pytest.skip("the sandbox has no numpy")
    assert await score(graders, program, "code-functional", returns(value)) == 1
    other = value.replace("5", "6").replace("2", "3").replace("1", "4").replace("7", "8")
    assert await score(graders, program, "code-functional", returns(other)) == 0


@pytest.mark.parametrize("given", [LONG, f"[1, {LONG}]", f'{{"n": -{LONG}}}'])
async def test_a_function_may_be_given_long_numbers(graders, given):
    data = {"entry": "f", "tests": [{"input": given, "output": f"[{given}]"}]}
    assert await score(graders, "def f(n): return [n]", "code-functional", data) == 1
    assert await score(graders, "def f(n): return [n, n]", "code-functional", data) == 0


async def test_a_script_may_print_and_read_long_numbers(graders):
    data = {"tests": [{"input": LONG, "output": LONG}]}
    assert await score(graders, "print(int(input()))", "code-stdin", data) == 1
    assert await score(graders, "print(int(input()) + 1)", "code-stdin", data) == 0


async def test_a_stated_tolerance_counts_for_decimals_alone(graders):
    half = "def f(n): return [0.50000001, 3]"
    assert await score(graders, half, "code-functional", returns("[0.5, 3]")) == 0
    assert await score(graders, half, "code-functional", returns("[0.5, 3]", 1e-6)) == 1
    assert await score(graders, half, "code-functional", returns("[0.5, 4]", 0.9)) == 0
    assert await score(graders, half, "code-functional", returns("[0.6, 3]", 1e-6)) == 0


@pytest.mark.parametrize("tolerance", [-1, 1, "x", True, float("nan")])
async def test_a_tolerance_that_is_none_is_an_error(graders, tolerance):
    with pytest.raises(SourceError, match="tolerance"):
        await score(graders, "def f(n): return 1", "code-functional", returns("1", tolerance))


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("0.5 ok", "0.5000001 ok", True), ("0.5", "0.51", False), ("1e9", "1000000001.0", True), ("5", "6", False),
        ("5", "5.0000001", True), ("0.5", "nan", False), ("inf", "1.0", False), ("0.5 1", "0.5", False), ("e", "0.1", False),
        ("1e400", "1e401", False), ("1.5", "1" + "0" * 400, False), ("-1e400", "1e400", False),
    ],
)  # fmt: skip
def test_outputs_within_a_tolerance(expected, printed, same):
    assert is_same_output(expected, printed, 1e-6) is same
    assert expected == printed or not is_same_output(expected, printed)


def test_whole_numbers_and_truth_values_have_no_tolerance():
    assert not is_same_value(10**9, 10**9 + 1, 0.1) and not is_same_value(1.0, True, 0.5)
    assert is_same_value({"a": [1.0]}, {"a": [1.0000001]}, 1e-6)
    assert not is_same_value(1.5, 10**400, 1e-6) and not is_same_value(10**400, 1.5, 1e-6)
