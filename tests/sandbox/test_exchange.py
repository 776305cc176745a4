"""Orders to a warden and what its replies mean, without any process."""

import pytest

from batuta.sandbox import AssertionTest, CallTest, EndReason, Program, SandboxLimits, ScriptTest
from batuta.sandbox.process import build_order, interpret_reply, modules_to_preload, trailing_bytes

TOKEN = "5eed"
SCRIPT, CALL, CHECK = ScriptTest(""), CallTest("f"), AssertionTest(code="", separate=False)
APART = AssertionTest(code="assert x == 4242")


def reply(ended="", status=0, result="", stdout="", stderr=""):
    said = {"ended": ended, "status": status, "result": result, "seconds": 0.1}
    return said | {"stdout": stdout, "stderr": stderr}


@pytest.mark.parametrize(
    ("test", "said", "end"),
    [
        (SCRIPT, reply(), EndReason.RETURNED),
        (SCRIPT, reply(status=3), EndReason.EXITED),
        (SCRIPT, reply(status=1, result='{"end": "raised"}'), EndReason.RAISED),
        (SCRIPT, reply(status=-9), EndReason.KILLED),
        (SCRIPT, reply(ended="output", status=-9), EndReason.OUTPUT),
        (CALL, reply(result='{"end": "returned", "value": 1}'), EndReason.RETURNED),
        (CALL, reply(), EndReason.EXITED),
        (CALL, reply(result='{"end": "exited"}'), EndReason.EXITED),
        (CALL, reply(result='{"end": "memory"}', status=1), EndReason.MEMORY),
        (CALL, reply(ended="time", status=-9, result='{"end": "returned"}'), EndReason.TIME),
        (CALL, reply(status=None), EndReason.LOST),  # pyright: ignore[reportArgumentType]
        (CHECK, reply(result='{"end": "returned", "token": "5eed"}'), EndReason.RETURNED),
        (CHECK, reply(result='{"end": "returned", "token": "guess"}'), EndReason.EXITED),
        (CHECK, reply(result='{"end": "returned"}'), EndReason.EXITED),
        (CHECK, reply(result="[]"), EndReason.EXITED),
        (CHECK, reply(result='"'), EndReason.EXITED),
        (CHECK, reply(result="[" * 100_000), EndReason.EXITED),
        (CHECK, reply(result='{"end": "lost"}'), EndReason.EXITED),
        (CHECK, reply(result='{"end": ["returned"]}'), EndReason.EXITED),
        (APART, reply(result='{"end": "returned"}'), EndReason.RETURNED),
        (APART, reply(result='{"end": "raised"}', status=1), EndReason.RAISED),
        (APART, reply(), EndReason.EXITED),
        (APART, reply(status=-9), EndReason.KILLED),
    ],
)
def test_how_a_test_ended(test, said, end):
    assert interpret_reply(test, said, TOKEN).end is end


def test_a_value_counts_only_if_the_call_returned():
    returned = '{"end": "returned", "value": [1, null]}'
    assert interpret_reply(CALL, reply(result=returned), TOKEN).value == [1, None]
    assert interpret_reply(CALL, reply(ended="time", result=returned), TOKEN).value is None


def test_an_order_carries_what_its_kind_needs():
    program = Program("x = 1")
    assert build_order(program, ScriptTest("in"), TOKEN)["stdin"] == "in"
    assert build_order(program, CallTest("f", ("1", "[2]")), TOKEN)["arguments"] == ["1", "[2]"]
    assert (
        build_order(program, AssertionTest(code="assert x", separate=False), TOKEN)["token"]
        == TOKEN
    )
    assert "token" not in build_order(program, ScriptTest("in"), TOKEN)


def test_tests_that_run_apart_follow_their_order_and_are_not_in_it():
    told = build_order(Program("x = 1"), APART, TOKEN)
    assert "4242" not in repr(told)
    assert told["size"] == len(trailing_bytes(APART)) == len(APART.code)
    assert trailing_bytes(CHECK) == trailing_bytes(CALL) == b""


def test_modules_that_are_mentioned_are_imported_ahead():
    program = Program("import numpy as np\nfrom math import sqrt")
    assert modules_to_preload(program, CALL) == ["numpy", "math"]
    assert modules_to_preload(
        Program(""), AssertionTest(code="import numpy", preamble="import math")
    ) == ["numpy", "math"]


@pytest.mark.parametrize("entry", ["f", "Solution().twoSum", "module.f"])
def test_entry_points(entry):
    assert CallTest(entry).entry == entry


@pytest.mark.parametrize("entry", ["", "f()()", "f(1)", "__import__('os').system", "a b"])
def test_what_is_no_entry_point(entry):
    with pytest.raises(ValueError, match="entry point"):
        CallTest(entry)


def test_limits_are_positive():
    with pytest.raises(ValueError, match="greater than 0"):
        SandboxLimits(seconds=0)
