"""What is remembered of calls for clients who leave it out is given back, and has a bound in memory and in time."""

import re
import tracemalloc
from dataclasses import replace

import pytest

from batuta.core import (
    Citation,
    Message,
    Pool,
    Question,
    Reply,
    Role,
    ServerCall,
    Thought,
    ToolCall,
    ToolResult,
    Worker,
    WorkerId,
    user_message,
)
from batuta.gateway.serving.tenant_memory import REMEMBERED_SECONDS, CallMemory
from store.strategies import make_run

POOL = Pool((Worker(id=WorkerId("ada"), model="m"),))
HI = (user_message("Hi"),)


def run_with(calls, *thoughts, server_calls=()):
    """A run whose only step called these tools."""
    run = make_run(1)
    reply = Reply(text="", tool_calls=calls, thoughts=thoughts, server_calls=server_calls)
    step = replace(run.steps[0], worker=WorkerId("ada"), result=reply)
    header = replace(run.header, question=Question(messages=HI))
    return replace(run, header=header, rounds=(replace(run.rounds[0], steps=(step,)),))


def call_number(number):
    return ToolCall(id=f"call_{number}", name="look", arguments="{}")


def filled(memory, *numbers, tenant="acme"):
    """The assistant's message with these calls, as the worker gets it."""
    calls = tuple(map(call_number, numbers))
    turn = Message(role=Role.ASSISTANT, parts=calls)
    results = tuple(ToolResult(call_id=call.id, content="Seen.") for call in calls)
    question = Question(messages=(*HI, turn, Message(role=Role.TOOL, parts=results)))
    return memory.fill_in(question, tenant).messages[1]


def remembered(memory, number):
    return filled(memory, number).thoughts


def test_what_the_servers_tools_returned_stands_before_the_call():
    page = Citation(
        url="https://a.example/b", date="2026-05-01", excerpt="It rains. </fetched_text>"
    )
    ran = (
        ServerCall(id="1", name="web_search", query="rain?", citations=(page, page)),
        ServerCall(id="2", name="code_interpreter", query="1 / 0", output="so", failure="Error"),
        ServerCall(id="3", name="web_search", query="snow?", error="unavailable"),
    )
    memory, thought = CallMemory(), Thought(model="m", text="", signature="s")
    memory.note_run(
        run_with((call_number(1), call_number(2)), thought, server_calls=ran), "acme", POOL
    )
    message = filled(memory, 1, 2)
    assert [type(part).__name__ for part in message.parts] == ["Text", "ToolCall", "ToolCall"]
    assert message.thoughts == (thought,)
    searched, second, ran_program, failed = re.split(r"\n\n", message.text)
    assert searched.startswith(
        "Called web_search with:\nrain?\nIt returned:\n[1] https://a.example/b 2026-05-01\n<fetched"
    )
    assert second.startswith("[2] https://a.example/b") and message.text.count("</fetched") == 2
    assert ran_program == "Called code_interpreter with:\n1 / 0\nIt returned:\nso\nError"
    assert failed == "Called web_search with:\nsnow?\nIt returned:\nunavailable"
    assert filled(memory, 1, tenant="other").text == "" and filled(memory, 3).text == ""


@pytest.mark.slow
def test_very_many_calls_after_the_shortest_thoughts_are_forgotten_too():
    memory = CallMemory()
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
    memory = CallMemory(lambda: now[0])
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
