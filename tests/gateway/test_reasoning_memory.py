"""The reasoning that is remembered for clients who leave it out has a bound in memory and in time."""

import tracemalloc
from dataclasses import replace

import pytest

from batuta.core import (
    Message,
    Pool,
    Question,
    Reply,
    Role,
    Thought,
    ToolCall,
    ToolResult,
    Worker,
    WorkerId,
    user_message,
)
from batuta.gateway.serving.tenant_memory import REMEMBERED_SECONDS, ReasoningMemory
from store.strategies import make_run

POOL = Pool((Worker(id=WorkerId("ada"), model="m"),))
HI = (user_message("Hi"),)


def run_with(calls, thought):
    """A run whose only step called these tools."""
    run = make_run(1)
    reply = Reply(text="", tool_calls=calls, thoughts=(thought,))
    step = replace(run.steps[0], worker=WorkerId("ada"), result=reply)
    header = replace(run.header, question=Question(messages=HI))
    return replace(run, header=header, rounds=(replace(run.rounds[0], steps=(step,)),))


def call_number(number):
    return ToolCall(id=f"call_{number}", name="look", arguments="{}")


def remembered(memory, number):
    call = call_number(number)
    turn = Message(role=Role.ASSISTANT, parts=(call,))
    result = Message(role=Role.TOOL, parts=(ToolResult(call_id=call.id, content="Seen."),))
    return memory.fill_in(Question(messages=(*HI, turn, result)), "acme").messages[1].thoughts


@pytest.mark.slow
def test_very_many_calls_after_the_shortest_thoughts_are_forgotten_too():
    memory = ReasoningMemory()
    tracemalloc.start()
    for start in range(0, 150_000, 1_000):
        calls = tuple(map(call_number, range(start, start + 1_000)))
        memory.note_run(run_with(calls, Thought(model="m", text="", signature="s")), "acme", POOL)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not remembered(memory, 0) and remembered(memory, 149_999)
    assert taken < 48 << 20


def test_what_is_too_old_goes_when_something_comes():
    now = [0.0]
    memory = ReasoningMemory(lambda: now[0])
    tracemalloc.start()
    long = Thought(model="m", text="x" * 20_000_000, signature="s")
    memory.note_run(run_with((call_number(1),), long), "acme", POOL)
    del long
    assert remembered(memory, 1)
    now[0] = REMEMBERED_SECONDS
    assert not remembered(memory, 1)
    short = Thought(model="m", text="y", signature="s")
    memory.note_run(run_with((call_number(2),), short), "acme", POOL)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert remembered(memory, 2) == (short,)
    assert taken < 10_000_000
