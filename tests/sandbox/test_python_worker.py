"""A worker that runs code: what goes wrong in a program is its answer."""

import time

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor
from batuta.core import (
    Outcome,
    Pool,
    Question,
    Request,
    Worker,
    WorkerId,
    system_message,
    user_message,
)
from batuta.engine import conduct
from batuta.errors import SandboxError
from batuta.sandbox import Sandbox, SandboxLimits
from batuta.sandbox.python_worker import NO_PROGRAM, PythonWorker, last_program

pytestmark = pytest.mark.anyio
WORKER = PythonWorker(SandboxLimits(seconds=2.0, memory=256 << 20, output=1 << 20))


@pytest.fixture(autouse=True)
async def works_here(anyio_backend):
    try:
        async with Sandbox.open():
            yield
    except SandboxError as error:
        pytest.skip(f"no sandbox works here: {error}")


def block(source):
    return f"Here it is:\n```python\n{source}\n```\nRun it."


async def said_to(text):
    reply = await WORKER.complete(Request(messages=(system_message("s"), user_message(text))))
    assert reply.usage.calls == 1 and reply.cost.usd == 0 and not reply.cost.unpriced_calls
    return reply.text


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print(sum(1 for n in range(1, 1000) if n % 6 and n % 10))", "767"),
        ("x = 3", "The program ended without printing anything."),
        ("print('before')\n1 / 0", "ZeroDivisionError"),
        ("print('before')\n1 / 0", "It had printed:\nbefore"),
        ("while True: pass", "It was stopped: it ran for more than 2 seconds."),
        ("print('x' * (2 << 20))", "It was stopped: it printed more than 1 MB."),
        ("import sys; sys.exit(3)", "It ended with status 3."),
        ("import socket; socket.create_connection(('127.0.0.1', 80), 1)", "The program failed."),
        ("print(open('/etc/shadow').read())", "The program failed."),
        ("def f(:", "SyntaxError"),
    ],
)
async def test_what_a_program_prints_or_why_it_does_not_is_the_answer(source, said):
    assert said in await said_to(block(source))


async def test_what_is_no_program_is_said_so():
    for text in ("What is 2 + 2?", "", "```python\nprint(1)", "```json\n{}\n```"):
        assert await said_to(text) == NO_PROGRAM, text


def program(text):
    return last_program(
        Request(messages=(user_message("```python\nearlier turn\n```"), user_message(text)))
    )


def test_the_last_python_block_counts():
    text = block("print('first')") + "\n" + block("print('second')") + "\n```\nits output\n```"
    assert program(text) == "print('second')"
    assert program("```\nprint(1)\n```") == "print(1)", "no language is named anywhere"
    assert program("- ~~~~py\n  print(2)\n  ```\n  ~~~~") == "print(2)\n```"
    assert program(block("print('whole')") + "\n```python\nprint('cut'") == "print('whole')"


def test_many_fences_take_no_time():
    began = time.process_time()
    assert program("```x\n" * 200_000 + "~~~ \n" * 100_000) is None
    assert time.process_time() - began < 10


async def test_a_long_output_keeps_its_ends():
    text = await said_to(block("print('begin', 'x' * 50_000, 'end')"))
    assert text.startswith("begin") and text.endswith("end") and "left out" in text


async def test_a_workflow_writes_runs_and_answers():
    write, run, answer = WorkerId("writer"), WorkerId("python"), WorkerId("reader")
    pool = Pool(tuple(Worker(id=each, model="m") for each in (write, run, answer)))
    clients = {
        write: ScriptedClient(lambda _: block("print(6 * 7)")),
        run: WORKER,
        answer: ScriptedClient(
            lambda request: "It is 42." if "\n42\n" in request.messages[-1].text else "?"
        ),
    }
    from batuta.core import Step, Workflow

    flow = Workflow((Step(subtask="Write it.", worker=write), Step(subtask="Run it.", worker=run, access=(0,)),
                     Step(subtask="Answer.", worker=answer, access=(0, 1))))  # fmt: skip
    asked = Question.of("What is six times seven?")
    run_ = await conduct(asked, FixedConductor("by-hand", lambda _: flow), pool, clients)
    assert (run_.outcome, run_.answer) == (Outcome.ANSWERED, "It is 42.")
    assert run_.steps[1].result.text == "42"  # pyright: ignore[reportAttributeAccessIssue]
