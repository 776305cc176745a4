"""A worker that runs code: what goes wrong in a program is its answer."""

import time

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor
from batuta.core import (
    Finish,
    Outcome,
    Pool,
    Question,
    Request,
    Step,
    StepDelta,
    Worker,
    WorkerId,
    Workflow,
    system_message,
    user_message,
)
from batuta.engine import RunHooks, RunSettings, conduct
from batuta.errors import SandboxError
from batuta.sandbox import Sandbox, SandboxLimits
from batuta.sandbox.program import EndReason, ProgramResult
from batuta.sandbox.python_worker import NO_PROGRAM, PythonWorker, last_program, outcome_text

pytestmark = pytest.mark.anyio
WORKER = PythonWorker(SandboxLimits(seconds=2.0, memory=256 << 20, output=1 << 20))


@pytest.fixture(autouse=True)
async def works_here(anyio_backend):
    try:
        async with Sandbox.open():
            yield
    except SandboxError as error:
        pytest.skip(f"no sandbox works here: {error}")


def test_a_sandbox_that_failed_is_not_a_status_of_the_program():
    told = outcome_text(ProgramResult(end=EndReason.LOST), SandboxLimits())
    assert "The sandbox failed" in told and "None" not in told


def block(source):
    return f"Here it is:\n```python\n{source}\n```\nRun it."


async def said_to(text):
    reply = await WORKER.complete(Request(messages=(system_message("s"), user_message(text))))
    assert reply.usage.calls == 1 and reply.cost.usd == 0 and not reply.cost.unpriced_calls
    wrong = ("The program failed.", "The program ended without", NO_PROGRAM)
    assert (reply.finish is Finish.NO_OUTPUT) == reply.text.startswith(wrong)
    return reply.text


@pytest.mark.slow
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
    assert program("```x = 1``` is code.\n" + block("print(3)")) == "print(3)"


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
    flow = Workflow((Step(subtask="Write it.", worker=write), Step(subtask="Run it.", worker=run, access=(0,)),
                     Step(subtask="Answer.", worker=answer, access=(0, 1))))  # fmt: skip
    asked = Question.of("What is six times seven?")
    run_ = await conduct(asked, FixedConductor("by-hand", lambda _: flow), pool, clients)
    assert (run_.outcome, run_.answer) == (Outcome.ANSWERED, "It is 42.")
    assert run_.steps[1].result.text == "42"  # pyright: ignore[reportAttributeAccessIssue]


PAIR = Pool(tuple(Worker(id=WorkerId(each), model="m") for each in ("writer", "python")))
FLOW = Workflow(
    (
        Step(subtask="Write a program.", worker=WorkerId("writer")),
        Step(subtask="Run it.", worker=WorkerId("python"), access=(0,)),
    )
)


async def played(source, *, settings, hooks=None):
    """A program as the last step; asked the plain question, its writer says what it is."""
    asked = []

    def writes(request):
        asked.append(request)
        return block(source) if "Write a program" in request.messages[-1].text else "It is 42."

    clients = {WorkerId("writer"): ScriptedClient(writes), WorkerId("python"): WORKER}
    run = await conduct(
        Question.of("What is six times seven?"), FixedConductor("by-hand", lambda _: FLOW), PAIR,
        clients, settings=settings, **({"hooks": hooks} if hooks else {}),
    )  # fmt: skip
    return run, len(asked)


@pytest.mark.parametrize("source", ["x = 42", "1 / 0", "def f(:"])
async def test_a_program_that_prints_nothing_is_no_answer(source):
    """It is a step that failed: the best worker is asked the whole question instead."""
    run, asked = await played(source, settings=RunSettings())
    assert (run.outcome, run.answer, asked) == (Outcome.DEGRADED, "It is 42.", 2)
    assert [each.failure.code for each in run.steps[1].attempts] == ["no_output"]
    assert run.usage.calls == 3
    alone, asked = await played(source, settings=RunSettings(fallback=False))
    assert alone.outcome is Outcome.ANSWERED and asked == 1
    assert alone.answer and alone.answer.startswith("The program")


async def test_what_a_program_failed_with_is_not_streamed_as_the_answer():
    shown = []

    async def hears(event):
        if isinstance(event, StepDelta) and event.is_answer:
            shown.append(event.delta.text)

    run, _ = await played("1 / 0", settings=RunSettings(live=True), hooks=RunHooks(emit=hears))
    assert run.answer == "".join(shown) == "It is 42."
    shown.clear()
    run, asked = await played(
        "print(7 * 6)", settings=RunSettings(live=True), hooks=RunHooks(emit=hears)
    )
    assert (run.outcome, run.answer, asked) == (Outcome.ANSWERED, "42", 1)
    assert "".join(shown) == "42"
