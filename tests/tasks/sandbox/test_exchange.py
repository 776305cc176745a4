"""Orders to a warden and what its replies mean, without any process."""

import pytest

from batuta.tasks.sandbox import Call, Check, End, Limits, Program, Script
from batuta.tasks.sandbox.exchange import order, preload, settle, trailing

TOKEN = "5eed"
SCRIPT, CALL, CHECK = Script(""), Call("f"), Check("", apart=False)
APART = Check("assert x == 4242")


def reply(ended="", status=0, result="", stdout="", stderr=""):
    said = {"ended": ended, "status": status, "result": result, "seconds": 0.1}
    return said | {"stdout": stdout, "stderr": stderr}


@pytest.mark.parametrize(
    ("test", "said", "end"),
    [
        (SCRIPT, reply(), End.RETURNED),
        (SCRIPT, reply(status=3), End.EXITED),
        (SCRIPT, reply(status=1, result='{"end": "raised"}'), End.RAISED),
        (SCRIPT, reply(status=-9), End.KILLED),
        (SCRIPT, reply(ended="output", status=-9), End.OUTPUT),
        (CALL, reply(result='{"end": "returned", "value": 1}'), End.RETURNED),
        (CALL, reply(), End.EXITED),
        (CALL, reply(result='{"end": "exited"}'), End.EXITED),
        (CALL, reply(result='{"end": "memory"}', status=1), End.MEMORY),
        (CALL, reply(ended="time", status=-9, result='{"end": "returned"}'), End.TIME),
        (CALL, reply(status=None), End.LOST),
        (CHECK, reply(result='{"end": "returned", "token": "5eed"}'), End.RETURNED),
        (CHECK, reply(result='{"end": "returned", "token": "guess"}'), End.EXITED),
        (CHECK, reply(result='{"end": "returned"}'), End.EXITED),
        (CHECK, reply(result="[]"), End.EXITED),
        (CHECK, reply(result='"'), End.EXITED),
        (CHECK, reply(result="[" * 100_000), End.EXITED),
        (CHECK, reply(result='{"end": "lost"}'), End.EXITED),
        (CHECK, reply(result='{"end": ["returned"]}'), End.EXITED),
        (APART, reply(result='{"end": "returned"}'), End.RETURNED),
        (APART, reply(result='{"end": "raised"}', status=1), End.RAISED),
        (APART, reply(), End.EXITED),
        (APART, reply(status=-9), End.KILLED),
    ],
)
def test_how_a_test_ended(test, said, end):
    assert settle(test, said, TOKEN).end is end


def test_a_value_counts_only_if_the_call_returned():
    returned = '{"end": "returned", "value": [1, null]}'
    assert settle(CALL, reply(result=returned), TOKEN).value == [1, None]
    assert settle(CALL, reply(ended="time", result=returned), TOKEN).value is None


def test_an_order_carries_what_its_kind_needs():
    program = Program("x = 1")
    assert order(program, Script("in"), TOKEN)["stdin"] == "in"
    assert order(program, Call("f", (1, [2])), TOKEN)["arguments"] == [1, [2]]
    assert order(program, Check("assert x", apart=False), TOKEN)["token"] == TOKEN
    assert "token" not in order(program, Script("in"), TOKEN)


def test_tests_that_run_apart_follow_their_order_and_are_not_in_it():
    told = order(Program("x = 1"), APART, TOKEN)
    assert "4242" not in repr(told)
    assert told["size"] == len(trailing(APART)) == len(APART.code)
    assert trailing(CHECK) == trailing(CALL) == b""


def test_modules_that_are_mentioned_are_imported_ahead():
    program = Program("import numpy as np\nfrom math import sqrt")
    assert preload(program, CALL) == ["numpy", "math"]
    assert preload(Program(""), Check("import numpy", "import math")) == ["numpy", "math"]


@pytest.mark.parametrize("entry", ["f", "Solution().twoSum", "module.f"])
def test_entry_points(entry):
    assert Call(entry).entry == entry


@pytest.mark.parametrize("entry", ["", "f()()", "f(1)", "__import__('os').system", "a b"])
def test_what_is_no_entry_point(entry):
    with pytest.raises(ValueError, match="entry point"):
        Call(entry)


def test_limits_are_positive():
    with pytest.raises(ValueError, match="greater than 0"):
        Limits(seconds=0)
