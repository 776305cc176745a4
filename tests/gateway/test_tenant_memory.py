"""What is kept in memory of callers' work: a tenant that fills it pushes out its own alone."""

import time
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.conductors import sequential_chain
from batuta.core import (
    Message,
    Question,
    Reply,
    Role,
    RunId,
    Thought,
    Tool,
    ToolCall,
    ToolResult,
    WorkerId,
    user_message,
)
from batuta.engine import RunHooks, conduct
from batuta.gateway.serving.tenant_memory import (
    MAX_REMEMBERED_BYTES,
    CallMemory,
    TenantMemory,
)
from batuta.gateway.serving.waiting_runs import PendingToolRuns
from gateway.live_server import pool_of

pytestmark = pytest.mark.anyio
LOOK = Tool(name="look")


async def waiting_run(number=0, reasoning=""):
    """A run that waits for a tool."""
    call = ToolCall(id=f"call_{number:024x}_0_0", name="look", arguments="{}")
    reply = Reply(text="", tool_calls=(call,), reasoning=reasoning)
    asked = Question(messages=(user_message("hi"),), tools=(LOOK,))
    clients = {WorkerId("ada"): ScriptedClient(lambda _: reply)}
    return await conduct(
        asked, sequential_chain(["Look."], ["ada"]), pool_of("ada"), clients,
        hooks=RunHooks(run_id=RunId(f"run_{number:024x}")),
    )  # fmt: skip


def memory_of(most, seconds=100.0):
    now = [0.0]
    return TenantMemory(most, seconds, lambda: now[0]), now


def test_a_tenant_that_fills_it_pushes_out_its_own_oldest():
    memory, _ = memory_of(10)
    for number in range(3):
        memory.put("small", number, number)
    for number in range(1000):
        memory.put("large", number, number)
    assert memory.keys("small") == [0, 1, 2]
    assert memory.keys("large") == list(range(993, 1000))
    assert len(memory) == 10


def test_each_of_several_tenants_has_its_share():
    memory, _ = memory_of(12)
    for number in range(100):
        memory.put("first", number, number)
    for tenant in ("second", "third"):
        for number in range(100):
            memory.put(tenant, number, number)
    assert [len(memory.keys(tenant)) for tenant in ("first", "second", "third")] == [4, 4, 4]


def test_sizes_count_and_time_frees():
    memory, now = memory_of(100)
    memory.put("a", "x", "old", 60)
    memory.put("a", "x", "new", 60)
    memory.put("b", "y", "kept", 40)
    assert memory.get("a", "x") == "new" and memory.get("b", "y") == "kept"
    assert memory.get("b", "x") is None
    now[0] = 100.0
    assert memory.get("a", "x") is None and len(memory) == 0
    memory.put("c", "z", "whole", 100)
    assert memory.get("c", "z") == "whole"
    memory.put("c", "w", "too large", 101)
    assert len(memory) == 0


@example(
    [
        ("c", 0, 8, False),
        ("c", 1, 3, False),
        ("a", 0, 2, False),
        ("b", 0, 1, False),
        ("a", 1, 9, False),
    ]
)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(1, 9), st.booleans()),
        max_size=60,
    )
)
def test_whoever_is_pushed_out_holds_the_most(acts):
    memory, _ = memory_of(20)
    kept = dict[tuple[str, int], int]()
    for tenant, key, size, goes in acts:
        if goes:
            memory.pop(tenant, key)
            kept.pop((tenant, key), None)
        else:
            memory.put(tenant, key, size, size)
            kept.pop((tenant, key), None)
            kept[tenant, key] = size
        left = {one: memory.keys(one) for one in "abcd"}
        fitting = [
            state
            for state in pushed_out(kept, 20)
            if left == {one: [k for t, k in state if t == one] for one in "abcd"}
        ]
        assert fitting
        kept = fitting[0]


def pushed_out(kept, most):
    """What may be left: of several tenants that hold the most, any one's oldest goes first."""
    if sum(kept.values()) <= most:
        return [kept]
    held = Counter[str]()
    for (one, _), amount in kept.items():
        held[one] += amount
    largest = [one for one in held if held[one] == max(held.values())]
    oldest = [next(place for place in kept if place[0] == one) for one in largest]
    return [
        state
        for gone in oldest
        for state in pushed_out({p: size for p, size in kept.items() if p != gone}, most)
    ]


def test_pushing_out_does_not_look_at_every_tenant():
    many, memory = 20_000, memory_of(20_000)[0]
    began = time.process_time()
    for number in range(2 * many):
        memory.put(f"tenant-{number}", 0, number)
    for number in range(many):
        memory.put("one", number, number)
    assert len(memory) == many
    # To look at each of them at each of 40,000 evictions takes minutes.
    assert time.process_time() - began < 20


async def test_runs_that_wait_of_one_tenant_push_out_nobody_elses():
    room, waiting = PendingToolRuns(max_pending=5), await waiting_run()
    await room.add(waiting, "small")
    for number in range(1, 9):
        await room.add(await waiting_run(number), "large")
    assert len(room) == 5
    assert waiting.reply is not None
    (call,) = waiting.reply.tool_calls
    question = Question(
        messages=(
            user_message("hi"),
            Message(role=Role.ASSISTANT, parts=(call,)),
            Message(role=Role.TOOL, parts=(ToolResult(call_id=call.id, content="Seen."),)),
        ),
        tools=(LOOK,),
    )
    assert await room.find_resumed(question, pool_of("ada"), "small") is not None


async def test_reasoning_of_one_tenant_pushes_out_nobody_elses():
    memory, pool = CallMemory(), pool_of("ada")
    memory.note_run(await waiting_run(0, "I must look."), "small", pool)
    size = MAX_REMEMBERED_BYTES // 4
    for number in range(8):
        memory.note_run(await waiting_run(number, "x" * size), "large", pool)
    call = ToolCall(id=f"call_{0:024x}_0_0", name="look", arguments="{}")
    result = Message(role=Role.TOOL, parts=(ToolResult(call_id=call.id, content="Seen."),))
    turns = (user_message("hi"), Message(role=Role.ASSISTANT, parts=(call,)), result)
    filled = memory.fill_in(Question(messages=turns), "small").messages[1]
    assert filled.thoughts == (Thought(model="m-ada", text="I must look."),)
